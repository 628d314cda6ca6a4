"""Lowers fused attention: `softmax(scale * q kᵀ + mask) v` in blocks of keys, without storing all scores.

The running maximum and the running sum of exponentials of each row are loop-carried, and partial sums are rescaled when
the maximum grows: the online softmax of Milakov and Gimelshein (2018), with the product by `v` inside the loop as in
FlashAttention (Dao et al. 2022). The extra memory is one tile of scores, the state of one block of rows, and the
transposed keys of one head if it has several blocks of rows.

Operands have 16 bits in a program with 16-bit floats, and if the recipe's precision rounds them. Scores, softmax and
sums are then in f32, as in eager's kernel; only the exponentials, as an operand of the second product, and the result
are rounded to 16 bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import frexp
from typing import Any

from buddy.compiler.graph.node import GetItemOp, Op, PlaceholderOp, ReshapeFamilyOp
from buddy.compiler.graph.operations import CatOp, MaskedSoftmaxAttentionOp, PermuteOp, TransposeOp, ViewOp
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir, tensor
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.attention_blocks import KeyTail, RowBlocks, block_sizes, split_rows
from buddy.compiler.ops.attention_tiles import (
    Index,
    TileOperand,
    add_to_index,
    divide_index,
    emit_loop,
    emit_parallel,
    multiply_index,
    reduce_rows,
    slice_arguments,
    update_in_place,
)
from buddy.compiler.ops.precision import reject_precision, round_operands_if_requested
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import (
    accumulator_type,
    cast_tensor,
    contract,
    empty,
    filled,
    loop_index,
    pointwise,
    reshape,
    shape_of,
    transpose,
)
from buddy.compiler.ops.utils import (
    LoweringError,
    Registry,
    SymbolTable,
    argument,
    normalize_dim,
    permutation_of,
    value_of,
)

ops_registry = Registry()
lowering = ops_registry.lowering


@lowering("FlashAttentionForCpuPrefillOp", "GQAAttentionFusedOp", "MaskedSoftmaxAttentionOp")
def fused_attention(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Lowers attention of q [batch..., heads, rows, width] to k and v [batch..., groups, keys, width].

    Head `h` reads group `h // (heads // groups)`.
    """
    return _Attention.from_node(node, symbol_table).emit()


@dataclass
class _State:
    """The loop-carried state of a block of query rows.

    `maxima` [rows, 1] are the maximum scores so far, `sums` [rows, 1] the sums of the exponentials, and `values`
    [rows, width] the sums of the values, weighted by the exponentials.
    """

    maxima: Any
    sums: Any
    values: Any


@dataclass(frozen=True)
class _Attention:
    """The operands and options of one attention op.

    `k` and `v` consist of parts that are consecutive along the keys, so that the parts need not be concatenated.
    `order` is the memory layout of the result, as in `TileOperand`. With `zero_masked_rows`, a fully masked row of the
    result is zeros, as in eager's fused kernel; otherwise it is NaN, as with a separate softmax. With `in_place`, each
    block of rows of the result overwrites the queries from which it is computed; these have no other reader.

    `dtype` is the element type of scores and sums, `operand_dtype` that of the operands of both products, and
    `result_dtype` that of the result.
    """

    q: TileOperand
    k: tuple[TileOperand, ...]
    v: tuple[TileOperand, ...]
    mask: TileOperand | None
    dtype: TensorDType
    operand_dtype: TensorDType
    result_dtype: TensorDType
    scale: float
    causal: bool
    order: tuple[int, ...]
    zero_masked_rows: bool
    in_place: bool

    @staticmethod
    def from_node(node: Op, symbol_table: SymbolTable) -> _Attention:
        """Collects the operands of `node`.

        The node's arguments are q, k, v, attn_mask, dropout_p, is_causal; scale is a keyword. Raises `LoweringError`
        for variants that the blocked algorithm does not support.
        """
        result_dtype = node.tensor_meta.dtype
        if not result_dtype.is_float or result_dtype.is_float8:
            raise LoweringError(f"attention of {result_dtype.value} is not supported")
        if argument(node, 4, "dropout_p", 0.0):
            raise LoweringError("attention with dropout draws random numbers")
        mask, causal = argument(node, 3, "attn_mask"), bool(argument(node, 5, "is_causal", False))
        q = _operand(node.args[0], symbol_table)
        k, v = _keys_and_values(node, symbol_table, by_parts=q.shape[-2] == 1 and not causal)
        if 0 in (*q.shape, *k[0].shape, *v[0].shape):
            raise LoweringError("attention of empty tensors")
        scale = node.kwargs.get("scale")
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        mask_operand = None if mask is None else _mask(mask, symbol_table, len(q.shape))
        order = _result_order(node)
        zero_masked_rows = not isinstance(node, MaskedSoftmaxAttentionOp)
        if zero_masked_rows:
            q, k, v, operand_dtype = _in_requested_precision(q, k, v)
        else:
            reject_precision("it was fused from separate products: disable flash-attention-prefill to compute these")
            operand_dtype = result_dtype
        fits_queries = q.order == order and q.shape[-1] == v[0].shape[-1] and operand_dtype is result_dtype
        in_place = fits_queries and _has_one_reader(node.args[0])
        return _Attention(
            q, k, v, mask_operand, accumulator_type(result_dtype), operand_dtype, result_dtype, scale, causal, order,
            zero_masked_rows, in_place,
        )  # fmt: skip

    @property
    def block_rows(self) -> int:
        """The number of query rows per block."""
        return block_sizes(self.q.shape[-2], self.causal)[0]

    @property
    def block_keys(self) -> int:
        """The number of keys per block."""
        return block_sizes(self.q.shape[-2], self.causal)[1]

    def emit(self) -> ir.Value:
        """Emits the loops and returns the result [batch..., heads, rows, width]."""
        if self._can_merge_heads():
            return self._emit_merged_heads()
        *batch_and_heads, rows, width = *self.q.shape[:-1], self.v[0].shape[-1]
        sizes = [*batch_and_heads, rows, width]
        memory_sizes = [sizes[self.order.index(dim)] for dim in range(len(sizes))]
        initial = self.q.value if self.in_place else empty(memory_sizes, self.result_dtype)
        initial_result = TileOperand(initial, self.result_dtype, self.order)
        out = emit_parallel(batch_and_heads, initial_result, [rows, width], self._emit_head)
        return transpose(out, self.order, self.result_dtype)

    def _can_merge_heads(self) -> bool:
        """True if each head has one query row, and the heads of a group can be computed as the rows of one head.

        Each key is then read once per group instead of once per head.
        """
        heads_share_mask = self.mask is None or self.mask.shape[-3:-1] == (1, 1)
        return self.q.shape[-2] == 1 and self.q.shape[-3] != self.k[0].shape[-3] and heads_share_mask

    def _emit_merged_heads(self) -> ir.Value:
        """Emits the attention with the heads of each group as the rows of one head."""
        *batch, heads, rows, width = self.q.shape
        groups, identity = self.k[0].shape[-3], tuple(range(len(self.q.shape)))
        queries = transpose(self.q.value, self.q.order, self.operand_dtype)
        merged = reshape(queries, (*batch, groups, heads // groups, width), self.operand_dtype)
        q = TileOperand(merged, self.operand_dtype, identity)
        out = dataclasses.replace(self, q=q, causal=False, order=identity, in_place=False).emit()
        return reshape(out, (*batch, heads, rows, self.v[0].shape[-1]), self.result_dtype)

    def _emit_head(self, head: list[Index], out: ir.Value) -> ir.Value:
        """Writes the result of the head at the indices `head` to `out` [rows, width]; returns the new `out`."""
        heads_per_group = self.q.shape[-3] // self.k[0].shape[-3]
        group = [*head[:-1], divide_index(head[-1], heads_per_group)]
        parts = list(self._key_parts(group))
        for blocks in split_rows(self.q.shape[-2], parts[0].count, self.block_rows, self.block_keys, self.causal):

            def emit_block(index: Index, carried: list[ir.Value], blocks: RowBlocks = blocks) -> list[ir.Value]:
                return [_Block(self, head, parts, blocks, index, *carried).emit()]

            (out,) = emit_loop(blocks.first, blocks.end, [out], emit_block)
        return out

    def _key_parts(self, group: list[Index]) -> Iterator[_Keys]:
        """Yields the parts of the keys and values of the group at the indices `group`."""
        start = 0
        for k, v in zip(self.k, self.v, strict=True):
            yield _Keys(self, k, v, group, start)
            start += k.shape[-2]


class _Keys:
    """The keys and values of one part and one head; the part starts at key `start`.

    If several blocks of rows read the keys, all full blocks of keys are transposed once, in advance, to `panels`
    [full_blocks, width, block_keys].
    """

    def __init__(self, attention: _Attention, k: TileOperand, v: TileOperand, group: list[Index], start: int) -> None:
        self.attention, self.k, self.v, self.group, self.start = attention, k, v, group, start
        self.block_keys, (self.count, width) = attention.block_keys, k.shape[-2:]
        self.full_blocks, self.panels = self.count // self.block_keys, None
        if self.full_blocks and attention.q.shape[-2] > attention.block_rows:
            rows = self._tile(k, 0, self.full_blocks * self.block_keys)
            blocks = reshape(rows, (self.full_blocks, self.block_keys, width), attention.operand_dtype)
            self.panels = transpose(blocks, [0, 2, 1], attention.operand_dtype)

    def _tile(self, operand: TileOperand, start: Index, rows: int) -> ir.Value:
        """Returns `rows` keys or values [rows, width] from index `start` on."""
        ones, width = [1] * len(self.group), operand.shape[-1]
        return operand.tile([*self.group, start, 0], [*ones, rows, width])

    def scores(self, queries: ir.Value, block: Index, count: int) -> ir.Value:
        """Returns the scores [rows, count] of `queries` [rows, width] for the first `count` keys of a block."""
        dtype = self.attention.dtype
        # A partial block has a static index, and no panel.
        if self.panels is None or (isinstance(block, int) and block >= self.full_blocks):
            keys = self._tile(self.k, multiply_index(block, self.block_keys), count)
            return contract(queries, keys, "md", "nd", "mn", dtype)
        panels = TileOperand(self.panels, self.attention.operand_dtype, (0, 1, 2))
        width = self.k.shape[-1]
        return contract(queries, panels.tile([block, 0, 0], [1, width, count]), "md", "dn", "mn", dtype)

    def weighted_values(self, weights: ir.Value, block: Index, count: int, out: ir.Value | None = None) -> ir.Value:
        """Returns `weights` [rows, count] times the first `count` values of a block, added to `out` if not `None`."""
        values = self._tile(self.v, multiply_index(block, self.block_keys), count)
        rounded = cast_tensor(weights, self.attention.dtype, self.attention.operand_dtype)
        return contract(rounded, values, "mn", "nd", "md", self.attention.dtype, out)


class _Block:
    """Block `index` of the query rows of one head; `emit` writes its result to `out` [rows, width].

    `row_blocks`, which contain this block, say to which keys of `parts[0]` its rows attend; they attend to all keys of
    the other parts.
    """

    def __init__(
        self,
        attention: _Attention,
        head: list[Index],
        parts: Sequence[_Keys],
        row_blocks: RowBlocks,
        index: Index,
        out: ir.Value,
    ) -> None:
        self.attention, self.head, self.parts, self.row_blocks, self.index = attention, head, parts, row_blocks, index
        self.dtype = attention.dtype
        self.start = multiply_index(index, attention.block_rows)
        self.out = TileOperand(out, attention.result_dtype, (0, 1))
        scale = attention.scale
        # Queries in 16 bits are scaled without rounding only by a power of two; otherwise the f32 scores are scaled.
        scales_queries = attention.operand_dtype is self.dtype or frexp(scale)[0] == 0.5
        self.queries = self._scaled_queries(scale if scales_queries else 1.0)
        self.score_scale = 1.0 if scales_queries else scale

    def emit(self) -> ir.Value:
        """Emits the block. Returns the new `out`."""
        first_part, *other_parts = self.parts
        state, next_block = self._initial_state(first_part)
        full_blocks = self.index if self.row_blocks.full is None else self.row_blocks.full
        state = self._add_blocks(first_part, next_block, full_blocks, state)
        for keys in other_parts:
            state = self._add_blocks(keys, 0, keys.full_blocks, state)
            remainder = keys.count - keys.full_blocks * keys.block_keys
            state = self._add_block(keys, keys.full_blocks, remainder, state) if remainder else state
        return self._store_result(state)

    def _add_blocks(self, keys: _Keys, first: Index, end: Index, state: _State) -> _State:
        """Returns the state updated by the full blocks `first` to `end` - 1 of `keys`."""

        def add_block(block: Index, carried: list[ir.Value]) -> list[ir.Value]:
            state = self._add_block(keys, block, keys.block_keys, _State(*carried))
            return [state.maxima, state.sums, state.values]

        return _State(*emit_loop(first, end, [state.maxima, state.sums, state.values], add_block))

    def _scaled_queries(self, scale: float) -> ir.Value:
        """Returns the block's queries [rows, width] times `scale`, in a new tensor."""
        q, dtype = self.attention.q, self.attention.operand_dtype
        sizes = [self.row_blocks.rows, q.shape[-1]]
        if self.attention.in_place:
            tile = self.out.tile([self.start, 0], sizes)
        else:
            tile = q.tile([*self.head, self.start, 0], [*[1] * len(self.head), *sizes])
        return update_in_place(empty(sizes, dtype), dtype, [(tile, dtype)], lambda _, x: x * scale)

    def _initial_state(self, keys: _Keys) -> tuple[_State, int]:
        """Returns the state after one block of keys, and the index of the first full block that remains.

        The one block is the tail, or block 0 if there is no tail.
        """
        tail, next_block = self.row_blocks.tail, 0
        if tail is None:
            tail, next_block = KeyTail(0, keys.block_keys, has_diagonal=False), 1
        block = self.index if tail.index is None else tail.index
        scores = self._scores(keys, block, tail.keys, tail.has_diagonal)
        maxima = self._row_maxima(scores)
        exponentials = self._exponentials(scores, maxima)
        sums = self._add_row_sums(exponentials, filled(0, [self.row_blocks.rows, 1], self.dtype))
        return _State(maxima, sums, keys.weighted_values(exponentials, block, tail.keys)), next_block

    def _add_block(self, keys: _Keys, block: Index, count: int, state: _State) -> _State:
        """Returns the state updated by the first `count` keys of a block."""
        scores = self._scores(keys, block, count, has_diagonal=False)
        block_maxima = self._row_maxima(scores)
        factors = self._rescaling_factors(state.maxima, block_maxima)
        maxima = update_in_place(state.maxima, self.dtype, [(block_maxima, self.dtype)], s.maximum)
        exponentials = self._exponentials(scores, maxima)
        sums = update_in_place(state.sums, self.dtype, [(factors, self.dtype)], lambda x, f: x * f)
        values = update_in_place(state.values, self.dtype, [(factors, self.dtype)], lambda x, f: x * f)
        sums = self._add_row_sums(exponentials, sums)
        return _State(maxima, sums, keys.weighted_values(exponentials, block, count, values))

    def _rescaling_factors(self, old_maxima: ir.Value, block_maxima: ir.Value) -> ir.Value:
        """Returns the factors [rows, 1] that rescale the sums of earlier blocks to the new maxima."""
        operands = [(old_maxima, self.dtype), (block_maxima, self.dtype)]
        out = empty([self.row_blocks.rows, 1], self.dtype)
        return update_in_place(out, self.dtype, operands, lambda _, old, new: s.exp(old - s.maximum(old, new)))

    def _scores(self, keys: _Keys, block: Index, count: int, has_diagonal: bool) -> ir.Value:
        """Returns the masked scores [rows, count] for the first `count` keys of a block."""
        scores = keys.scores(self.queries, block, count)
        mask = self.attention.mask
        inputs = []
        if mask is not None:
            offsets = [*self.head, self.start, add_to_index(multiply_index(block, keys.block_keys), keys.start)]
            inputs.append((_broadcast_tile(mask, offsets, self.row_blocks.rows, count), mask.dtype))
        scale = self.score_scale
        if not inputs and not has_diagonal and scale == 1.0:
            return scores

        def body(x: Scalar, *masks: Scalar) -> Scalar:
            x = x if scale == 1.0 else x * scale
            for m in masks:
                x = s.select(m, x, x.like(float("-inf"))) if m.dtype is TensorDType.Bool else x + m
            if has_diagonal:
                is_visible = arith.cmpi(arith.CmpIPredicate.uge, loop_index(0), loop_index(1))
                x = s.select(Scalar(is_visible, TensorDType.Bool), x, x.like(float("-inf")))
            return x

        return pointwise([(scores, self.dtype), *inputs], shape_of(scores), self.dtype, body)

    def _row_maxima(self, scores: ir.Value) -> ir.Value:
        """Returns the maximum of each row, but at least the lowest finite number, to avoid `inf - inf`."""
        initial = filled(_lowest(self.dtype), [self.row_blocks.rows, 1], self.dtype)
        return reduce_rows(scores, initial, self.dtype, s.maximum)

    def _exponentials(self, scores: ir.Value, maxima: ir.Value) -> ir.Value:
        """Returns `exp(scores - maxima)`, in a new buffer: in-place updates in a fused row loop are not vectorised."""
        operands = [(scores, self.dtype), (maxima, self.dtype)]
        return pointwise(operands, shape_of(scores), self.dtype, lambda x, m: s.exp(x - m))

    def _add_row_sums(self, exponentials: ir.Value, sums: ir.Value) -> ir.Value:
        return reduce_rows(exponentials, sums, self.dtype, lambda total, x: total + x)

    def _store_result(self, state: _State) -> ir.Value:
        """Divides the weighted values by the sums, and writes the quotients to `out`. Returns the new `out`."""

        def invert(_: Scalar, x: Scalar) -> Scalar:
            return s.select(x.compare("eq", 0), x.like(0), 1.0 / x) if self.attention.zero_masked_rows else 1.0 / x

        inverse_sums = empty([self.row_blocks.rows, 1], self.dtype)
        inverse_sums = update_in_place(inverse_sums, self.dtype, [(state.sums, self.dtype)], invert)
        offsets, sizes = [self.start, 0], [self.row_blocks.rows, self.attention.v[0].shape[-1]]
        inputs = [(state.values, self.dtype), (inverse_sums, self.dtype)]
        result = self.attention.result_dtype
        tile = update_in_place(self.out.tile(offsets, sizes), result, inputs, lambda _, x, i: cast(x * i, result))
        return tensor.insert_slice(tile, self.out.value, *slice_arguments(offsets, sizes))


def _lowest(dtype: TensorDType) -> float:
    """Returns the lowest finite number of `dtype`, f32 or f64."""
    return -3.4028234663852886e38 if dtype is TensorDType.Float32 else -1.7976931348623157e308


# ---- operands --------------------------------------------------------------------------------------------------------


def _operand(node: Op, symbol_table: SymbolTable) -> TileOperand:
    """Returns q, k or v, with its memory layout.

    If `node` is a transpose that keeps rows before columns, reads the operand of the transpose, without a copy.
    """
    value = value_of(node, symbol_table)
    rank = len(shape_of(value))
    if rank < 3:
        raise LoweringError(f"attention of tensors with {rank} dims, fewer than 3")
    dtype = node.tensor_meta.dtype
    if isinstance(node, (TransposeOp, PermuteOp)) and (node.args[0].name, 0) in symbol_table:
        order = permutation_of(node)
        if order[-2] < order[-1]:
            return TileOperand(symbol_table[node.args[0].name, 0], dtype, tuple(order))
    return TileOperand(value, dtype, tuple(range(rank)))


def _in_requested_precision(
    q: TileOperand, k: tuple[TileOperand, ...], v: tuple[TileOperand, ...]
) -> tuple[TileOperand, tuple[TileOperand, ...], tuple[TileOperand, ...], TensorDType]:
    """Returns `q`, `k` and `v`, rounded to bfloat16 if the recipe selects that, and their element type."""
    if q.shape[-2] == 1:
        reject_precision("rounding keys and values for one row of queries takes longer than it saves")
        return q, k, v, q.dtype
    operands = [q, *k, *v]
    values, dtype = round_operands_if_requested([operand.value for operand in operands], q.dtype, "attention")
    rounded = [
        dataclasses.replace(operand, value=value, dtype=dtype) for operand, value in zip(operands, values, strict=True)
    ]
    return rounded[0], tuple(rounded[1 : 1 + len(k)]), tuple(rounded[1 + len(k) :]), dtype


def _keys_and_values(
    node: Op, symbol_table: SymbolTable, by_parts: bool
) -> tuple[tuple[TileOperand, ...], tuple[TileOperand, ...]]:
    """Returns keys and values, each as one or several parts.

    With `by_parts`, reads the parts of concatenations (a cache and new keys) without concatenating them. With many
    query rows, each part would be read many times, which costs more than the copy.
    """
    part_nodes = [_parts_of(arg, symbol_table) if by_parts else () for arg in node.args[1:3]]
    k, v = (tuple(_operand(part, symbol_table) for part in parts) for parts in part_nodes)
    # Part `i` of the keys needs as many rows as part `i` of the values.
    if k and [part.shape[:-1] for part in k] == [part.shape[:-1] for part in v]:
        return k, v
    k, v = ((_operand(arg, symbol_table),) for arg in node.args[1:3])
    return k, v


def _parts_of(node: Op, symbol_table: SymbolTable) -> tuple[Op, ...]:
    """Returns the parts of a concatenation along the rows.

    Returns an empty tuple for other ops, and if a part is not in the symbol table, has another type or is empty.
    """
    meta = node.tensor_meta
    rank = len(meta.shape)
    if not isinstance(node, CatOp) or normalize_dim(argument(node, 1, "dim", 0), rank) != rank - 2:
        return ()
    parts = tuple(node.args[0])
    are_readable = all((part.name, 0) in symbol_table and part.tensor_meta.dtype is meta.dtype for part in parts)
    return parts if are_readable and not any(0 in part.tensor_meta.shape for part in parts) else ()


def _mask(node: Op, symbol_table: SymbolTable, rank: int) -> TileOperand:
    """Returns the mask as an operand of rank `rank`, with leading dims of size 1 where it has fewer dims."""
    value, dtype = value_of(node, symbol_table), node.tensor_meta.dtype
    shape = shape_of(value)
    return TileOperand(reshape(value, (*[1] * (rank - len(shape)), *shape), dtype), dtype, tuple(range(rank)))


def _broadcast_tile(mask: TileOperand, offsets: Sequence[Index], rows: int, columns: int) -> ir.Value:
    """Returns the tile [rows, columns] of a mask at `offsets`; a broadcast dim of the mask has size 1 in the tile."""
    sizes = [*[1] * (len(offsets) - 2), rows, columns]
    mask_offsets = [0 if mask_size == 1 else offset for offset, mask_size in zip(offsets, mask.shape, strict=True)]
    mask_sizes = [1 if mask_size == 1 else size for size, mask_size in zip(sizes, mask.shape, strict=True)]
    return mask.tile(mask_offsets, mask_sizes)


def _result_order(node: Op) -> tuple[int, ...]:
    """Returns the memory layout of the result: rows before heads if every reader transposes the result so."""
    rank = len(node.tensor_meta.shape)
    swapped = [*range(rank - 3), rank - 2, rank - 3, rank - 1]
    readers = list(_readers(node))
    if readers and all(isinstance(op, (TransposeOp, PermuteOp)) and permutation_of(op) == swapped for op in readers):
        return tuple(swapped)
    return tuple(range(rank))


def _readers(node: Op) -> Iterator[Op]:
    """Yields the readers of `node`, looking through views of the same shape."""
    for op in node._children:
        if isinstance(op, ViewOp) and op.tensor_meta.shape == node.tensor_meta.shape:
            yield from _readers(op)
        else:
            yield op


def _has_one_reader(node: Op) -> bool:
    """True if `node` is the result of an op, perhaps transposed or viewed, and only one node reads it.

    False for inputs and for views of a part of a tensor, whose memory may have other readers.
    """
    while isinstance(node, (ViewOp, TransposeOp, PermuteOp)) and len(node._children) == 1:
        node = node.args[0]
    return len(node._children) == 1 and not isinstance(node, (PlaceholderOp, ReshapeFamilyOp, GetItemOp))
