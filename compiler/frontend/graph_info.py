"""Describes a captured graph for the client: its nodes, its FX code, why Dynamo broke it, and when Dynamo reuses it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from tabulate import tabulate
from torch import Tensor
from torch._guards import Guard as DynamoGuard
from torch._guards import TracingContext
from torch.fx import GraphModule

from buddy.compiler.frontend.aten import AtenGraph, input_origins
from buddy.compiler.frontend.convert import Conversion
from buddy.compiler.frontend.graph_splitter import READS_NUMBER
from buddy.compiler.frontend.names import is_library, python_frames, source_name
from buddy.compiler.frontend.saved_tensors import training_role
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import Op, OutputOp, PlaceholderOp
from buddy.compiler.graph.types import NodeType
from buddy.compiler.protocol import GraphInfo, Guard, NodeRow
from buddy.compiler.protocol.dynamo import read_break
from buddy.compiler.runtime.torch_values import to_torch_dtype

if TYPE_CHECKING:
    import torch


# ---- graph breaks and guards -----------------------------------------------------------------------------------------


# How to avoid a cut at a node that reads a number.
_NUMBER_FIX = "keep the number in a tensor, without .item() or int()"

# Guards on values of the caller: with another value, Dynamo compiles the function again. Those on types, modules,
# functions and global settings rarely fail.
_VALUE_GUARDS = (
    "CONSTANT_MATCH", "EQUALS_MATCH", "SHAPE_ENV", "SEQUENCE_LENGTH", "DICT_CONTAINS", "DICT_KEYS_MATCH", "BOOL_MATCH",
    "NONE_MATCH", "NOT_NONE_MATCH", "RANGE_ITERATOR_MATCH", "TUPLE_ITERATOR_LEN",
)  # fmt: skip
_MAX_GUARDS = 100
# The address of an object, as in `___check_obj_id(f.__code__, 94339952782816)`: it differs from process to process.
_ADDRESS = re.compile(r"(?<=, )\d{9,}(?=\))")
# A local or global variable of the user in Dynamo's spelling, with its attributes and keys.
_VARIABLE = re.compile(r"[LG]\['\w+'\](?:\.\w+|\['\w+'\]|\[\d+\])*")


class GraphBreak(NamedTuple):
    """The reason, the line (`file:line`) and a fix; all are "" if the graph ends with its function."""

    reason: str = ""
    line: str = ""
    fix: str = ""


NO_BREAK = GraphBreak()


def find_graph_break(aten: AtenGraph) -> GraphBreak:
    """Returns why and where the Dynamo graph of `aten` ended; for a piece of a graph, why and where it was cut.

    A backward graph has no break: the break is reported for its forward graph.
    """
    if aten.piece:
        return GraphBreak(aten.cut_reason, aten.cut_line, _NUMBER_FIX if aten.cut_reason.endswith(READS_NUMBER) else "")
    reason: Any = getattr(aten.dynamo, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break or aten.kind == "backward":
        return NO_BREAK
    message = read_break(str(reason.reason))
    return GraphBreak(message.reason, _user_line(reason.user_stack), next(iter(message.fixes), ""))


def _user_line(stack: Iterable[Any]) -> str:
    """Returns the line (`file:line`) of the innermost frame that is not in a library; "" without one."""
    frames = [frame for frame in stack if not is_library(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def collect_guards(module: GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[[], tuple[Guard, ...]]:
    """Returns a function that lists the guards on the caller's values for the Dynamo graph that is compiled now.

    These are the dtypes and sizes of its inputs that are not weights, and conditions on other values with the user's
    lines. Dynamo writes the conditions after it has compiled the frame; before that, the function returns the inputs
    only.
    """
    context = TracingContext.try_get()
    recorded = list[DynamoGuard](context.guards_context.dynamo_guards.inner) if context is not None else []
    tensors = _tensor_guards(module, inputs)

    def guards() -> tuple[Guard, ...]:
        others = (described for guard in recorded for described in _describe_guard(guard))
        return tuple(dict.fromkeys((*tensors, *others)))[:_MAX_GUARDS]

    return guards


def _tensor_guards(module: GraphModule, inputs: Sequence[torch.Tensor]) -> list[Guard]:
    """Returns the dtype and the sizes of each input tensor that is not a weight; `*` is a size that may change."""
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    guards = []
    for node, origin in zip(nodes, input_origins(module, inputs), strict=True):
        tensor = node.meta.get("example_value")
        if isinstance(tensor, Tensor) and not origin.is_state:
            sizes = ", ".join(str(size) if isinstance(size, int) else "*" for size in tensor.shape)
            guards.append(Guard(f"{origin.name} is {str(tensor.dtype).removeprefix('torch.')} [{sizes}]"))
    return guards


def _describe_guard(guard: DynamoGuard) -> list[Guard]:
    """Returns the conditions of a guard in the user's names, none for a guard that rarely fails."""
    if guard.create_fn_name() not in _VALUE_GUARDS:
        return []
    line = _user_line(guard.user_stack or ())
    texts = (_VARIABLE.sub(lambda match: source_name(match[0]), text) for text in guard.code_list or ())
    return [Guard(_ADDRESS.sub("…", text), line) for text in texts]


# ---- rows, tables and code -------------------------------------------------------------------------------------------


_OPCODES: Mapping[type[Op], str] = {PlaceholderOp: "placeholder", OutputOp: "output"}
# Buddy-MLIR's name for the kind of a parameter; it has nothing to do with fake tensors.
_PARAMETER = NodeType.FakeNode
# A line of FX code that computes a node: its name, and perhaps its type as a string.
_ASSIGNMENT = re.compile(r"\s+(\w+)(?:: \"[^\"]*\")? = ")


def fx_table(conversion: Conversion) -> str:
    """Returns a table of the FX nodes that have a Buddy node, in the order of the Buddy graph."""
    return _format_table([[n.op, n.name, str(n.target), str(n.args), str(n.kwargs)] for n in conversion.fx_nodes])


def table_of_rows(rows: Sequence[NodeRow]) -> str:
    """Like `fx_table`, from the rows of a graph."""
    return _format_table([[row.opcode, row.name, row.target, row.args, row.kwargs] for row in rows])


def _format_table(cells: Sequence[Sequence[str]]) -> str:
    return tabulate(cells, headers=["opcode", "name", "target", "args", "kwargs"], disable_numparse=True) + "\n"


def fx_code(conversion: Conversion) -> str:
    """Returns the graph as Python text, each value with its element type, shape and strides."""
    graph = conversion.fx_nodes[0].graph
    return graph.python_code("self", verbose=True, include_stride=True).src.strip() + "\n"


def code_lines(code: str, rows: Sequence[NodeRow]) -> tuple[int, ...]:
    """Returns, for each line of `fx_code`, the number of the node's row, from 1; 0 for other lines."""
    numbers = {row.name: number for number, row in enumerate(rows, 1) if row.opcode != "output"}
    matches = (_ASSIGNMENT.match(line) for line in code.splitlines())
    return tuple(numbers.get(match[1], 0) if match else 0 for match in matches)


def make_graph_info(name: str, conversion: Conversion, graph_break: GraphBreak = NO_BREAK) -> GraphInfo:
    """Returns the description of a graph that was captured by TorchDynamo, with one row for each Buddy node."""
    graph = conversion.graph
    pairs = zip(graph.body, conversion.fx_nodes, strict=True)
    positions = {node: index for index, node in enumerate(conversion.fx_nodes)}
    caller_locations: dict[str, int] = {}
    return GraphInfo(
        name,
        tuple(_row(index, op, node, positions, caller_locations) for index, (op, node) in enumerate(pairs)),
        inputs=sum(kind is NodeType.InputNode for kind in graph.kinds),
        parameters=sum(kind is _PARAMETER for kind in graph.kinds),
        dtype=main_dtype(graph.operations),
        break_reason=graph_break.reason,
        break_line=graph_break.line,
        break_fix=graph_break.fix,
        caller_locations=tuple(caller_locations),
    )


def _row(
    index: int, op: Op, node: torch.fx.Node, positions: Mapping[torch.fx.Node, int], caller_locations: dict[str, int]
) -> NodeRow:
    """Returns the row of a node.

    `positions` are the rows of other nodes. `caller_locations` maps lines to indices; the lines that call the node are
    added, and the row has their indices.
    """
    metas = [meta for meta in op.metas if meta is not None]
    result = node.meta.get("val")
    items = result if isinstance(result, (list, tuple)) else [result]
    tensors = [item for item in items if isinstance(item, Tensor)]
    return NodeRow(
        index,
        op.stable,
        node.op,
        node.name,
        str(node.target),
        str(node.args),
        str(node.kwargs),
        shape=", ".join("x".join(map(str, meta.shape)) for meta in metas),
        dtype=", ".join(dict.fromkeys(meta.dtype.value for meta in metas)),
        module=op.module,
        location=op.location,
        strides=", ".join("x".join(map(str, tensor.stride())) for tensor in tensors),
        bytes=sum(_bytes(tensor) for tensor in tensors),
        captured_bytes=_captured_bytes(tensors),
        training=training_role(node),
        # FX nodes of symbolic sizes have no Buddy node, and so no row: they are left out.
        inputs=tuple(positions[source] for source in node.all_input_nodes if source in positions),
        callers=tuple(
            caller_locations.setdefault(line, len(caller_locations)) for line in python_frames(node)[:-1] if op.location
        ),
    )


def ir_graph_info(graph: Graph, name: str, first_phase: str, dialects: tuple[str, ...] = ()) -> GraphInfo:
    """Returns the description of a graph that was imported as IR, of the phase `first_phase`; it has no FX nodes."""
    positions = {op: position for position, op in enumerate(graph.body)}
    return GraphInfo(
        name,
        tuple(_ir_row(position, op, positions) for op, position in positions.items()),
        inputs=sum(kind is NodeType.InputNode for kind in graph.kinds),
        parameters=sum(kind is _PARAMETER for kind in graph.kinds),
        dtype=main_dtype(graph.operations),
        entry_phase=first_phase,
        dialects=dialects,
    )


def _ir_row(position: int, op: Op, positions: Mapping[Op, int]) -> NodeRow:
    """Returns the row of a node that has no FX node; `bytes` is 0 if a size is symbolic."""
    metas = [meta for meta in op.metas if meta is not None]
    sizes = [size for meta in metas for size in meta.shape]
    is_static = all(isinstance(size, int) for size in sizes)
    return NodeRow(
        position,
        op.stable,
        _OPCODES.get(type(op), "call_function"),
        op.name,
        op.target,
        f"({', '.join(map(str, op.args))})",
        str(op.kwargs),
        shape=", ".join("x".join(map(str, meta.shape)) for meta in metas),
        dtype=", ".join(dict.fromkeys(meta.dtype.value for meta in metas)),
        module=op.module,
        location=op.location,
        bytes=sum(prod(meta.shape) * to_torch_dtype(meta.dtype).itemsize for meta in metas) if is_static else 0,
        inputs=tuple(positions[parent] for parent in op.parents),
    )


def _bytes(value: Tensor) -> int:
    """Returns the size of a tensor in bytes, 0 if it is known only at the call."""
    elements = value.numel()
    return elements * value.element_size() if isinstance(elements, int) else 0


def _captured_bytes(tensors: Sequence[Tensor]) -> int:
    """Returns the bytes of tensors in the captured call, for tensors with symbolic sizes.

    Returns 0 if no size is symbolic, because `_bytes` then has the answer, and if a size depends on data.
    """
    counts = [tensor.numel() for tensor in tensors]
    if all(isinstance(elements, int) for elements in counts):
        return 0
    captured_counts = [count if isinstance(count, int) else count.node.hint for count in counts]
    if None in captured_counts:
        return 0
    return sum(int(count) * tensor.element_size() for count, tensor in zip(captured_counts, tensors, strict=True))


def main_dtype(operations: list[Op]) -> str:
    """Returns the most frequent dtype of the ops' first results, "" without ops."""
    counts = Counter(meta.dtype.value for op in operations for meta in op.metas[:1] if meta is not None)
    return counts.most_common(1)[0][0] if counts else ""
