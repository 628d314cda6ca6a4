"""Builds a `linalg.generic` from an expression on one element, with broadcasting and type promotion."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import Size
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.scalar import Operand, Scalar, cast
from buddy.compiler.ops.structured import pointwise
from buddy.compiler.ops.utils import LoweringError, Registry, SymbolTable, value_of

if TYPE_CHECKING:
    from buddy.compiler.mlir.bindings import ir

ops_registry = Registry()

# 16-bit floats are computed in f32 and rounded once at the end, as in PyTorch's CPU kernels.
COMPUTE_TYPES = {TensorDType.Float16: TensorDType.Float32, TensorDType.BFloat16: TensorDType.Float32}


def elementwise(
    *names: str, among_operands: bool = False, uncast: Sequence[int] = (), compute_type: TensorDType | None = None,
    narrow: bool = False,
) -> Callable[[Callable[..., Scalar]], Callable[..., Scalar]]:  # fmt: skip
    """Registers the decorated expression as the lowering of the op classes `names`.

    The expression gets a `Scalar` for each tensor argument and Python values for the others. Elements are first cast to
    the result's element type or, with `among_operands`, to the type that the operands promote to (as in comparisons).
    Elements of the arguments at the positions `uncast` keep their type. 16-bit floats are computed in f32. With
    `narrow`, the expression gets them in 16 bits, and widens them itself, so that it can round intermediate results as
    eager does. If `compute_type` is not `None`, all computation is in this type.
    """

    def decorate(body: Callable[..., Scalar]) -> Callable[..., Scalar]:
        def lower(node: Op, symbol_table: SymbolTable) -> ir.Value:
            return lower_expression(
                node, symbol_table, body, among_operands, uncast, compute_type=compute_type, narrow=narrow
            )

        for name in names:
            ops_registry[name] = lower
        return body

    return decorate


def lower_expression(
    node: Op,
    symbol_table: SymbolTable,
    body: Callable[..., Scalar],
    among_operands: bool = False,
    uncast: Sequence[int] = (),
    *,
    compute_type: TensorDType | None = None,
    narrow: bool = False,
    result: int = 0,
) -> ir.Value:
    """Emits one `linalg.generic` that computes `body` for every element of result number `result` of the node.

    See `elementwise` for the other parameters.
    """
    meta = node.metas[result]
    assert meta is not None
    common_type = promoted_type(node.args) if among_operands else meta.dtype
    compute = compute_type or (common_type if narrow else COMPUTE_TYPES.get(common_type, common_type))
    keywords = expression_keywords(node, inspect.signature(body).parameters)
    positions = [i for i, arg in enumerate(node.args) if isinstance(arg, Op)]
    inputs = [(value_of(node.args[i], symbol_table), node.args[i].tensor_meta.dtype) for i in positions]

    def element(*elements: Scalar) -> Scalar:
        arguments = list(node.args)
        for i, x in zip(positions, elements, strict=True):
            # Eager first converts tensors to the result's type, which may round them, but neither numbers nor
            # zero-dimensional tensors.
            is_rounded = not among_operands and compute_type is None and bool(node.args[i].tensor_meta.shape)
            if i not in uncast:
                x = cast(cast(x, meta.dtype) if is_rounded else x, compute)
            arguments[i] = x
        # Expressions apply operators of `Scalar` to the first argument, which may be a number.
        if 0 not in uncast and not isinstance(arguments[0], Scalar):
            arguments[0] = as_scalar(arguments[0], compute)
        return cast(body(*arguments, **keywords), meta.dtype)

    return pointwise(inputs, meta.shape, meta.dtype, element)


# Arguments that only describe the result, which the graph already does.
_RESULT_ARGUMENTS = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "generator"})


def expression_keywords(node: Op, parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Returns the node's keyword arguments that an expression with these `parameters` takes.

    Raises `LoweringError` for any other keyword argument that does not only describe the result, and for too many
    positional arguments.
    """
    ignored = sorted(set(node.kwargs) - set(parameters) - _RESULT_ARGUMENTS)
    ignored += map(str, node.args[_position_count(parameters) :])
    if ignored:
        raise LoweringError(f"the lowering ignores the argument {ignored[0]}")
    return {key: value for key, value in node.kwargs.items() if key in parameters}


def _position_count(parameters: Mapping[str, inspect.Parameter]) -> int:
    """Returns the number of positional arguments that a function with these parameters takes."""
    kinds = [parameter.kind for parameter in parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return sys.maxsize
    return sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)


def widened(x: Scalar) -> Scalar:
    """Returns an operand of a `narrow` expression in the computation type."""
    return cast(x, COMPUTE_TYPES.get(x.dtype, x.dtype))


def rounded_operands(x: Scalar, y: Operand) -> tuple[Scalar, Scalar]:
    """Returns both operands of a `narrow` expression in the computation type; first rounds `y` to the type of `x`."""
    return widened(x), widened(x.like(y))


def as_scalar(value: Operand, dtype: TensorDType) -> Scalar:
    """Returns a scalar, a number or a symbolic size as a scalar of `dtype`."""
    if isinstance(value, Size):
        return cast(s.size_scalar(value), dtype)
    return cast(value, dtype) if isinstance(value, Scalar) else Scalar(s.constant(value, dtype), dtype)


def promoted_type(arguments: Sequence[object]) -> TensorDType:
    """Returns the element type that `arguments` promote to: the widest of the highest category (bool, integer, float).

    As in PyTorch, zero-dimensional tensors count only if their category is higher than that of tensors with dims, and
    Python numbers only if it is higher than that of all tensors.
    """
    metas = [arg.tensor_meta for arg in arguments if isinstance(arg, Op)]
    numbers = [_number_type(arg) for arg in arguments if isinstance(arg, (bool, int, float))]
    result: TensorDType | None = None
    with_dims, zero_dimensional = [m.dtype for m in metas if m.shape], [m.dtype for m in metas if not m.shape]
    for types in (with_dims, zero_dimensional, numbers):
        widest = _widest(types)
        if widest is not None and (result is None or _category(widest) > _category(result)):
            result = widest
    assert result is not None
    return result


def _number_type(value: bool | int | float) -> TensorDType:
    if isinstance(value, bool):
        return TensorDType.Bool
    return TensorDType.Int64 if isinstance(value, int) else TensorDType.Float32


def _category(dtype: TensorDType) -> int:
    """Returns 2 for floats, 1 for integers, 0 for bool."""
    return 2 if dtype.is_float else 1 if dtype.is_integer else 0


# The order of the types in `TensorDType`, which is by width in each category.
_WIDTH_ORDER = {t: i for i, t in enumerate(TensorDType)}


def _widest(types: Sequence[TensorDType]) -> TensorDType | None:
    """Returns the type that `types` promote to; `None` for no types."""
    # These pairs promote to a type that contains both.
    if {TensorDType.Float16, TensorDType.BFloat16} <= set(types):
        types = [*types, TensorDType.Float32]
    if TensorDType.UInt8 in types and TensorDType.Int8 in types:
        types = [*types, TensorDType.Int16]
    return max(types, key=lambda t: (_category(t), _WIDTH_ORDER[t]), default=None)
