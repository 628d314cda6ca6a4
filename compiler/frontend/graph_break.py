"""Determines why and at which line Dynamo broke a graph, and on what conditions it reuses a graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch._guards import Guard as DynamoGuard
from torch._guards import TracingContext
from torch.fx import GraphModule

from buddy.compiler.frontend.aten import AtenGraph, input_origins
from buddy.compiler.frontend.graph_splitter import READS_NUMBER
from buddy.compiler.frontend.names import is_library, source_name
from buddy.compiler.protocol import Guard
from buddy.compiler.protocol.text.graph_breaks import read_break

if TYPE_CHECKING:
    import torch


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
