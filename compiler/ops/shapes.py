"""Lowers views, slices, concatenation, and ops that create tensors.

Random bits are those of the counter-based generator Philox 4x32-10, computed from the index of each element.
"""

from __future__ import annotations

from collections.abc import Sequence

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.operations.effects import PHILOX_KEY_INCREMENTS, PHILOX_MULTIPLIERS, PHILOX_ROUNDS
from buddy.compiler.graph.sizes import Dim, Size, index_from_front, largest, smallest
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.scalar import Scalar, cast, size_scalar
from buddy.compiler.ops.sizes import index_value
from buddy.compiler.ops.structured import cast_tensor
from buddy.compiler.ops.utils import (
    LoweringError,
    Registry,
    SymbolTable,
    argument,
    constant,
    normalize_dim,
    permutation_of,
    value_of,
)

ops_registry = Registry()
lowering = ops_registry.lowering


@lowering("ViewOp", "ReshapeOp", "UnsqueezeOp", "SqueezeOp")
def reshape(node: Op, symbol_table: SymbolTable) -> ir.Value:
    meta = node.tensor_meta
    return st.reshape(value_of(node.args[0], symbol_table), meta.shape, meta.dtype)


@lowering("CloneOp", "AliasOp", "ViewAsRealOp", "ViewAsComplexOp")
def identity(node: Op, symbol_table: SymbolTable) -> ir.Value:
    return value_of(node.args[0], symbol_table)


@lowering("TOp", "TransposeOp", "PermuteOp")
def permute(node: Op, symbol_table: SymbolTable) -> ir.Value:
    return st.transpose(value_of(node.args[0], symbol_table), permutation_of(node), node.tensor_meta.dtype)


@lowering("ExpandOp")
def expand(node: Op, symbol_table: SymbolTable) -> ir.Value:
    meta = node.tensor_meta
    return st.broadcast(value_of(node.args[0], symbol_table), meta.shape, meta.dtype)


@lowering("RepeatOp")
def repeat(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Broadcasts along a new dim in front of each dim, and merges both: [n] becomes [1, n], [count, n], [count * n]."""
    value, meta = value_of(node.args[0], symbol_table), node.tensor_meta
    shape = [1] * (len(meta.shape) - len(st.shape_of(value))) + list(st.shape_of(value))
    with_unit_dims = [new_size for size in shape for new_size in (1, size)]
    repeated_shape = [new_size for count, size in zip(node.args[1], shape, strict=True) for new_size in (count, size)]
    repeats = st.broadcast(st.reshape(value, with_unit_dims, meta.dtype), repeated_shape, meta.dtype)
    return st.reshape(repeats, meta.shape, meta.dtype)


def _slice(
    value: ir.Value,
    starts: Sequence[Dim],
    sizes: Sequence[Dim],
    steps: Sequence[Dim],
    shape: Sequence[Dim],
    dtype: TensorDType,
) -> ir.Value:
    """Returns a slice as a tensor of `shape`, which may be empty and may lack unit dims of the slice."""
    if 0 in shape:
        return st.empty(shape, dtype)  # MLIR rejects an offset at the end of a dim, even of an empty slice
    return st.slice_of(value, starts, sizes, steps, shape, dtype)


def _slice_start(start: Dim, size: Dim, count: Dim, step: int) -> Dim:
    """Returns the start of a slice of `count` elements in a dim of `size`, counted from the front, and clamped to it.

    PyTorch has already checked that a static start is in range. A dynamic start is data: if it is out of range, eager
    raises, and compiled code clamps the start.
    """
    position = smallest(largest(index_from_front(start, size), 0), size)
    return largest(smallest(position, size - (count - 1) * step - 1), 0) if isinstance(start, Size) else position


@lowering("SliceOp")
def slice_(node: Op, symbol_table: SymbolTable) -> ir.Value:
    value, meta = value_of(node.args[0], symbol_table), node.tensor_meta
    shape = st.shape_of(value)
    if shape == meta.shape:
        return value
    dim = normalize_dim(argument(node, 1, "dim", 0), len(shape))
    start = argument(node, 2, "start")
    starts, steps = list[Dim]([0] * len(shape)), [1] * len(shape)
    steps[dim] = argument(node, 4, "step", 1) or 1
    starts[dim] = _slice_start(0 if start is None else start, shape[dim], meta.shape[dim], steps[dim])
    return _slice(value, starts, list(meta.shape), steps, meta.shape, meta.dtype)


@lowering("SelectOp")
def select(node: Op, symbol_table: SymbolTable) -> ir.Value:
    value, meta = value_of(node.args[0], symbol_table), node.tensor_meta
    shape = list(st.shape_of(value))
    dim, index = normalize_dim(node.args[1], len(shape)), node.args[2]
    starts, sizes = list[Dim]([0] * len(shape)), list[Dim](shape)
    starts[dim], sizes[dim] = _slice_start(index, shape[dim], 1, 1), 1
    return _slice(value, starts, sizes, [1] * len(shape), meta.shape, meta.dtype)


@lowering("SplitOp", "UnbindOp")
def split(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns consecutive pieces along a dim; `unbind` removes this dim from the pieces."""
    value = value_of(node.args[0], symbol_table)
    shape = list(st.shape_of(value))
    is_unbind = node.target.startswith("unbind")
    dim = normalize_dim(argument(node, 1 if is_unbind else 2, "dim", 0), len(shape))
    pieces: list[ir.Value] = []
    start: Dim = 0
    for meta in node.metas:
        assert meta is not None
        starts, sizes = list[Dim]([0] * len(shape)), list[Dim](shape)
        starts[dim], sizes[dim] = start, 1 if is_unbind else meta.shape[dim]
        pieces.append(_slice(value, starts, sizes, [1] * len(shape), meta.shape, meta.dtype))
        start += sizes[dim]
    return pieces


@lowering("SliceScatterOp", "SelectScatterOp")
def scatter_slice(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Returns the first operand with a slice, or the elements at one index of a dim, replaced by the second operand."""
    value, source = value_of(node.args[0], symbol_table), node.args[1]
    piece = cast_tensor(value_of(source, symbol_table), source.tensor_meta.dtype, node.tensor_meta.dtype)
    shape = list(st.shape_of(value))
    dim = normalize_dim(argument(node, 2, "dim", 0), len(shape))
    starts, steps, sizes = list[Dim]([0] * len(shape)), [1] * len(shape), list(shape)
    is_select = node.target.startswith("select")
    start = argument(node, 3, "index" if is_select else "start")
    steps[dim] = argument(node, 5, "step", 1) or 1
    sizes[dim] = 1 if is_select else st.shape_of(piece)[dim]
    starts[dim] = _slice_start(0 if start is None else start, shape[dim], sizes[dim], steps[dim])
    if 0 in sizes:
        return value
    return st.insert_slice(piece, value, starts, sizes, steps)


@lowering("CopyOp")
def copy(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Returns the second operand in the shape and type of the first one, whose elements are not used."""
    source, meta = node.args[1], node.tensor_meta
    inputs = [(value_of(source, symbol_table), source.tensor_meta.dtype)]
    return st.pointwise(inputs, meta.shape, meta.dtype, lambda x: cast(x, meta.dtype))


@lowering("CatOp")
def cat(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Inserts the tensors, one after another, into a new one; casts them to the result's type."""
    meta = node.tensor_meta
    dim = normalize_dim(argument(node, 1, "dim", 0), len(meta.shape))
    out, start = st.empty(meta.shape, meta.dtype), 0
    for part in node.args[0]:
        shape = part.tensor_meta.shape
        # PyTorch allows a one-dimensional empty tensor among tensors of any rank.
        if len(shape) != len(meta.shape) or 0 in shape:
            continue
        value = value_of(part, symbol_table)
        value = st.pointwise([(value, part.tensor_meta.dtype)], shape, meta.dtype, lambda x: cast(x, meta.dtype))
        starts = [start if i == dim else 0 for i in range(len(shape))]
        out = st.insert_slice(value, out, starts, list(shape), [1] * len(shape))
        start += shape[dim]
    return out


@lowering("FullOp", "ScalarTensorOp")
def full(node: Op, symbol_table: SymbolTable) -> ir.Value:
    value = node.args[0] if node.target.startswith("scalar_tensor") else argument(node, 1, "fill_value")
    if isinstance(value, Size):
        meta = node.tensor_meta
        return st.pointwise([], meta.shape, meta.dtype, lambda: cast(size_scalar(value), meta.dtype))
    if not isinstance(value, (bool, int, float)):
        raise LoweringError(f"the fill value {value} is not a compile-time constant")
    return st.filled(value, node.tensor_meta.shape, node.tensor_meta.dtype)


@lowering("ArangeOp")
def arange(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Computes float results in i64, or in f64 if start or step is a float, as in eager, and rounds once."""
    start, step = arange_bounds(node)
    meta = node.tensor_meta
    if 0 in meta.shape:
        return st.empty(meta.shape, meta.dtype)
    is_fractional = isinstance(start, float) or isinstance(step, float)
    wide = TensorDType.Float64 if is_fractional else TensorDType.Int64
    compute_type = wide if meta.dtype.is_float else meta.dtype

    def body(_out: ir.Value) -> list[ir.Value]:
        number = cast(Scalar(st.index_to_integer(st.loop_index(0), TensorDType.Int64), TensorDType.Int64), compute_type)
        return [cast(number * step + start, meta.dtype).value]

    return st.generic([], [], [st.empty(meta.shape, meta.dtype)], [[0]], [st.PARALLEL], body)[0]


def arange_bounds(node: Op) -> tuple[int, int]:
    """Returns start and step of an `arange` or `iota`; those of an `arange` may be floats."""
    if node.target.startswith("iota"):
        return node.kwargs.get("start", 0), node.kwargs.get("step", 1)
    if len(node.args) <= 1:
        return 0, 1
    return node.args[0], node.args[2] if len(node.args) > 2 else 1


# ---- random bits -----------------------------------------------------------------------------------------------------


# Each 32-bit word is the low half of an i64, so that one vector instruction computes both halves of a product.
_WIDE, _WORD_MASK = TensorDType.Int64, 0xFFFFFFFF


@lowering("PhiloxOp")
def philox(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Computes one block of four 32-bit words per element, and returns the word that the node selects.

    For 64-bit results, the node selects one of two pairs of words. After fusion, nodes that select different words of
    the same block share its computation. The arguments are the seed (a tensor of one i64), the stream number, the
    shape, and the number of the word or pair, by default 0.
    """
    meta, stream = node.tensor_meta, int(argument(node, 1, "stream"))
    rank, word = len(meta.shape), int(node.args[3]) if len(node.args) > 3 else 0

    def body(seed: ir.Value, _out: ir.Value) -> list[ir.Value]:
        words = _block(_element_index(meta.shape), stream, Scalar(seed, _WIDE))
        if meta.dtype is TensorDType.Int32:
            return [cast(words[word], meta.dtype).value]
        low, high = words[2 * word : 2 * word + 2]
        return [(low | Scalar(arith.shli(high.value, constant(32, _WIDE)), _WIDE)).value]

    seed = st.reshape(value_of(node.args[0], symbol_table), [], _WIDE)
    out = st.empty(meta.shape, meta.dtype)
    return st.generic([seed], [[]], [out], [[*range(rank)]], [st.PARALLEL] * rank, body)[0]


def _element_index(shape: Sequence[Dim]) -> Scalar:
    """Returns the row-major index of the element, in the body of a `linalg.generic` over `shape`."""
    flat: ir.Value | None = None
    for dim, size in enumerate(shape):
        index = st.loop_index(dim)
        flat = index if flat is None else arith.addi(arith.muli(flat, index_value(size)), index)
    if flat is None:
        return Scalar(constant(0, _WIDE), _WIDE)
    return Scalar(arith.index_cast(ir.IntegerType.get_signless(64), flat), _WIDE)


def _block(index: Scalar, stream: int, seed: Scalar) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Returns the four words of the block with counter (`index`, `stream`) and key `seed`."""
    a, b, c, d = index & _WORD_MASK, _high(index), index.like(stream), index.like(0)
    key0, key1 = seed & _WORD_MASK, _high(seed)
    for _ in range(PHILOX_ROUNDS):
        product0, product1 = a * PHILOX_MULTIPLIERS[0], c * PHILOX_MULTIPLIERS[1]
        a, b, c, d = (
            _high(product1) ^ b ^ key0,
            product1 & _WORD_MASK,
            _high(product0) ^ d ^ key1,
            product0 & _WORD_MASK,
        )
        key0, key1 = (key0 + PHILOX_KEY_INCREMENTS[0]) & _WORD_MASK, (key1 + PHILOX_KEY_INCREMENTS[1]) & _WORD_MASK
    return a, b, c, d


def _high(x: Scalar) -> Scalar:
    """Returns the upper 32 bits of an i64."""
    return Scalar(arith.shrui(x.value, constant(32, _WIDE)), _WIDE)
