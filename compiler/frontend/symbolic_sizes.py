"""Converts symbolic sizes of torch's graphs: `SymInt` to `Size`, and floats that are computed from sizes to tensors.

Symbols are named after their kind: `s0`, `s1`, … are sizes, and `i0`, `i1`, … may be negative, such as numbers among
the inputs. Sizes of compiled code are integers (`graph/sizes.py`), so a symbolic float has to be data.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from buddy.compiler.graph.sizes import (
    SIGNED_PREFIX,
    Dim,
    SymbolSource,
    apply_operation,
    index_from_front,
    largest,
    smallest,
    symbol,
)
from buddy.compiler.protocol.errors import BuddyError

if TYPE_CHECKING:
    import sympy
    from torch._subclasses.fake_tensor import FakeTensorMode


aten = torch.ops.aten

# Ops that compute symbolic floats, and the ATen ops that compute the same with tensors.
_FLOAT_OPS: dict[Any, Any] = {
    operator.truediv: aten.div.Tensor, operator.mul: aten.mul.Tensor, operator.add: aten.add.Tensor,
    operator.sub: aten.sub.Tensor, operator.pow: aten.pow.Tensor_Tensor, operator.neg: aten.neg.default,
    torch._sym_sqrt: aten.sqrt.default, math.sqrt: aten.sqrt.default,
}  # fmt: skip
# Ops whose second argument may be a number, and the ATen ops that compute the same with a tensor.
_ARITHMETIC_OPS: dict[Any, Any] = {
    aten.mul.Scalar: aten.mul.Tensor, aten.add.Scalar: aten.add.Tensor, aten.sub.Scalar: aten.sub.Tensor,
    aten.div.Scalar: aten.div.Tensor,
} | {op: op for op in (aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.div.Tensor)}  # fmt: skip
_FILL_OPS = (aten.full.default, aten.full_like.default)
# The result dtypes of ops whose float operand may be replaced.
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# For 16-bit results, eager multiplies and divides by a number in 32 bits, but rounds a number that it adds to 16 bits.
_WIDENED_OPS = (aten.mul.Tensor, aten.div.Tensor)


def compute_floats_as_tensors(module: GraphModule) -> None:
    """Replaces the symbolic floats that arithmetic ops and `full` read by float64 tensors, with Python's precision.

    Symbolic floats that other ops read stay unchanged.
    """
    nodes = list(module.graph.nodes)
    if not any(isinstance(node.meta.get("val"), torch.SymFloat) for node in nodes):
        return
    tensors: dict[Node, Node | None] = {}
    changed = [_replace_float_operand(node, tensors) for node in nodes]
    if any(changed):
        module.graph.eliminate_dead_code()
        module.recompile()


def _replace_float_operand(node: Node, tensors: dict[Node, Node | None]) -> bool:
    """Replaces a symbolic float that `node` reads by a tensor; returns whether it was replaced."""
    is_fill = node.target in _FILL_OPS
    if (not is_fill and node.target not in _ARITHMETIC_OPS) or len(node.args) != 2:
        return False
    operand, symbolic_float = node.args
    value = node.meta["val"]
    if not _is_symbolic_float(symbolic_float) or value.dtype not in _DTYPES:
        return False
    if not is_fill and not isinstance(operand, Node):
        return False
    tensor = _as_tensor(symbolic_float, tensors)
    if tensor is None:
        return False
    with node.graph.inserting_before(node):
        if is_fill:
            zeros = _add_call(node, node.target, (operand, 0), {**node.kwargs, "dtype": value.dtype})
            result = _add_call(node, aten.add.Tensor, (zeros, _cast(node, tensor, value.dtype)), {})
        else:
            op = _ARITHMETIC_OPS[node.target]
            compute_type = torch.float32 if value.dtype.itemsize == 2 and op in _WIDENED_OPS else value.dtype
            operands = [_cast(node, item, compute_type) for item in (operand, tensor)]
            result = _cast(node, _add_call(node, op, operands, dict(node.kwargs)), value.dtype)
    node.replace_all_uses_with(result)
    return True


def _cast(node: Node, tensor: Node, dtype: torch.dtype) -> Node:
    """Returns `tensor` converted to `dtype`, with the provenance of `node`."""
    if tensor.meta["val"].dtype == dtype:
        return tensor
    return _add_call(node, aten._to_copy.default, (tensor,), {"dtype": dtype})


def _as_tensor(node: torch.fx.Node, tensors: dict[Node, Node | None]) -> Node | None:
    """Returns a node that computes the symbolic float `node` as a tensor; `tensors` caches the results.

    Returns None if an op of the computation has no counterpart for tensors.
    """
    if node not in tensors:
        tensors[node] = _convert_float(node, tensors)
    return tensors[node]


def _convert_float(node: Node, tensors: dict[Node, Node | None]) -> Node | None:
    """Adds the node that `_as_tensor` returns, and the nodes that it reads, to the graph; returns it, or None."""
    target = torch.sym_float if node.target is float else node.target
    if node.op != "call_function" or (target is not torch.sym_float and target not in _FLOAT_OPS):
        return None
    operands = [_operand(node, item, tensors) for item in node.args]
    if None in operands:
        return None
    if target is torch.sym_float:
        return operands[0]
    with node.graph.inserting_before(node):
        return _add_call(node, _FLOAT_OPS[target], operands, {})


def _operand(node: Node, item: int | float | Node, tensors: dict[Node, Node | None]) -> Node | None:
    """Returns an operand of `node` (a symbolic float, a size or a number) as a float64 tensor."""
    if _is_symbolic_float(item):
        return _as_tensor(item, tensors)
    kwargs = {"dtype": torch.float64}
    with node.graph.inserting_before(node):
        if isinstance(item, Node):
            size = _add_call(node, aten.scalar_tensor.default, (item,), {"dtype": torch.int64})
            return _add_call(node, aten._to_copy.default, (size,), kwargs)
        return _add_call(node, aten.scalar_tensor.default, (float(item),), kwargs)


def _is_symbolic_float(item: object) -> bool:
    return isinstance(item, Node) and isinstance(item.meta.get("val"), torch.SymFloat)


def _add_call(node: Node, target: Callable[..., object], args: Sequence[object], kwargs: dict[str, object]) -> Node:
    """Adds a call at the insertion point, with the provenance of `node`."""
    call = node.graph.call_function(target, tuple(args), kwargs)
    values = torch.fx.node.map_arg((call.args, call.kwargs), lambda item: item.meta["val"])
    with _fake_mode(node):
        value = target(*values[0], **values[1])
    call.meta = {**node.meta, "val": value}
    return call


def _fake_mode(node: Node) -> FakeTensorMode:
    """Returns the fake mode of the graph's tensors."""
    values = (item.meta.get("val") for item in node.graph.nodes)
    return next(value.fake_mode for value in values if hasattr(value, "fake_mode"))


class UnknownSymbolError(BuddyError, ValueError):
    """No input determines a size, or the size has an expression that `Size` does not support."""


class GraphSymbols:
    """The symbols of one graph. `sources` says where a call finds the value of each symbol, in the order of names.

    A number among the inputs that other inputs do not determine, such as a rounded float, is a separate symbol.
    """

    def __init__(self, placeholders: Iterable[Node]) -> None:
        self._names: dict[str, str] = {}
        self._sources: dict[str, SymbolSource] = {}
        self._defined: dict[str, Dim] = {}
        values = [(node.name, node.meta.get("val")) for node in placeholders]
        # A dim of a tensor is the better source: it is never negative, and available from the tensors alone.
        for name, value in values:
            for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                self._bind(size, name, dim)
        numbers = [value for _, value in values if value is not None and not isinstance(value, torch.Tensor)]
        for index, number in enumerate(numbers):
            self._bind(number, "", index)
        for index, number in enumerate(numbers):
            if isinstance(number, torch.SymInt) and not self._is_determined(number):
                self._name(number, "", index)

    @property
    def sources(self) -> tuple[SymbolSource, ...]:
        return tuple(self._sources.values())

    def _bind(self, size: int | torch.SymInt, node: str, index: int) -> None:
        """Names a size if it is a torch symbol without a name.

        The size is dim `index` of the input `node`, or number `index` among the inputs if `node` is "".
        """
        expression = _expression(size)
        if type(expression).__name__ == "Symbol" and str(expression) not in self._names:
            self._name(size, node, index)

    def _is_determined(self, size: torch.SymInt) -> bool:
        """True if a size can be computed from the symbols that have names."""
        try:
            self.size(size)
        except UnknownSymbolError:
            return False
        return True

    def _name(self, size: int | torch.SymInt, node: str, index: int) -> None:
        """Gives a size the next name, and records its source; see `_bind`."""
        expression = _expression(size)
        is_nonnegative = node or (isinstance(size, torch.SymInt) and statically_known_true(size >= 0))
        name = self._names[str(expression)] = f"{'s' if is_nonnegative else SIGNED_PREFIX}{len(self._names)}"
        self._sources[name] = SymbolSource(name, node, index)

    def define(self, size: int | torch.SymInt, value: Dim) -> None:
        """Defines `size`, if it is a torch symbol that inputs do not determine, as `value`."""
        expression = _expression(size)
        if type(expression).__name__ == "Symbol" and str(expression) not in self._names:
            self._defined[str(expression)] = value

    def size(self, value: int | torch.SymInt) -> Dim:
        """Converts a size: a number is unchanged, and a `SymInt` is expressed by the graph's symbols.

        An expression such as `s0 // 3` that the graph's guards set to 1 becomes 1, because dims of size 1 are
        broadcast. Raises `UnknownSymbolError` for a data-dependent size, and for functions that `Size` does not
        support.
        """
        if isinstance(value, int):
            return value
        # The proof is slow; most sizes are not 1 in the call that is traced.
        if isinstance(value, torch.SymInt) and value.node.hint == 1 and statically_known_true(value == 1):
            return 1
        return self._convert(_expression(value))

    def _convert(self, expression: sympy.Expr) -> Dim:
        """Converts a sympy expression to the graph's symbols; see `size`."""
        class_name = type(expression).__name__
        if expression.is_Integer:
            return int(expression)
        if str(expression) in self._names:
            return symbol(self._names[str(expression)])
        if str(expression) in self._defined:
            return self._defined[str(expression)]
        if class_name == "Symbol":
            raise UnknownSymbolError(f"the size {expression}, which no input determines")
        if class_name == "Pow" and expression.exp.is_Integer and expression.exp > 0:
            return functools.reduce(operator.mul, [self._convert(expression.base)] * int(expression.exp))
        if class_name not in _FUNCTIONS:
            raise UnknownSymbolError(f"the size {expression}")
        return functools.reduce(_FUNCTIONS[class_name], [self._convert(part) for part in expression.args])


# The functions of `Size` by the class names of sympy and of torch.
_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Mul": operator.mul,
    "FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv,
    "Mod": operator.mod, "PythonMod": operator.mod,
    "Max": functools.partial(apply_operation, "max"), "Min": functools.partial(apply_operation, "min"),
}  # fmt: skip


def _expression(size: int | torch.SymInt) -> sympy.Expr | int:
    """Returns the sympy expression of a size, or the number."""
    return size.node.expr if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) else size


_SLICE, _SELECT = torch.ops.aten.slice.Tensor, torch.ops.aten.select.int
# The end of a slice that goes to the end of its dim.
_SLICE_TO_END = 2**63 - 1


def record_slices(node: Node, symbols: GraphSymbols) -> None:
    """Defines the size and the offset of a slice in `symbols`; ignores other nodes and unknown values.

    PyTorch may make new symbols for the size and the offset if a position of the slice is symbolic. Positions are
    clamped to their dim, like eager's.
    """
    if node.target not in (_SLICE, _SELECT) or not node.meta.get("unbacked_bindings"):
        return
    source, value = node.args[0].meta["val"], node.meta["val"]
    dim = (node.args[1] if len(node.args) > 1 else 0) % source.dim()

    def clamp(position: int | torch.SymInt, stop: Dim) -> Dim:
        """Returns a position in [0, `stop`]; a negative one counts from the end."""
        index = symbols.size(position.meta["val"] if isinstance(position, Node) else position)
        return smallest(largest(index_from_front(index, length), 0), stop)

    try:
        length, stride, offset = map(symbols.size, (source.shape[dim], source.stride(dim), source.storage_offset()))
        if node.target is _SELECT:
            symbols.define(value.storage_offset(), offset + clamp(node.args[2], length - 1) * stride)
            return
        start, stop, step = (*node.args[2:], None, None, None)[:3]
        begin = clamp(start or 0, length)
        end = length if stop in (None, _SLICE_TO_END) else clamp(stop, length)
        step = step or 1
        symbols.define(value.storage_offset(), offset + begin * stride)
        symbols.define(value.shape[dim], (largest(end - begin, 0) + step - 1) // step)  # rounded up
    except UnknownSymbolError:
        return
