"""Random bits of the counter-based generator Philox 4x32-10, computed from the index of each element."""

from __future__ import annotations

from collections.abc import Sequence

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.operations.effects import PHILOX_KEY_INCREMENTS, PHILOX_MULTIPLIERS, PHILOX_ROUNDS
from buddy.compiler.graph.sizes import Dim
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.sizes import index_value
from buddy.compiler.ops.utils import SymbolTable, argument, constant, value_of

ops_registry = Registry()
lowering = ops_registry.lowering
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
