"""Formats a captured graph as a table like `print_tabular`'s and as Python code, and describes it for the client."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from tabulate import tabulate
from torch import Tensor

from buddy.compiler.frontend.convert import Conversion
from buddy.compiler.frontend.graph_break import NO_BREAK, GraphBreak
from buddy.compiler.frontend.names import python_frames
from buddy.compiler.frontend.saved_tensors import training_role
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import Op, OutputOp, PlaceholderOp
from buddy.compiler.graph.types import NodeType
from buddy.compiler.protocol import GraphInfo, NodeRow
from buddy.compiler.runtime.torch_values import to_torch_dtype

if TYPE_CHECKING:
    import torch


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

    `positions` are the rows of other nodes. Adds the lines that call the node to `caller_locations`, each with its
    index there, by which the row refers to it.
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

    Returns 0 if no size is symbolic, so that `_bytes` has the answer, and if a size depends on data.
    """
    counts = [tensor.numel() for tensor in tensors]
    if all(isinstance(elements, int) for elements in counts):
        return 0
    known = [elements if isinstance(elements, int) else elements.node.hint for elements in counts]
    if None in known:
        return 0
    return sum(int(n) * tensor.element_size() for n, tensor in zip(known, tensors, strict=True))


def main_dtype(operations: list[Op]) -> str:
    """Returns the most frequent dtype of the ops' first results, "" without ops."""
    counts = Counter(meta.dtype.value for op in operations for meta in op.metas[:1] if meta is not None)
    return counts.most_common(1)[0][0] if counts else ""
