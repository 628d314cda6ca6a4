"""Registers TOSA lowerings, and rejects element types that TOSA's verifier rejects.

Expressions of element-wise ops get their operands as `TosaTensor`; other lowerings get the node and the symbol table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeGuard

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops.elementwise import promoted_type
from buddy.compiler.ops.elementwise.builder import expression_keywords
from buddy.compiler.ops.structured import empty
from buddy.compiler.ops.tosa.tensors import HALVES, TosaTensor, cast, expand_to, is_exact, reshape, round_to, splat
from buddy.compiler.ops.utils import Lowering, LoweringError, Registry, SymbolTable, value_of


def tensor_of(argument: Op, symbol_table: SymbolTable) -> TosaTensor:
    """Returns a node argument as a `TosaTensor`. Raises `LoweringError` if the argument has no value."""
    value = value_of(argument, symbol_table)
    return TosaTensor(value, argument.tensor_meta.dtype)


def lowering(
    registry: Registry, *names: str, with_empty_operands: bool = False
) -> Callable[[Callable[[Op, SymbolTable], object]], Lowering]:
    """Registers the decorated function as the lowering of the op classes `names`; it may return `TosaTensor`s.

    The lowering raises `LoweringError` for empty tensors; with `with_empty_operands`, operands may be empty.
    """

    def decorate(function: Callable[..., object]) -> Lowering:
        @wraps(function)
        def lower(node: Op, symbol_table: SymbolTable) -> Any:
            _check_tensors([node] if with_empty_operands else [node, *node.parents])
            result = function(node, symbol_table)
            if isinstance(result, list):
                return [item.value if isinstance(item, TosaTensor) else item for item in result]
            return result.value if isinstance(result, TosaTensor) else result

        return registry.lowering(*names)(lower)

    return decorate


def _check_tensors(nodes: Sequence[Op]) -> None:
    """Raises `LoweringError` for an empty tensor, and for an element type that TOSA does not have."""
    metas = [op.metas[0] for op in nodes if op.metas and op.metas[0] is not None]
    if any(0 in meta.shape for meta in metas):
        raise LoweringError("no empty tensors")
    if any(meta.dtype.is_unsigned and meta.dtype not in (TensorDType.Bool, TensorDType.UInt8) for meta in metas):
        raise LoweringError("no unsigned integers of more than 8 bits")


def elementwise(
    registry: Registry,
    *names: str,
    among_operands: bool = False,
    uncast: Sequence[int] = (),
    composed: bool = False,
    rounds: bool = False,
) -> Callable[[Callable[..., TosaTensor]], Callable[..., TosaTensor]]:
    """Registers the decorated expression on `TosaTensor`s as the lowering of the op classes `names`.

    Tensor arguments are reshaped to the result's rank, and cast to its element type or, with `among_operands`, to the
    type that they promote to; arguments at the positions `uncast` keep their type. A number as the first argument
    becomes a tensor; other numbers stay numbers.

    16-bit floats are computed in f32 if the expression is `composed` of several ops, if it gets keyword arguments, or
    if an operand is not exact in the 16-bit type: a tensor of another type, or a number that it cannot represent. With
    `rounds`, operands are first rounded to the 16-bit type, as in eager; arguments at `uncast` are then cast, too.
    """

    def decorate(body: Callable[..., TosaTensor]) -> Callable[..., TosaTensor]:
        parameters = inspect.signature(body).parameters

        @lowering(registry, *names)
        def lower(node: Op, symbol_table: SymbolTable) -> TosaTensor:
            meta = node.tensor_meta
            rank, node_args = len(meta.shape), list(node.args)
            keywords = expression_keywords(node, parameters)
            dtype = promoted_type(node.args) if among_operands else meta.dtype
            # The 16-bit type to which all operands are first rounded, or `None`.
            half = dtype if rounds and dtype in HALVES else None
            if half is not None:
                node_args = [round_to(arg, half) if _is_number(arg) else arg for arg in node_args]
                keywords = {key: round_to(value, half) for key, value in keywords.items()}
            # Operands are exact in the type that they promote to.
            are_exact = among_operands or _all_exact(node.args, dtype, uncast)
            if dtype in HALVES and (composed or keywords or not are_exact):
                dtype = TensorDType.Float32

            def convert(i: int, arg: Any) -> Any:
                """Returns argument `i` as the expression takes it: a tensor, or a number."""
                if i != 0 and not isinstance(arg, Op):
                    return arg
                x = operand(arg, rank, symbol_table, None if i in uncast else half or dtype)
                return x if half is None else cast(x, dtype)

            arguments = [convert(i, arg) for i, arg in enumerate(node_args)]
            return expand_to(cast(body(*arguments, **keywords), meta.dtype), meta.shape)

        return body

    return decorate


def _all_exact(arguments: Sequence[object], dtype: TensorDType, uncast: Sequence[int]) -> bool:
    """True if every operand is a tensor of the type `dtype`, or a number that `dtype` represents exactly."""

    def is_exact_operand(arg: object) -> bool:
        if isinstance(arg, Op):
            return arg.tensor_meta.dtype is dtype
        return not _is_number(arg) or is_exact(arg, dtype)

    return all(is_exact_operand(arg) for i, arg in enumerate(arguments) if i not in uncast)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (bool, int, float))


def operand(argument: Any, rank: int, symbol_table: SymbolTable, dtype: TensorDType | None = None) -> TosaTensor:
    """Returns a tensor or number as a tensor of `rank` dims, because TOSA broadcasts unit dims, but does not add dims.

    `dtype` is the element type to cast to; it is required for a number.
    """
    if not isinstance(argument, Op):
        assert dtype is not None
        return splat(argument, [1] * rank, dtype)
    x = tensor_of(argument, symbol_table)
    if dtype is not None:
        x = cast(x, dtype)
    return reshape(x, [1] * (rank - len(x.shape)) + list(x.shape))


def empty_result(meta: TensorMeta) -> ir.Value:
    """Returns an empty tensor for a result without elements, by an op of another dialect: TOSA has no empty tensors."""
    return empty(meta.shape, meta.dtype)
