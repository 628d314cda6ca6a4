"""Fused attention: computes `softmax(scale * q kᵀ + mask) v` in blocks of keys, without storing all scores.

The running maximum and the running sum of exponentials of each row are loop-carried, and partial sums are rescaled when
the maximum grows: the online softmax of Milakov and Gimelshein (2018), with the product by `v` inside the loop as in
FlashAttention (Dao et al. 2022). The extra memory is one tile of scores, the state of one block of rows and, if several
blocks of rows read them, the transposed keys of one head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.node import GetItemOp, Op, PlaceholderOp, ReshapeFamilyOp
from buddy.compiler.graph.operations import CatOp, MaskedSoftmaxAttentionOp, PermuteOp, TransposeOp, ViewOp
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir, scf, tensor
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.attention_blocks import KeyTail, RowBlocks, split_rows
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.structured import (
    PARALLEL,
    REDUCTION,
    broadcast_dims,
    contract,
    empty,
    filled,
    generic,
    loop_index,
    pointwise,
    reshape,
    shape_of,
    transpose,
)
from buddy.compiler.ops.utils import (
    LoweringError,
    SymbolTable,
    argument,
    normalize_dim,
    permutation_of,
    tensor_type,
    value_of,
)

ops_registry = Registry()
lowering = ops_registry.lowering

Index = Any  # an int, or an MLIR value of type index

# Query rows per block. With this many rows the products take far longer than packing a block of keys.
ROWS = 128
# Causal blocks are square: larger ones compute more above the diagonal.
CAUSAL_BLOCK = 64
# Scores per tile: 64 KiB of f32 stay in the L2 cache between the products and the softmax.
TILE = 128 * 128


@lowering("FlashAttentionForCpuPrefillOp", "GQAAttentionFusedOp", "MaskedSoftmaxAttentionOp")
def fused_attention(node: Op, symbol_table: SymbolTable) -> Any:
    """Lowers attention of q [batch..., heads, rows, width] to k and v [batch..., groups, keys, width].

    Head `h` reads group `h // (heads // groups)`.
    """
    return _Attention.of(node, symbol_table).emit()


@dataclass(frozen=True)
class _Operand:
    """A logical tensor [batch..., rows, width] and its memory layout: its dim `i` is dim `order[i]` of `value`."""

    value: Any
    dtype: TensorDType
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        own = shape_of(self.value)
        return tuple(own[dim] for dim in self.order)

    def tile(self, offsets: Sequence[Index], sizes: Sequence[int]) -> Any:
        """Returns the [rows, width] matrix at `offsets` of the operand's dims; the sizes of batch dims are 1."""
        return tensor.extract_slice(tensor_type(sizes[-2:], self.dtype), self.value, *self.place(offsets, sizes))

    def place(self, offsets: Sequence[Index], sizes: Sequence[int]) -> list[Any]:
        """Returns the slice arguments (offsets, sizes, strides) of that matrix."""
        return _place(self._in_memory_order(offsets), self._in_memory_order(sizes))

    def _in_memory_order(self, values: Sequence[Any]) -> list[Any]:
        """Permutes per-dim values from the operand's dim order to that of the tensor in memory."""
        return [values[self.order.index(dim)] for dim in range(len(values))]


def _place(offsets: Sequence[Index], sizes: Sequence[int]) -> list[Any]:
    """Returns the arguments of slice ops: the dynamic offsets, then static offsets, sizes and strides.

    A marker among the static offsets stands for a dynamic one.
    """
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    values = [offset for offset in offsets if not isinstance(offset, int)]
    static = [offset if isinstance(offset, int) else dynamic for offset in offsets]
    return [values, [], [], static, list(sizes), [1] * len(sizes)]


@dataclass
class _State:
    """The loop-carried state of a block: maxima and sums of exponentials [rows, 1], weighted values [rows, width]."""

    peak: Any
    total: Any
    values: Any


@dataclass(frozen=True)
class _Attention:
    """The operands and options of one attention op.

    `k` and `v` are lists of parts that are consecutive along the keys; several parts avoid a concatenation. `order` is
    the memory layout of the result, as in `_Operand`. With `zero_masked_rows`, a fully masked row is zeros, as in
    eager's fused kernel; otherwise it is NaN, as with a separate softmax. With `in_place`, each block of rows of the
    result overwrites the queries that it was computed from, which have no other reader.
    """

    q: _Operand
    k: tuple[_Operand, ...]
    v: tuple[_Operand, ...]
    mask: _Operand | None
    dtype: TensorDType
    scale: float
    causal: bool
    order: tuple[int, ...]
    zero_masked_rows: bool
    in_place: bool

    @staticmethod
    def of(node: Op, symbol_table: SymbolTable) -> _Attention:
        """Collects the operands of `node`.

        Raises `LoweringError` for variants that the blocked algorithm does not support.
        """
        dtype = node.tensor_meta.dtype
        if dtype not in (TensorDType.Float32, TensorDType.Float64):
            raise LoweringError(f"attention of {dtype.value} needs a wider accumulator")
        if argument(node, 4, "dropout_p", 0.0):
            raise LoweringError("attention with dropout is random: it stays in eager")
        mask, causal = argument(node, 3, "attn_mask"), bool(argument(node, 5, "is_causal", False))
        q = _operand(node.args[0], symbol_table)
        k, v = _keys_and_values(node, symbol_table, q.shape[-2] == 1 and not causal)
        if 0 in (*q.shape, *k[0].shape, *v[0].shape):
            raise LoweringError("attention of empty tensors")
        scale = node.kwargs.get("scale")
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        masked = None if mask is None else _mask(mask, symbol_table, len(q.shape))
        zero_masked_rows, order = not isinstance(node, MaskedSoftmaxAttentionOp), _out_order(node)
        in_place = q.order == order and q.shape[-1] == v[0].shape[-1] and _read_once(node.args[0])
        return _Attention(q, k, v, masked, dtype, scale, causal, order, zero_masked_rows, in_place)

    @property
    def block(self) -> int:
        """The number of query rows per block."""
        return CAUSAL_BLOCK if self.causal else ROWS

    @property
    def key_block(self) -> int:
        return CAUSAL_BLOCK if self.causal else TILE // min(ROWS, self.q.shape[-2])

    def emit(self) -> Any:
        """Emits the loops and returns the result [batch..., heads, rows, width]."""
        if self._shares_rows():
            return self._emit_by_groups()
        *batch, rows, width = *self.q.shape[:-1], self.v[0].shape[-1]
        sizes = [*batch, rows, width]
        own = [sizes[self.order.index(dim)] for dim in range(len(sizes))]
        start = self.q.value if self.in_place else empty(own, self.dtype)
        out = _parallel(batch, _Operand(start, self.dtype, self.order), [rows, width], self._head)
        return transpose(out, self.order, self.dtype)

    def _shares_rows(self) -> bool:
        """True if each head has one query row, and those of a group can be processed as the rows of one head.

        Each key is then read once per group, and not once per head.
        """
        same_mask = self.mask is None or self.mask.shape[-3:-1] == (1, 1)
        return self.q.shape[-2] == 1 and self.q.shape[-3] != self.k[0].shape[-3] and same_mask

    def _emit_by_groups(self) -> Any:
        *batch, heads, rows, width = self.q.shape
        groups, plain = self.k[0].shape[-3], tuple(range(len(self.q.shape)))
        source = transpose(self.q.value, self.q.order, self.dtype)
        q = _Operand(reshape(source, (*batch, groups, heads // groups, width), self.dtype), self.dtype, plain)
        out = dataclasses.replace(self, q=q, causal=False, order=plain, in_place=False).emit()
        return reshape(out, (*batch, heads, rows, self.v[0].shape[-1]), self.dtype)

    def _head(self, head: list[Index], out: Any) -> Any:
        """Returns `out` [rows, width] with the result of the head at indices `head` written to it."""
        shared = self.q.shape[-3] // self.k[0].shape[-3]
        group = [*head[:-1], _divide(head[-1], shared)]
        keys = list(self._key_parts(group))
        for rows in split_rows(self.q.shape[-2], keys[0].count, self.block, self.key_block, self.causal):

            def block(i: Index, carried: list[Any], rows: RowBlocks = rows) -> list[Any]:
                return [_Block(self, head, keys, rows, i, *carried).emit()]

            (out,) = _loop(rows.first, rows.end, [out], block)
        return out

    def _key_parts(self, group: list[Index]) -> Iterator[_Keys]:
        start = 0
        for k, v in zip(self.k, self.v, strict=True):
            yield _Keys(self, k, v, group, start)
            start += k.shape[-2]


class _Keys:
    """Keys and values of one head, starting at key `start`.

    If several blocks of rows read the keys, each block of keys is transposed once.
    """

    def __init__(self, attention: _Attention, k: _Operand, v: _Operand, group: list[Index], start: int) -> None:
        self.attention, self.k, self.v, self.group, self.start = attention, k, v, group, start
        self.block, (self.count, width) = attention.key_block, k.shape[-2:]
        self.full, self.panels = self.count // self.block, None
        if self.full and attention.q.shape[-2] > attention.block:
            rows = self._tile(k, 0, self.full * self.block)
            blocks = reshape(rows, (self.full, self.block, width), attention.dtype)
            self.panels = transpose(blocks, [0, 2, 1], attention.dtype)

    def _tile(self, operand: _Operand, start: Index, rows: int) -> Any:
        ones, width = [1] * len(self.group), operand.shape[-1]
        return operand.tile([*self.group, start, 0], [*ones, rows, width])

    def scores(self, queries: Any, number: Index, count: int) -> Any:
        """Returns `queries` [rows, width] times the transposed first `count` keys of block `number`: [rows, count]."""
        dtype = self.attention.dtype
        if self.panels is None or (isinstance(number, int) and number >= self.full):
            keys = self._tile(self.k, _multiply(number, self.block), count)
            return contract(queries, keys, "md", "nd", "mn", dtype)
        panels = _Operand(self.panels, dtype, (0, 1, 2))
        width = self.k.shape[-1]
        return contract(queries, panels.tile([number, 0, 0], [1, width, count]), "md", "dn", "mn", dtype)

    def weighted(self, weights: Any, number: Index, count: int, out: Any = None) -> Any:
        """Returns `weights` [rows, count] times the first `count` values of block `number`, added to `out` if given."""
        values = self._tile(self.v, _multiply(number, self.block), count)
        return contract(weights, values, "mn", "nd", "md", self.attention.dtype, out)


class _Block:
    """Block `index` of the query rows of one head, whose results are written to `out`.

    `rows` says which blocks of the keys `parts` these rows attend to.
    """

    def __init__(
        self, attention: _Attention, head: list[Index], parts: Sequence[_Keys], rows: RowBlocks, index: Index, out: Any
    ) -> None:
        self.attention, self.head, self.parts, self.rows, self.index = attention, head, parts, rows, index
        self.dtype = attention.dtype
        self.start = _multiply(index, attention.block)
        self.out = _Operand(out, self.dtype, (0, 1))
        self.queries = self._scaled_queries()

    def emit(self) -> Any:
        """Emits the block and returns `out` with its result."""
        keys, *others = self.parts
        state, first = self._first_block(keys)
        state = self._add_blocks(keys, first, self.index if self.rows.full is None else self.rows.full, state)
        for keys in others:
            state = self._add_blocks(keys, 0, keys.full, state)
            rest = keys.count - keys.full * keys.block
            state = self._add_block(keys, keys.full, rest, state) if rest else state
        return self._store_result(state)

    def _add_blocks(self, keys: _Keys, first: Index, end: Index, state: _State) -> _State:
        """Returns the state updated by the full blocks `first <= number < end` of `keys`."""

        def step(number: Index, carried: list[Any]) -> list[Any]:
            state = self._add_block(keys, number, keys.block, _State(*carried))
            return [state.peak, state.total, state.values]

        return _State(*_loop(first, end, [state.peak, state.total, state.values], step))

    def _scaled_queries(self) -> Any:
        q, scale = self.attention.q, self.attention.scale
        sizes = [self.rows.rows, q.shape[-1]]
        if self.attention.in_place:
            tile = self.out.tile([self.start, 0], sizes)
        else:
            tile = q.tile([*self.head, self.start, 0], [*[1] * len(self.head), *sizes])
        return _update_in_place(empty(sizes, self.dtype), self.dtype, [(tile, self.dtype)], lambda _, x: x * scale)

    def _first_block(self, keys: _Keys) -> tuple[_State, int]:
        """Returns the state after one block (the tail, if any) and the number of the first remaining full block."""
        tail, first = self.rows.tail, 0
        if tail is None:
            tail, first = KeyTail(0, keys.block, False), 1
        number = self.index if tail.index is None else tail.index
        scores = self._scores(keys, number, tail.keys, tail.has_diagonal)
        peak = self._row_maxima(scores)
        powers = self._exponentials(scores, peak)
        total = self._add_row_sums(powers, filled(0, [self.rows.rows, 1], self.dtype))
        return _State(peak, total, keys.weighted(powers, number, tail.keys)), first

    def _add_block(self, keys: _Keys, number: Index, count: int, state: _State) -> _State:
        """Returns the state updated by the first `count` keys of block `number`."""
        scores = self._scores(keys, number, count, False)
        peak = self._row_maxima(scores)
        kept = self._rescaling(state.peak, peak)
        peak = _update_in_place(state.peak, self.dtype, [(peak, self.dtype)], s.maximum)
        powers = self._exponentials(scores, peak)
        total = _update_in_place(state.total, self.dtype, [(kept, self.dtype)], lambda x, k: x * k)
        values = _update_in_place(state.values, self.dtype, [(kept, self.dtype)], lambda x, k: x * k)
        return _State(peak, self._add_row_sums(powers, total), keys.weighted(powers, number, count, values))

    def _rescaling(self, before: Any, block: Any) -> Any:
        """Returns the factor [rows, 1] that rescales the sums of earlier blocks."""
        operands = [(before, self.dtype), (block, self.dtype)]
        out = empty([self.rows.rows, 1], self.dtype)
        return _update_in_place(out, self.dtype, operands, lambda _, old, new: s.exp(old - s.maximum(old, new)))

    def _scores(self, keys: _Keys, number: Index, count: int, diagonal: bool) -> Any:
        scores = keys.scores(self.queries, number, count)
        mask = self.attention.mask
        inputs = []
        if mask is not None:
            place = [*self.head, self.start, _add(_multiply(number, keys.block), keys.start)]
            inputs.append((_broadcast_tile(mask, place, self.rows.rows, count), mask.dtype))
        if not inputs and not diagonal:
            return scores

        def body(x: Scalar, *masks: Scalar) -> Scalar:
            for m in masks:
                x = s.select(m, x, x.like(float("-inf"))) if m.dtype is TensorDType.Bool else x + m
            if diagonal:
                below = arith.cmpi(arith.CmpIPredicate.uge, loop_index(0), loop_index(1))
                x = s.select(Scalar(below, TensorDType.Bool), x, x.like(float("-inf")))
            return x

        return pointwise([(scores, self.dtype), *inputs], shape_of(scores), self.dtype, body)

    def _row_maxima(self, scores: Any) -> Any:
        """Returns the maximum of each row, at least the lowest finite number: differences are never `inf - inf`."""
        start = filled(_lowest(self.dtype), [self.rows.rows, 1], self.dtype)
        return _reduce_rows(scores, start, self.dtype, s.maximum)

    def _exponentials(self, scores: Any, peak: Any) -> Any:
        """Returns `exp(scores - peak)`, in a new buffer: in-place updates in a fused row loop are not vectorised."""
        operands = [(scores, self.dtype), (peak, self.dtype)]
        return pointwise(operands, shape_of(scores), self.dtype, lambda x, m: s.exp(x - m))

    def _add_row_sums(self, powers: Any, start: Any) -> Any:
        return _reduce_rows(powers, start, self.dtype, lambda total, x: total + x)

    def _store_result(self, state: _State) -> Any:
        def body(_: Scalar, x: Scalar) -> Scalar:
            return s.select(x.compare("eq", 0), x.like(0), 1.0 / x) if self.attention.zero_masked_rows else 1.0 / x

        inverse = _update_in_place(
            empty([self.rows.rows, 1], self.dtype), self.dtype, [(state.total, self.dtype)], body
        )
        place = [self.start, 0], [self.rows.rows, self.attention.v[0].shape[-1]]
        inputs = [(state.values, self.dtype), (inverse, self.dtype)]
        tile = _update_in_place(self.out.tile(*place), self.dtype, inputs, lambda _, x, i: x * i)
        return tensor.insert_slice(tile, self.out.value, *_place(*place))


# ---- operands --------------------------------------------------------------------------------------------------------


def _operand(node: Op, symbol_table: SymbolTable) -> _Operand:
    """Returns an operand of a product.

    An operand that is a transpose is read from the transpose's operand, without a copy, unless rows become columns.
    """
    value = value_of(node, symbol_table)
    rank = len(shape_of(value))
    if rank < 3:
        raise LoweringError(f"attention of tensors with {rank} dims")
    dtype = node.tensor_meta.dtype
    if isinstance(node, (TransposeOp, PermuteOp)) and (node.args[0].name, 0) in symbol_table:
        order = permutation_of(node)
        if order[-2] < order[-1]:
            return _Operand(symbol_table[node.args[0].name, 0], dtype, tuple(order))
    return _Operand(value, dtype, tuple(range(rank)))


def _keys_and_values(
    node: Op, symbol_table: SymbolTable, by_parts: bool
) -> tuple[tuple[_Operand, ...], tuple[_Operand, ...]]:
    """Returns keys and values. With `by_parts`, the parts of concatenations (a cache and new keys) are read in place.

    If there are many query rows, each part would be read many times, which costs more than a copy.
    """
    parts = [_parts_of(arg, symbol_table) if by_parts else () for arg in node.args[1:3]]
    k, v = (tuple(_operand(part, symbol_table) for part in found) for found in parts)
    if k and [x.shape[:-1] for x in k] == [x.shape[:-1] for x in v]:
        return k, v
    k, v = ((_operand(arg, symbol_table),) for arg in node.args[1:3])
    return k, v


def _parts_of(node: Op, symbol_table: SymbolTable) -> tuple[Op, ...]:
    """Returns the parts of a concatenation along the rows.

    Returns an empty tuple for other ops, and if a part is unavailable or empty.
    """
    meta = node.tensor_meta
    rank = len(meta.shape)
    if not isinstance(node, CatOp) or normalize_dim(argument(node, 1, "dim", 0), rank) != rank - 2:
        return ()
    parts = tuple(node.args[0])
    known = all((part.name, 0) in symbol_table and part.tensor_meta.dtype is meta.dtype for part in parts)
    return parts if known and not any(0 in part.tensor_meta.shape for part in parts) else ()


def _mask(node: Op, symbol_table: SymbolTable, rank: int) -> _Operand:
    """Returns the mask with the rank of the queries; missing dims have size 1."""
    value, dtype = value_of(node, symbol_table), node.tensor_meta.dtype
    shape = shape_of(value)
    return _Operand(reshape(value, (*[1] * (rank - len(shape)), *shape), dtype), dtype, tuple(range(rank)))


def _broadcast_tile(mask: _Operand, place: Sequence[Index], rows: int, columns: int) -> Any:
    """Returns the tile of a mask at `place`; dims of size 1 keep this size."""
    sizes = [*[1] * (len(place) - 2), rows, columns]
    offsets = [0 if size == 1 else offset for offset, size in zip(place, mask.shape, strict=True)]
    return mask.tile(offsets, [1 if size == 1 else wanted for wanted, size in zip(sizes, mask.shape, strict=True)])


def _out_order(node: Op) -> tuple[int, ...]:
    """Returns the memory layout of the result: rows before heads if every reader transposes it to that layout."""
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


def _read_once(node: Op) -> bool:
    """True if `node` is the result of an op, perhaps transposed or viewed, and no other node reads it.

    False for views of a part of a tensor and for inputs, whose memory may have other readers.
    """
    while isinstance(node, (ViewOp, TransposeOp, PermuteOp)) and len(node._children) == 1:
        node = node.args[0]
    return len(node._children) == 1 and not isinstance(node, (PlaceholderOp, ReshapeFamilyOp, GetItemOp))


# ---- building blocks -------------------------------------------------------------------------------------------------


def _update_in_place(
    target: Any, dtype: TensorDType, inputs: Sequence[tuple[Any, TensorDType]], body: Callable[..., Scalar]
) -> Any:
    """Returns `body(element of target, elements of the broadcast inputs)`, emit in place of `target`.

    Loop-carried tensors must be updated in place, so that bufferization does not copy them.
    """
    shape, types = shape_of(target), [t for _, t in inputs]

    def scalars(*values: Any) -> list[Any]:
        return [body(Scalar(values[-1], dtype), *map(Scalar, values, types)).value]

    dims = [broadcast_dims(shape_of(value), shape) for value, _ in inputs]
    every = list(range(len(shape)))
    return generic([value for value, _ in inputs], dims, [target], [every], [PARALLEL] * len(shape), scalars)[0]


def _reduce_rows(value: Any, start: Any, dtype: TensorDType, body: Callable[[Scalar, Scalar], Scalar]) -> Any:
    """Reduces the rows of `value` [rows, n] by `body(accumulated, element)`, starting at `start` [rows, 1]."""

    def scalars(x: Any, accumulated: Any) -> list[Any]:
        return [body(Scalar(accumulated, dtype), Scalar(x, dtype)).value]

    return generic([value], [[0, 1]], [start], [[0, None]], [PARALLEL, REDUCTION], scalars)[0]


def _lowest(dtype: TensorDType) -> float:
    """Returns the lowest finite number of a float type."""
    return -3.4028234663852886e38 if dtype is TensorDType.Float32 else -1.7976931348623157e308


def _multiply(index: Index, factor: int) -> Index:
    if isinstance(index, int):
        return index * factor
    return index if factor == 1 else arith.muli(index, _constant(factor))


def _add(index: Index, number: int) -> Index:
    if isinstance(index, int):
        return index + number
    return index if number == 0 else arith.addi(index, _constant(number))


def _divide(index: Index, divisor: int) -> Index:
    if isinstance(index, int):
        return index // divisor
    return index if divisor == 1 else arith.divui(index, _constant(divisor))


def _value(index: Index) -> Any:
    return _constant(index) if isinstance(index, int) else index


def _constant(number: int) -> Any:
    return arith.constant(ir.IndexType.get(), number)


def _loop(lower: Index, upper: Index, carried: list[Any], body: Callable[[Index, list[Any]], list[Any]]) -> list[Any]:
    """Emits `scf.for` around `body(index, carried) -> carried`. A loop of zero iterations or one is not emitted."""
    if isinstance(lower, int) and isinstance(upper, int) and upper - lower <= 1:
        return body(lower, carried) if upper > lower else carried
    loop = scf.ForOp(_value(lower), _value(upper), _constant(1), carried)
    with ir.InsertionPoint(loop.body):
        scf.yield_(body(loop.induction_variable, list(loop.inner_iter_args)))
    return list(loop.results)


def _parallel(sizes: Sequence[int], out: _Operand, tile: Sequence[int], body: Callable[[list[Index], Any], Any]) -> Any:
    """Emits a parallel loop that replaces `out`'s matrix at each index below `sizes` by `body(indices, matrix)`."""
    whole = [*[1] * len(sizes), *tile]
    if all(size == 1 for size in sizes):
        place = [0] * len(whole)
        return tensor.insert_slice(body(place[:-2], out.tile(place, whole)), out.value, *out.place(place, whole))
    loop = scf.ForallOp([0] * len(sizes), list(sizes), [1] * len(sizes), [out.value])
    with ir.InsertionPoint(loop.body):
        indices, shared = list(loop.induction_variables), dataclasses.replace(out, value=loop.inner_iter_args[0])
        place = [*indices, 0, 0]
        made = body(indices, shared.tile(place, whole))
        where = shared.place(place, whole)
        with ir.InsertionPoint(scf.InParallelOp().block):
            tensor.ParallelInsertSliceOp(made, shared.value, *where)
    return loop.results[0]
