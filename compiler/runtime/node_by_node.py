"""Evaluates a Buddy graph in eager, node by node, and returns the values of selected nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from buddy.compiler.graph.graph import Graph, symbols_of
from buddy.compiler.graph.operation import GetItemOp, Op
from buddy.compiler.graph.serialize import Opaque
from buddy.compiler.graph.sizes import Size, value_of
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.runtime.callbacks import resolve
from buddy.compiler.runtime.sizes import bind
from buddy.compiler.runtime.torch_values import from_opaque, to_torch

# The seed of random numbers on both sides of a run.
SEED = 0


def symbols_at(graph: Graph, tensors: Sequence[torch.Tensor], numbers: Sequence[Any] = ()) -> dict[str, int]:
    """Returns the values of symbolic sizes in a call of `graph` on `tensors` and `numbers`."""
    return bind(symbols_of(graph), tensors, numbers)


def values_of(
    graph: Graph, tensors: Sequence[torch.Tensor], wanted: Collection[str], numbers: Sequence[Any] = ()
) -> dict[str, Any]:
    """Returns the values of the nodes named `wanted` when `graph` runs on `tensors`, its placeholders in order.

    Random ops draw from torch's own generator, in the program's order. Values are released after their last reader, and
    nodes after the last wanted one are not computed. Raises what an op raises.
    """
    symbols = symbols_at(graph, tensors, numbers)
    table: dict[str, Any] = {op.name: tensor for op, tensor in zip(graph.placeholders, tensors, strict=True)}
    readers = Counter(parent.name for op in graph.operations for parent in op.parents)
    missing = set(wanted) - table.keys()
    with torch.no_grad():
        for op in graph.operations:
            if not missing:
                break
            table[op.name] = compute_nodes(op, table, symbols)
            missing.discard(op.name)
            readers.subtract(parent.name for parent in op.parents)
            for read in (op, *op.parents):
                if readers[read.name] <= 0 and read.name not in wanted:
                    table.pop(read.name, None)
    return {name: table[name] for name in wanted}


def results_of(graph: Graph, tensors: Sequence[torch.Tensor], numbers: Sequence[Any] = ()) -> list[Any]:
    """Returns the results of `graph` on `tensors` and `numbers`, in order."""
    found = values_of(graph, tensors, {op.name for op in graph.results if isinstance(op, Op)}, numbers)
    return [found[op.name] if isinstance(op, Op) else op for op in graph.results]


def compute_nodes(op: Op, table: Mapping[str, Any], symbols: Mapping[str, int]) -> Any:
    """Returns the result of one node, with operands by name in `table`. Raises what its op raises."""
    arguments = [_to_torch_argument(argument, table, symbols) for argument in op.args]
    keywords = {key: _to_torch_argument(argument, table, symbols) for key, argument in op.kwargs.items()}
    if isinstance(op, GetItemOp):
        return arguments[0][arguments[1]]
    return resolve(op.target)(*arguments, **keywords)


def _to_torch_argument(value: Any, table: Mapping[str, Any], symbols: Mapping[str, int]) -> Any:
    """Converts an argument of a node to torch's form."""
    if isinstance(value, Op):
        return table[value.name]
    if isinstance(value, Size):
        return value_of(value, symbols)
    if isinstance(value, TensorDType):
        return to_torch(value)
    if isinstance(value, Opaque):
        return from_opaque(value.text)
    if isinstance(value, (list, tuple)):
        return [_to_torch_argument(item, table, symbols) for item in value]
    return value
