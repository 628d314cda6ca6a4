"""Lowers matrix products, grouped products as in mixtures of experts, and attention, which has two products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.ops import reductions
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.indexing import broadcast_shape, fall_back_if_outside
from buddy.compiler.ops.loops import LoopState, compare, element, minus, pick, plus, position, scalar_to_index
from buddy.compiler.ops.precision import emit_product, int4_product
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import (
    PARALLEL,
    accumulator_type,
    cast_tensor,
    contract,
    empty,
    generic,
    loop_index,
    pointwise,
    reduce,
    reshape,
    shape_of,
)
from buddy.compiler.ops.utils import LoweringError, Registry, SymbolTable, argument, value_of

ops_registry = Registry()
lowering = ops_registry.lowering


def contract_exact(a: ir.Value, b: ir.Value, a_dims: str, b_dims: str, out_dims: str, dtype: TensorDType) -> ir.Value:
    """Emits a contraction of tensors of element type `dtype`.

    Raises `LoweringError` for an element type that needs a wider accumulator.
    """
    if dtype not in (TensorDType.Float32, TensorDType.Float64) and not dtype.is_integer:
        raise LoweringError(f"no matrix product of {dtype.value}: it needs a wider accumulator")
    return contract(a, b, a_dims, b_dims, out_dims, dtype)


def _operands(node: Op, symbol_table: SymbolTable, first: int = 0) -> tuple[ir.Value, ir.Value]:
    """Returns both operands of a product: arguments `first` and `first + 1` of the node."""
    return value_of(node.args[first], symbol_table), value_of(node.args[first + 1], symbol_table)


def _register_product(name: str, a_dims: str, b_dims: str, out_dims: str) -> None:
    """Registers a lowering of the product of two tensors, in the index notation of `structured.contract`."""

    @lowering(name)
    def lower(node: Op, symbol_table: SymbolTable) -> ir.Value:
        dtype = node.tensor_meta.dtype
        sums, wide = emit_product(*_operands(node, symbol_table), a_dims, b_dims, out_dims, dtype)
        return cast_tensor(sums, wide, dtype)


_register_product("MatmulOp", "mk", "kn", "mn")
_register_product("BatchMatmulOp", "bmk", "bkn", "bmn")
_register_product("TransposeMatmulFusedOp", "mk", "nk", "mn")
_register_product("MatVecOp", "mk", "k", "m")
_register_product("DotOp", "k", "k", "")


@lowering("Int4MatmulOp")
def lower_int4_product(node: Op, symbol_table: SymbolTable) -> ir.Value:
    x, steps, scales = (value_of(operand, symbol_table) for operand in node.args)
    if node.tensor_meta.dtype is not TensorDType.Float32:
        raise LoweringError(f"no product of {node.tensor_meta.dtype.value} with 4-bit weights")
    result: ir.Value = int4_product(x, steps, scales)
    return result


@lowering("IntMatmulOp")
def multiply_bytes(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Multiplies matrices of 8-bit integers, each signed or unsigned, with 32-bit accumulation."""
    unsigned = node.args[0].tensor_meta.dtype.is_unsigned, node.args[1].tensor_meta.dtype.is_unsigned
    return contract(*_operands(node, symbol_table), "mk", "kn", "mn", node.tensor_meta.dtype, unsigned=unsigned)


def _register_product_plus_addend(name: str, a_dims: str, b_dims: str, out_dims: str) -> None:
    """Registers a lowering of `beta * addend + alpha * (a @ b)`.

    The addition is a separate op after the product, so that it can be fused with the ops that follow.
    """

    @lowering(name)
    def lower(node: Op, symbol_table: SymbolTable) -> ir.Value:
        meta = node.tensor_meta
        addend = value_of(node.args[0], symbol_table)
        a, b = _operands(node, symbol_table, 1)
        alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
        sums, wide = emit_product(a, b, a_dims, b_dims, out_dims, meta.dtype)

        def body(x: Scalar, y: Scalar) -> Scalar:
            result = x if alpha == 1 else x * alpha
            wide_y = cast(y, wide)
            # As in PyTorch, a `beta` of 0 ignores the addend, also NaN in it.
            if beta != 0:
                result = result + (wide_y if beta == 1 else wide_y * beta)
            return cast(result, meta.dtype)

        return pointwise([(sums, wide), (addend, meta.dtype)], meta.shape, meta.dtype, body)


_register_product_plus_addend("AddMMOp", "mk", "kn", "mn")
_register_product_plus_addend("BaddbmmOp", "bmk", "bkn", "bmn")
_register_product_plus_addend("AddBatchMatmulOp", "bmk", "bkn", "mn")
_register_product_plus_addend("AddMatVecOp", "mk", "k", "m")


@lowering("TrilinearOp")
def trilinear(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Inserts unit dims into the three operands, multiplies the operands with broadcasting, and sums over some dims.

    The arguments are the operands, the dims to insert into each of them (expand1, expand2, expand3), and `sumdim`.
    """
    meta, summed_dims = node.tensor_meta, node.args[6]
    wide, dtype = accumulator_type(meta.dtype), meta.dtype
    operands = []
    for arg, dims in zip(node.args[:3], node.args[3:6], strict=True):
        operand_shape = list(arg.tensor_meta.shape)
        for dim in sorted(dims):
            operand_shape.insert(dim, 1)
        operands.append((reshape(value_of(arg, symbol_table), operand_shape, dtype), dtype))
    shape = broadcast_shape([shape_of(value) for value, _ in operands])

    def body(a: Scalar, b: Scalar, c: Scalar, total: Scalar) -> Scalar:
        return total + cast(a, wide) * cast(b, wide) * cast(c, wide)

    sums = reduce(operands, shape, summed_dims, 0, wide, body)
    return cast_tensor(sums, wide, dtype)


@lowering("TransposeAddMMFusedOp")
def transposed_addmm(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Computes `a bᵀ + c`; the addition is a separate op, as in `_register_product_plus_addend`."""
    meta = node.tensor_meta
    sums, wide = emit_product(*_operands(node, symbol_table), "mk", "nk", "mn", meta.dtype)
    operands = [(sums, wide), (value_of(node.args[2], symbol_table), meta.dtype)]
    return pointwise(operands, meta.shape, meta.dtype, lambda x, y: cast(x + cast(y, wide), meta.dtype))


@lowering("ScaledDotProductFlashAttentionForCpuOp")
def attention(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Lowers `softmax(scale * q kᵀ + mask) v` for q, k, v of shape [batch, heads, length, width].

    The second result is the log-sum-exp of each row of scores. The arguments are q, k, v, dropout_p, is_causal;
    attn_mask and scale are keywords.
    """
    q, k, v = (value_of(arg, symbol_table) for arg in node.args[:3])
    dtype = node.tensor_meta.dtype
    if argument(node, 3, "dropout_p", 0.0):
        raise LoweringError("attention with dropout draws random numbers")
    scale = node.kwargs.get("scale")
    scale = shape_of(q)[-1] ** -0.5 if scale is None else scale
    scores = _product_by_head(q, k, "md", "nd", "mn", dtype)
    scores, scale = _apply_masks(node, symbol_table, scores, dtype, scale)
    weights = reductions.softmax(scores, dtype, 3, dtype, scale)
    log_sums, wide = reductions.log_sum_exp(scores, dtype, 3, scale)
    if node.kwargs.get("attn_mask") is not None:
        row_maxima = reductions.extreme(scores, dtype, [3], keep=True, largest=True)
        weights = _zero_masked_rows(weights, dtype, row_maxima, dtype)
        log_sums = _zero_masked_rows(log_sums, wide, row_maxima, dtype)
    log_meta = node.metas[1]
    results = [_product_by_head(weights, v, "mn", "nd", "md", dtype)]
    if log_meta is not None:
        log_sums = reshape(log_sums, shape_of(log_sums)[:-1], wide)
        results.append(pointwise([(log_sums, wide)], log_meta.shape, log_meta.dtype, lambda x: cast(x, log_meta.dtype)))
    return results


def _product_by_head(a: ir.Value, b: ir.Value, a_dims: str, b_dims: str, out_dims: str, dtype: TensorDType) -> ir.Value:
    """Emits a product per batch and head of operands [batch, heads, …]; several heads of `a` may share one of `b`."""
    (batch, heads, *rest), groups = shape_of(a), shape_of(b)[1]
    if heads == groups:
        return contract_exact(a, b, f"bh{a_dims}", f"bh{b_dims}", f"bh{out_dims}", dtype)
    a = reshape(a, (batch, groups, heads // groups, *rest), dtype)
    sums = contract_exact(a, b, f"bgh{a_dims}", f"bg{b_dims}", f"bgh{out_dims}", dtype)
    return reshape(sums, (batch, heads, *shape_of(sums)[3:]), dtype)


def _zero_masked_rows(value: ir.Value, dtype: TensorDType, row_maxima: ir.Value, score_type: TensorDType) -> ir.Value:
    """Returns `value` with zeros in fully masked rows, as in eager's kernel, where softmax would return NaN.

    The maximum of the scores of such a row is -inf.
    """

    def body(x: Scalar, row_maximum: Scalar) -> Scalar:
        return s.select(row_maximum.compare("eq", float("-inf")), x.like(0), x)

    return pointwise([(value, dtype), (row_maxima, score_type)], shape_of(value), dtype, body)


def _apply_masks(
    node: Op, symbol_table: SymbolTable, scores: ir.Value, dtype: TensorDType, scale: float
) -> tuple[ir.Value, float]:
    """Returns the scores with the masks applied, and the scale that is not applied yet: 1 if there are masks."""
    mask, causal = node.kwargs.get("attn_mask"), argument(node, 4, "is_causal", False)
    if mask is None and not causal:
        return scores, scale
    shape = shape_of(scores)
    inputs = [(scores, dtype)]
    if mask is not None:
        inputs.append((value_of(mask, symbol_table), mask.tensor_meta.dtype))
    if causal:
        inputs.append((_causal_mask(shape), TensorDType.Bool))

    def body(x: Scalar, *masks: Scalar) -> Scalar:
        x = x * scale
        for m in masks:
            x = s.select(m, x, x.like(float("-inf"))) if m.dtype is TensorDType.Bool else x + m
        return x

    return pointwise(inputs, shape, dtype, body), 1.0


def _causal_mask(shape: tuple[int, ...]) -> ir.Value:
    """Returns `row >= column` as a [rows, columns] tensor, for scores of `shape` [..., rows, columns]."""

    def body(_out: ir.Value) -> list[ir.Value]:
        return [arith.cmpi(arith.CmpIPredicate.uge, loop_index(0), loop_index(1))]

    rows, columns = shape[-2:]
    return generic([], [], [empty((rows, columns), TensorDType.Bool)], [[0, 1]], [PARALLEL] * 2, body)[0]


# ---- grouped products ------------------------------------------------------------------------------------------------

# Rows per block. A group with fewer rows still computes a whole block.
_BLOCK_ROWS = 32


@lowering("GroupedMatmulOp")
def multiply_groups(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Multiplies rows [rows, depth] by matrices [groups, depth, width]; returns [rows, width].

    Group `g` has the rows `ends[g - 1] <= row < ends[g]`; rows outside of all groups are 0. Raises `LoweringError` for
    other ranks, a bias, and dynamic sizes.
    """
    x, matrices, ends = node.args[:3]
    shapes = [list(op.tensor_meta.shape) for op in (x, matrices) if isinstance(op, Op)]
    if [len(shape) for shape in shapes] != [2, 3] or not isinstance(ends, Op):
        raise LoweringError("the rows are not grouped along one dim")
    if argument(node, 3, "bias") is not None:
        raise LoweringError("the grouped product has a bias")
    (rows, depth), (groups, _, width) = shapes
    if not all(isinstance(size, int) for size in (rows, depth, groups, width)):
        raise LoweringError("the grouped product has dynamic sizes")
    fall_back_if_outside(node, symbol_table, [(ends, rows + 1)])
    result_dtype = node.tensor_meta.dtype
    state = LoopState([st.filled(0, [rows, width], result_dtype)])
    if 0 in (rows, depth, groups, width):
        return state.tensors[0]
    x_value, weights, end_values = (value_of(op, symbol_table) for op in (x, matrices, ends))
    dtype, ends_dtype = x.tensor_meta.dtype, ends.tensor_meta.dtype
    product = _GroupedProduct(x_value, weights, end_values, dtype, ends_dtype, result_dtype, state)
    state.each(0, groups, product.multiply_group)
    return state.tensors[0]


@dataclass(frozen=True)
class _GroupedProduct:
    """A product of each row of `x` [rows, depth] with the matrix of its group in `weights` [groups, depth, width].

    `ends` [groups] has the row after the last one of each group. `state` carries the result [rows, width]. The rows of
    a group are computed in blocks of equal size; a block may extend beyond its group, but writes only the group's rows.
    """

    x: Any
    weights: Any
    ends: Any
    dtype: TensorDType
    ends_dtype: TensorDType
    result_dtype: TensorDType
    state: LoopState

    @property
    def block_size(self) -> int:
        """The number of rows per block."""
        rows: int = shape_of(self.x)[0]
        return min(rows, _BLOCK_ROWS)

    def multiply_group(self, group: ir.Value) -> None:
        """Emits the product of the rows of a group with its matrix."""
        _, depth, width = shape_of(self.weights)
        # `pick` computes both values, so the first group also needs the index of an end: 0.
        is_first = compare("eq", group, 0)
        start = pick(is_first, 0, self._group_end(pick(is_first, 0, minus(group, 1))))
        end = self._group_end(group)
        size = self.block_size
        count = arith.ceildivsi(arith.maxsi(minus(end, start), position(0)), position(size))
        matrix = st.slice_of(self.weights, [group, 0, 0], [1, depth, width], [1, 1, 1], [depth, width], self.dtype)
        self.state.each(
            0, count, lambda i: self._multiply_block(plus(start, arith.muli(i, position(size))), end, matrix)
        )

    def _group_end(self, group: ir.Value) -> ir.Value:
        """Returns the end of a group, clamped to 0 and the number of rows, since data may be out of range."""
        end = scalar_to_index(element(self.ends, [group], self.ends_dtype))
        return arith.minsi(arith.maxsi(end, position(0)), position(shape_of(self.x)[0]))

    def _multiply_block(self, group_row: ir.Value, group_end: ir.Value, matrix: ir.Value) -> None:
        """Computes a block, and writes its rows `group_row <= row < group_end`.

        The block starts at `group_row`, or earlier if it would exceed the tensor.
        """
        (out,), (rows, depth), size = self.state.tensors, shape_of(self.x), self.block_size
        width, result_dtype = shape_of(out)[1], self.result_dtype
        start = arith.minsi(group_row, position(rows - size))
        block_rows = st.slice_of(self.x, [start, 0], [size, depth], [1, 1], [size, depth], self.dtype)
        wide = accumulator_type(self.dtype)
        sums = contract(block_rows, matrix, "mk", "kn", "mn", wide)
        old_rows = st.slice_of(out, [start, 0], [size, width], [1, 1], [size, width], result_dtype)

        def merge(new: Scalar, old: Scalar) -> Scalar:
            row = plus(start, st.loop_index(0))
            is_inside = compare("sge", row, group_row) & compare("slt", row, group_end)
            return Scalar(arith.select(is_inside.value, cast(new, result_dtype).value, old.value), result_dtype)

        merged = st.pointwise([(sums, wide), (old_rows, result_dtype)], [size, width], result_dtype, merge)
        self.state.tensors = [st.insert_slice(merged, out, [start, 0], [size, width], [1, 1])]
