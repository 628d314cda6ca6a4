"""Floats that are computed from sizes (`x * (n / (n - 1))`, attention's `1 / sqrt(d)`) as tensors without dims.

Sizes of compiled code are whole numbers (`graph/sizes.py`), so a symbolic float has to be data.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten

_COMPUTED: dict[Any, Any] = {
    operator.truediv: aten.div.Tensor, operator.mul: aten.mul.Tensor, operator.add: aten.add.Tensor,
    operator.sub: aten.sub.Tensor, operator.pow: aten.pow.Tensor_Tensor, operator.neg: aten.neg.default,
    torch._sym_sqrt: aten.sqrt.default, math.sqrt: aten.sqrt.default,
}  # fmt: skip
# Ops with a number as second argument, and those that compute the same with a tensor.
_READ: dict[Any, Any] = {
    aten.mul.Scalar: aten.mul.Tensor, aten.add.Scalar: aten.add.Tensor, aten.sub.Scalar: aten.sub.Tensor,
    aten.div.Scalar: aten.div.Tensor,
} | {op: op for op in (aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.div.Tensor)}  # fmt: skip
_FILL = (aten.full.default, aten.full_like.default)
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# With results of 16 bits, eager rounds the number that it adds, and multiplies or divides by that of 32 bits.
_WIDENED = (aten.mul.Tensor, aten.div.Tensor)


def computed_in_tensors(module: GraphModule) -> None:
    """Compute the symbolic floats that arithmetic ops and `full` read in float64, as Python does. Those that other ops
    read are left as they are.
    """
    nodes = list(module.graph.nodes)
    if not any(isinstance(node.meta.get("val"), torch.SymFloat) for node in nodes):
        return
    tensors: dict[Node, Node | None] = {}
    changed = [_read_tensor(node, tensors) for node in nodes]
    if any(changed):
        module.graph.eliminate_dead_code()
        module.recompile()


def _read_tensor(node: Node, tensors: dict[Node, Node | None]) -> bool:
    """Make `node` read a tensor where it reads a symbolic float; whether it did."""
    fills = node.target in _FILL
    if (not fills and node.target not in _READ) or len(node.args) != 2:
        return False
    first, number = node.args
    value = node.meta["val"]
    if not _is_symbolic_float(number) or value.dtype not in _DTYPES:
        return False
    if not fills and not isinstance(first, Node):
        return False
    tensor = _as_tensor(number, tensors)
    if tensor is None:
        return False
    with node.graph.inserting_before(node):
        if fills:
            zeros = _called(node, node.target, (first, 0), {**node.kwargs, "dtype": value.dtype})
            made = _called(node, aten.add.Tensor, (zeros, _cast(node, tensor, value.dtype)), {})
        else:
            op = _READ[node.target]
            inner = torch.float32 if value.dtype.itemsize == 2 and op in _WIDENED else value.dtype
            pair = [_cast(node, item, inner) for item in (first, tensor)]
            made = _cast(node, _called(node, op, pair, dict(node.kwargs)), value.dtype)
    node.replace_all_uses_with(made)
    return True


def _cast(node: Node, tensor: Node, dtype: torch.dtype) -> Node:
    if tensor.meta["val"].dtype == dtype:
        return tensor
    return _called(node, aten._to_copy.default, (tensor,), {"dtype": dtype})


def _as_tensor(node: Any, tensors: dict[Node, Node | None]) -> Node | None:
    """A node that computes a symbolic float as a tensor; None where it is made by what has no counterpart."""
    if node not in tensors:
        tensors[node] = _converted(node, tensors)
    return tensors[node]


def _converted(node: Node, tensors: dict[Node, Node | None]) -> Node | None:
    target = torch.sym_float if node.target is float else node.target
    if node.op != "call_function" or (target is not torch.sym_float and target not in _COMPUTED):
        return None
    operands = [_operand(node, item, tensors) for item in node.args]
    if None in operands:
        return None
    if target is torch.sym_float:
        return operands[0]
    with node.graph.inserting_before(node):
        return _called(node, _COMPUTED[target], operands, {})


def _operand(node: Node, item: Any, tensors: dict[Node, Node | None]) -> Node | None:
    """What `node` reads as float64: a symbolic float, a size or a number."""
    if _is_symbolic_float(item):
        return _as_tensor(item, tensors)
    kwargs = {"dtype": torch.float64}
    with node.graph.inserting_before(node):
        if isinstance(item, Node):
            size = _called(node, aten.scalar_tensor.default, (item,), {"dtype": torch.int64})
            return _called(node, aten._to_copy.default, (size,), kwargs)
        return _called(node, aten.scalar_tensor.default, (float(item),), kwargs)


def _is_symbolic_float(item: Any) -> bool:
    return isinstance(item, Node) and isinstance(item.meta.get("val"), torch.SymFloat)


def _called(node: Node, target: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Node:
    """A new call at the place of `node`, of its line of the program."""
    made = node.graph.call_function(target, tuple(args), kwargs)
    values = torch.fx.node.map_arg((made.args, made.kwargs), lambda item: item.meta["val"])
    with _fake_mode(node):
        value = target(*values[0], **values[1])
    made.meta = {**node.meta, "val": value}
    return made


def _fake_mode(node: Node) -> Any:
    """The mode in which the graph's tensors are fakes."""
    return next(found.fake_mode for item in node.graph.nodes if hasattr(found := item.meta.get("val"), "fake_mode"))
