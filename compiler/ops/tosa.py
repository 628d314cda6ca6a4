"""The TOSA registry: TOSA ops wherever TOSA has one for the meaning, the element type and the rank.

What TOSA cannot say raises `LoweringError`, and the node falls to the next registry with that reason beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from buddy.compiler.bindings import ir, tosa
from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops.reductions import axes_of
from buddy.compiler.ops.registry import Lowering, Registry
from buddy.compiler.ops.structured import shape_of
from buddy.compiler.ops.utils import (
    LoweringError,
    SymbolTable,
    argument,
    constant_attribute,
    meta_type,
    mlir_element_type_get,
    normalized,
    permutation_of,
    tensor_type,
    value_of,
)  # fmt: skip

ops_registry = Registry()


def lowering(*names: str) -> Callable[[Lowering], Lowering]:
    """Register the decorated function for tensors that have elements: TOSA's verifier takes no others."""

    def decorate(function: Lowering) -> Lowering:
        @wraps(function)
        def lower(node: Op, symbol_table: SymbolTable) -> Any:
            metas = (meta for op in (node, *node.parents) for meta in op.metas if meta is not None)
            if any(0 in meta.shape for meta in metas):
                raise LoweringError("TOSA has no empty tensors")
            return function(node, symbol_table)

        return ops_registry.lowering(*names)(lower)

    return decorate


_FLOATS = (TensorDType.Float32, TensorDType.Float16, TensorDType.BFloat16)
_NUMBERS = (*_FLOATS, TensorDType.Int32)


def _splat(value: float, shape: Sequence[int], dtype: TensorDType) -> Any:
    kind = tensor_type(shape, dtype)
    return tosa.const(ir.DenseElementsAttr.get_splat(kind, constant_attribute(value, dtype)), results=[kind])


def _shape(sizes: Sequence[int]) -> Any:
    kind = ir.Type.parse(f"!tosa.shape<{len(sizes)}>")
    values = np.array(sizes, dtype=np.int64)
    return tosa.const_shape(kind, ir.DenseIntElementsAttr.get(values, type=ir.IndexType.get()))


def reshape(value: Any, sizes: Sequence[int], dtype: TensorDType) -> Any:
    if shape_of(value) == tuple(sizes):
        return value
    return tosa.reshape(value, _shape(sizes), results=[tensor_type(sizes, dtype)])


def _require(dtype: TensorDType, allowed: Sequence[TensorDType], op_name: str) -> None:
    if dtype not in allowed:
        raise LoweringError(f"tosa.{op_name} does not take {dtype.value}")


def _operand(arg: Any, rank: int, dtype: TensorDType, symbol_table: SymbolTable) -> Any:
    """A tensor or number as a tensor of `rank` dims: TOSA broadcasts unit dims, but does not add dims."""
    if not isinstance(arg, Op):
        return _splat(arg, [1] * rank, dtype)
    if arg.tensor_meta.dtype is not dtype:
        raise LoweringError(f"TOSA promotes nothing: {arg.tensor_meta.dtype.value} beside {dtype.value}")
    value = value_of(arg, symbol_table)
    shape = shape_of(value)
    return reshape(value, [1] * (rank - len(shape)) + list(shape), dtype)


def _operands(node: Op, symbol_table: SymbolTable, dtype: TensorDType) -> list[Any]:
    rank = len(node.tensor_meta.shape)
    return [_operand(arg, rank, dtype, symbol_table) for arg in node.args]


# ---- element-wise ----------------------------------------------------------------------------------------------------


def _binary(name: str, op_name: str, allowed: Sequence[TensorDType] = _NUMBERS) -> None:
    @lowering(name)
    def lower(node: Op, symbol_table: SymbolTable) -> Any:
        meta = node.tensor_meta
        _require(meta.dtype, allowed, op_name)
        if node.kwargs.get("alpha", 1) != 1:
            raise LoweringError(f"tosa.{op_name} has no factor for its second operand")
        a, b = _operands(node, symbol_table, meta.dtype)
        extra = [_splat(0, [1], TensorDType.Int8)] if op_name == "mul" else []
        return getattr(tosa, op_name)(meta_type(meta), a, b, *extra)


for _name, _op in {
    "AddOp": "add", "SubOp": "sub", "MulOp": "mul", "MaximumOp": "maximum", "MinimumOp": "minimum",
}.items():  # fmt: skip
    _binary(_name, _op)
_binary("LogicalAndOp", "logical_and", [TensorDType.Bool])
_binary("LogicalOrOp", "logical_or", [TensorDType.Bool])


def _unary(name: str, op_name: str, allowed: Sequence[TensorDType] = _FLOATS) -> None:
    @lowering(name)
    def lower(node: Op, symbol_table: SymbolTable) -> Any:
        meta = node.tensor_meta
        _require(meta.dtype, allowed, op_name)
        (x,) = _operands(node, symbol_table, meta.dtype)
        return getattr(tosa, op_name)(meta_type(meta), x)


for _name, _op in {
    "ExpOp": "exp", "LogOp": "log", "ErfOp": "erf", "TanhOp": "tanh", "SigmoidOp": "sigmoid", "AbsOp": "abs",
    "ReciprocalOp": "reciprocal", "RsqrtOp": "rsqrt", "FloorOp": "floor", "CeilOp": "ceil", "SinOp": "sin",
    "CosOp": "cos",
}.items():  # fmt: skip
    _unary(_name, _op)
_unary("LogicalNotOp", "logical_not", [TensorDType.Bool])


@lowering("DivOp")
def div(node: Op, symbol_table: SymbolTable) -> Any:
    """`a * (1 / b)` for a number `b` that is a power of two, where it is exact; TOSA has no other float division."""
    meta, divisor = node.tensor_meta, node.args[1]
    _require(meta.dtype, _FLOATS, "mul")
    if isinstance(divisor, Op) or not divisor or float(np.frexp(divisor)[0]) not in (0.5, -0.5):
        raise LoweringError("TOSA has no float division, and a product with the reciprocal rounds twice")
    x = _operand(node.args[0], len(meta.shape), meta.dtype, symbol_table)
    factor = _splat(1.0 / divisor, [1] * len(meta.shape), meta.dtype)
    return tosa.mul(meta_type(meta), x, factor, _splat(0, [1], TensorDType.Int8))


@lowering("NegOp")
def neg(node: Op, symbol_table: SymbolTable) -> Any:
    meta = node.tensor_meta
    _require(meta.dtype, _FLOATS, "negate")
    (x,) = _operands(node, symbol_table, meta.dtype)
    zero = _splat(0, [1], meta.dtype)
    return tosa.negate(meta_type(meta), x, zero, zero)


@lowering("ReluOp")
def relu(node: Op, symbol_table: SymbolTable) -> Any:
    meta = node.tensor_meta
    _require(meta.dtype, _FLOATS, "clamp")
    (x,) = _operands(node, symbol_table, meta.dtype)
    low, high = constant_attribute(0.0, meta.dtype), constant_attribute(float("inf"), meta.dtype)
    return tosa.clamp(meta_type(meta), x, low, high)


def _comparison(name: str, op_name: str, swapped: bool = False) -> None:
    @lowering(name)
    def lower(node: Op, symbol_table: SymbolTable) -> Any:
        meta, dtype = node.tensor_meta, node.args[0].tensor_meta.dtype
        _require(dtype, _NUMBERS, op_name)
        a, b = _operands(node, symbol_table, dtype)
        operands = (b, a) if swapped else (a, b)
        if op_name == "equal":
            return tosa.equal(*operands, results=[meta_type(meta)])
        return getattr(tosa, op_name)(meta_type(meta), *operands)


_comparison("EqualOp", "equal")
_comparison("GtOp", "greater")
_comparison("GeOp", "greater_equal")
_comparison("LtOp", "greater", swapped=True)
_comparison("LeOp", "greater_equal", swapped=True)


@lowering("WhereOp")
def where(node: Op, symbol_table: SymbolTable) -> Any:
    meta = node.tensor_meta
    _require(meta.dtype, _NUMBERS, "select")
    rank = len(meta.shape)
    condition = _operand(node.args[0], rank, TensorDType.Bool, symbol_table)
    yes, no = (_operand(arg, rank, meta.dtype, symbol_table) for arg in node.args[1:3])
    return tosa.select(meta_type(meta), condition, yes, no)


# ---- products --------------------------------------------------------------------------------------------------------


def _product(a: Any, b: Any, dtype: TensorDType) -> Any:
    """`a @ b` on rank-3 values."""
    _require(dtype, [TensorDType.Float32], "matmul")
    (batch, rows, _), columns = shape_of(a), shape_of(b)[2]
    zero = _splat(0, [1], dtype)
    return tosa.matmul(tensor_type([batch, rows, columns], dtype), a, b, zero, zero)


def _product_2d(node: Op, symbol_table: SymbolTable, first: int) -> Any:
    a, b = (value_of(arg, symbol_table) for arg in node.args[first : first + 2])
    dtype, shape = node.tensor_meta.dtype, node.tensor_meta.shape
    product = _product(reshape(a, [1, *shape_of(a)], dtype), reshape(b, [1, *shape_of(b)], dtype), dtype)
    return reshape(product, shape, dtype)


@lowering("MatmulOp")
def matmul(node: Op, symbol_table: SymbolTable) -> Any:
    return _product_2d(node, symbol_table, 0)


@lowering("BatchMatmulOp")
def batch_matmul(node: Op, symbol_table: SymbolTable) -> Any:
    a, b = (value_of(arg, symbol_table) for arg in node.args[:2])
    return _product(a, b, node.tensor_meta.dtype)


@lowering("AddMMOp")
def addmm(node: Op, symbol_table: SymbolTable) -> Any:
    if node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("beta", 1) != 1:
        raise LoweringError("TOSA would need extra products for alpha and beta")
    meta = node.tensor_meta
    bias = _operand(node.args[0], len(meta.shape), meta.dtype, symbol_table)
    return tosa.add(meta_type(meta), _product_2d(node, symbol_table, 1), bias)


# ---- shapes and reductions -------------------------------------------------------------------------------------------


@lowering("ViewOp", "ReshapeOp", "UnsqueezeOp", "SqueezeOp")
def view(node: Op, symbol_table: SymbolTable) -> Any:
    meta = node.tensor_meta
    return reshape(value_of(node.args[0], symbol_table), meta.shape, meta.dtype)


@lowering("TOp", "TransposeOp", "PermuteOp")
def permute(node: Op, symbol_table: SymbolTable) -> Any:
    value, order = value_of(node.args[0], symbol_table), permutation_of(node)
    if order == sorted(order):
        return value
    return tosa.transpose(meta_type(node.tensor_meta), value, ir.DenseI32ArrayAttr.get(order))


@lowering("CatOp")
def cat(node: Op, symbol_table: SymbolTable) -> Any:
    meta = node.tensor_meta
    if any(part.tensor_meta.dtype is not meta.dtype for part in node.args[0]):
        raise LoweringError("tosa.concat takes tensors of one element type")
    parts = [value_of(part, symbol_table) for part in node.args[0]]
    return tosa.concat(
        parts, _axis(normalized(argument(node, 1, "dim", 0), len(meta.shape))), results=[meta_type(meta)]
    )


def _axis(axis: int) -> Any:
    return ir.IntegerAttr.get(mlir_element_type_get(TensorDType.Int32), axis)


def _reduction(name: str, op_name: str, allowed: Sequence[TensorDType]) -> None:
    @lowering(name)
    def lower(node: Op, symbol_table: SymbolTable) -> Any:
        meta, source = node.tensor_meta, node.args[0].tensor_meta
        _require(source.dtype, allowed, op_name)
        if meta.dtype is not source.dtype:
            raise LoweringError(f"tosa.{op_name} reduces tensors in their own element type")
        value, shape = value_of(node.args[0], symbol_table), list(source.shape)
        for axis in axes_of(argument(node, 1, "dim"), len(shape)):
            shape[axis] = 1
            value = getattr(tosa, op_name)(value, _axis(axis), results=[tensor_type(shape, meta.dtype)])
        return reshape(value, meta.shape, meta.dtype)


_reduction("SumDimOp", "reduce_sum", [TensorDType.Float32, TensorDType.Int32])
_reduction("AmaxOp", "reduce_max", _NUMBERS)
_reduction("AminOp", "reduce_min", _NUMBERS)
