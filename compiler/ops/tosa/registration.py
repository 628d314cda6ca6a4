"""Registers TOSA lowerings: converts operands to `TosaTensor`, and rejects types that TOSA's verifier rejects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.ops.elementwise import promoted_type
from buddy.compiler.ops.elementwise.builder import expression_keywords
from buddy.compiler.ops.registry import Lowering, Registry
from buddy.compiler.ops.structured import empty
from buddy.compiler.ops.tosa.tensors import HALVES, TosaTensor, cast, expanded, is_exact, reshape, rounded, splat
from buddy.compiler.ops.utils import LoweringError, SymbolTable, value_of


def tensor_of(argument: Any, symbol_table: SymbolTable) -> TosaTensor:
    """Returns a node argument as a `TosaTensor`. Raises `LoweringError` if it is not a tensor."""
    value = value_of(argument, symbol_table)
    return TosaTensor(value, argument.tensor_meta.dtype)


def lowering(registry: Registry, *names: str, with_empty_operands: bool = False) -> Callable[[Any], Lowering]:
    """Registers the decorated function as the lowering of the op classes `names`; it may return `TosaTensor`s.

    The lowering raises `LoweringError` for empty tensors; `with_empty_operands` allows them as operands.
    """

    def decorate(function: Any) -> Lowering:
        @wraps(function)
        def lower(node: Op, symbol_table: SymbolTable) -> Any:
            _check_elements([node] if with_empty_operands else [node, *node.parents])
            found = function(node, symbol_table)
            if isinstance(found, list):
                return [item.value if isinstance(item, TosaTensor) else item for item in found]
            return found.value if isinstance(found, TosaTensor) else found

        return registry.lowering(*names)(lower)

    return decorate


def _check_elements(nodes: Sequence[Op]) -> None:
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
) -> Callable[[Any], Any]:
    """Registers the decorated expression on `TosaTensor`s as the lowering of the op classes `names`.

    Tensor arguments are cast to the result's rank and element type or, with `among_operands`, to the type that they
    promote to; those at the positions `uncast` keep their type. Numbers stay numbers, except a first argument. Half
    types are computed in f32 if the expression is `composed` of several ops, or an operand is not exact in the half
    type. With `rounds`, every operand is first rounded to the half type, as in eager.
    """

    def decorate(body: Callable[..., TosaTensor]) -> Callable[..., TosaTensor]:
        known = inspect.signature(body).parameters

        @lowering(registry, *names)
        def lower(node: Op, symbol_table: SymbolTable) -> Any:
            meta = node.tensor_meta
            keywords = expression_keywords(node, known)
            dtype = promoted_type(node.args) if among_operands else meta.dtype
            rounds_to = dtype if rounds and dtype in HALVES else None
            exact = among_operands or _all_exact(node.args, dtype, uncast)
            if dtype in HALVES and (composed or keywords or not exact):
                dtype = TensorDType.Float32
            rank = len(meta.shape)
            given: list[Any] = list(node.args)
            if rounds_to is not None:
                given = [rounded(arg, rounds_to) if _is_number(arg) else arg for arg in given]
                keywords = {key: rounded(value, rounds_to) for key, value in keywords.items()}

            def taken(i: int, arg: Any) -> Any:
                if i != 0 and not isinstance(arg, Op):
                    return arg
                found = operand(arg, rank, symbol_table, None if i in uncast else rounds_to or dtype)
                return cast(found, dtype) if rounds_to is not None else found

            arguments = [taken(i, arg) for i, arg in enumerate(given)]
            return expanded(cast(body(*arguments, **keywords), meta.dtype), meta.shape)

        return body

    return decorate


def _all_exact(arguments: Sequence[Any], dtype: TensorDType, uncast: Sequence[int]) -> bool:
    """True if every operand is of the half type `dtype`, or a number that it represents exactly."""
    operands = [arg for i, arg in enumerate(arguments) if i not in uncast and arg is not None]
    return all(
        arg.tensor_meta.dtype is dtype if isinstance(arg, Op) else not _is_number(arg) or is_exact(arg, dtype)
        for arg in operands
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def operand(argument: Any, rank: int, symbol_table: SymbolTable, dtype: TensorDType | None = None) -> TosaTensor:
    """Returns a tensor or number as a tensor of `rank` dims, because TOSA broadcasts unit dims, but not ranks.

    `dtype` is the element type to cast to; it is required for a number.
    """
    if not isinstance(argument, Op):
        assert dtype is not None
        return splat(argument, [1] * rank, dtype)
    found = tensor_of(argument, symbol_table)
    if dtype is not None:
        found = cast(found, dtype)
    return reshape(found, [1] * (rank - len(found.shape)) + list(found.shape))


def empty_result(meta: TensorMeta) -> Any:
    """Returns a value for a result without elements, which no op reads; TOSA has no such tensors."""
    return empty(meta.shape, meta.dtype)
