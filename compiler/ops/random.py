"""Random bits of the counter-based generator Philox 4x32-10, computed from the index of each element."""

from __future__ import annotations

from typing import Any

from buddy.compiler.graph.node import Op, argument
from buddy.compiler.graph.operations.effects import KEY_STEPS, MULTIPLIERS, ROUNDS
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.sizes import index_value
from buddy.compiler.ops.utils import SymbolTable, constant, value_of

ops_registry = Registry()
lowering = ops_registry.lowering
# Each 32-bit word is the low half of an i64, so that one vector instruction computes both halves of a product.
_WIDE, _WORD = TensorDType.Int64, 0xFFFFFFFF


@lowering("PhiloxOp")
def philox(node: Op, symbol_table: SymbolTable) -> Any:
    """Computes one block per element; after fusion, nodes that read other words of the same block share it."""
    meta, stream = node.tensor_meta, int(argument(node, 1, "stream"))
    rank, chosen = len(meta.shape), int(node.args[3]) if len(node.args) > 3 else 0

    def body(seed: Any, _out: Any) -> list[Any]:
        words = _rounds(_place(meta.shape), stream, Scalar(seed, _WIDE))
        if meta.dtype is TensorDType.Int32:
            return [cast(words[chosen], meta.dtype).value]
        low, high = words[2 * chosen : 2 * chosen + 2]
        return [(low | Scalar(arith.shli(high.value, constant(32, _WIDE)), _WIDE)).value]

    seed = st.reshape(value_of(node.args[0], symbol_table), [], _WIDE)
    out = st.empty(meta.shape, meta.dtype)
    return st.generic([seed], [[]], [out], [[*range(rank)]], [st.PARALLEL] * rank, body)[0]


def _place(shape: Any) -> Scalar:
    """Returns the row-major index of the element, in the body of a `linalg.generic` over `shape`."""
    place: Any = None
    for dim, size in enumerate(shape):
        index = st.loop_index(dim)
        place = index if place is None else arith.addi(arith.muli(place, index_value(size)), index)
    if place is None:
        return Scalar(constant(0, _WIDE), _WIDE)
    return Scalar(arith.index_cast(ir.IntegerType.get_signless(64), place), _WIDE)


def _rounds(place: Scalar, stream: int, seed: Scalar) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    a, b, c, d = place & _WORD, _high(place), place.like(stream), place.like(0)
    one, other = seed & _WORD, _high(seed)
    for _ in range(ROUNDS):
        left, right = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b, c, d = _high(right) ^ b ^ one, right & _WORD, _high(left) ^ d ^ other, left & _WORD
        one, other = (one + KEY_STEPS[0]) & _WORD, (other + KEY_STEPS[1]) & _WORD
    return a, b, c, d


def _high(x: Scalar) -> Scalar:
    return Scalar(arith.shrui(x.value, constant(32, _WIDE)), _WIDE)
