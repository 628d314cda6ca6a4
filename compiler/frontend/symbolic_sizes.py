"""Symbolic sizes of torch's graphs: `SymInt` to `Size`, floats computed from sizes, and slices at sizes.

The sizes of compiled code are integers (`graph/sizes.py`), so a symbolic float is computed in a tensor. Symbols that
may be negative, such as integers among the inputs, are named `i0`, `i1`, ….
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from buddy.compiler.graph.sizes import SIGNED, Dim, SymbolSource, from_front, inexact, largest, smallest, symbol

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


class UnknownSymbolError(ValueError):
    """A size that is not determined by inputs, or an expression that `Size` does not support."""


class GraphSymbols:
    """The symbols of one graph. `sources` say where a call finds their values, in the order of their names.

    A number among the inputs that is not determined by others, such as a rounded float, is a separate symbol.
    """

    def __init__(self, placeholders: Iterable[Node]) -> None:
        self._names: dict[str, str] = {}
        self._found: dict[str, SymbolSource] = {}
        self._defined: dict[str, Dim] = {}
        values = [(node.name, node.meta.get("val")) for node in placeholders]
        # A dim of a tensor is the better source: it is never negative, and available from the tensors alone.
        for name, value in values:
            for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                self._bind(size, name, dim)
        numbers = [value for _, value in values if value is not None and not isinstance(value, torch.Tensor)]
        for place, number in enumerate(numbers):
            self._bind(number, "", place)
        for place, number in enumerate(numbers):
            if isinstance(number, torch.SymInt) and not self._tells(number):
                self._name(number, "", place)

    @property
    def sources(self) -> tuple[SymbolSource, ...]:
        return tuple(self._found.values())

    def _bind(self, size: Any, node: str, index: int) -> None:
        expression = _expression(size)
        if type(expression).__name__ == "Symbol" and str(expression) not in self._names:
            self._name(size, node, index)

    def _tells(self, size: torch.SymInt) -> bool:
        try:
            self.size(size)
        except UnknownSymbolError:
            return False
        return True

    def _name(self, size: Any, node: str, index: int) -> None:
        expression = _expression(size)
        counted = node or (isinstance(size, torch.SymInt) and statically_known_true(size >= 0))
        name = self._names[str(expression)] = f"{'s' if counted else SIGNED}{len(self._names)}"
        self._found[name] = SymbolSource(name, node, index)

    def define(self, size: Any, value: Dim) -> None:
        """Defines a torch symbol that is not determined by inputs."""
        expression = _expression(size)
        if type(expression).__name__ == "Symbol" and str(expression) not in self._names:
            self._defined[str(expression)] = value

    def size(self, value: Any) -> Dim:
        """A number, or a `SymInt` in terms of the graph's own symbols.

        Raises `UnknownSymbolError` for a data-dependent size, and for functions that `Size` does not support.
        """
        if isinstance(value, int):
            return value
        return self._converted(_expression(value))

    def _converted(self, expression: Any) -> Dim:
        kind = type(expression).__name__
        if expression.is_Integer:
            return int(expression)
        if str(expression) in self._names:
            return symbol(self._names[str(expression)])
        if str(expression) in self._defined:
            return self._defined[str(expression)]
        if kind == "Symbol":
            raise UnknownSymbolError(f"the size {expression}, which no input tells")
        if kind == "Pow" and expression.exp.is_Integer and expression.exp > 0:
            return functools.reduce(operator.mul, [self._converted(expression.base)] * int(expression.exp))
        if kind not in _FUNCTIONS:
            raise UnknownSymbolError(f"the size {expression}")
        return functools.reduce(_FUNCTIONS[kind], [self._converted(part) for part in expression.args])


_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Mul": operator.mul,
    "FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv,
    "Mod": operator.mod, "PythonMod": operator.mod,
    "Max": functools.partial(inexact, "max"), "Min": functools.partial(inexact, "min"),
}  # fmt: skip


def _expression(size: Any) -> Any:
    """The sympy expression of a size, or the number."""
    return size.node.expr if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) else size


_SLICE, _SELECT = torch.ops.aten.slice.Tensor, torch.ops.aten.select.int
_END = 2**63 - 1


def record_slices(node: Node, symbols: GraphSymbols) -> None:
    """Defines the size and the offset of a slice in `symbols`; ignores other nodes and unknown values.

    Positions are clamped to their dim, like eager's.
    """
    if node.target not in (_SLICE, _SELECT) or not node.meta.get("unbacked_bindings"):
        return
    source, value = node.args[0].meta["val"], node.meta["val"]
    dim = (node.args[1] if len(node.args) > 1 else 0) % source.dim()

    def inside(position: Any, last: Dim) -> Dim:
        number = symbols.size(position.meta["val"] if isinstance(position, Node) else position)
        return smallest(largest(from_front(number, length), 0), last)

    try:
        length, stride, offset = map(symbols.size, (source.shape[dim], source.stride(dim), source.storage_offset()))
        if node.target is _SELECT:
            symbols.define(value.storage_offset(), offset + inside(node.args[2], length - 1) * stride)
            return
        first, last, step = (*node.args[2:], None, None, None)[:3]
        begin, end = inside(first or 0, length), length if last in (None, _END) else inside(last, length)
        symbols.define(value.storage_offset(), offset + begin * stride)
        symbols.define(value.shape[dim], (largest(end - begin, 0) + (step or 1) - 1) // (step or 1))
    except UnknownSymbolError:
        return
