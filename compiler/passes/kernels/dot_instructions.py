"""Instructions that multiply groups of narrow elements, and sum the products of a group in 32 bits.

Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, for the instructions on vectors;
volume 1, chapter 18, for those on tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from buddy.compiler.mlir.bindings import arith, ir, llvm, vector

# Bytes of a lane of a vector, which holds one sum, or one group of elements of A or B.
WORD_BYTES = 4
# Rows of a tile of AMX, and bytes in a row of it.
TILE_ROWS, TILE_ROW_BYTES = 16, 64

Unsigned = tuple[bool, bool]  # whether the integers of A, and those of B, are unsigned

_ANY_SIGNS: tuple[Unsigned, ...] = ((False, False), (False, True), (True, False), (True, True))


@dataclass(frozen=True)
class DotInstruction:
    """An instruction that multiplies `group` elements for each sum; `name` is its mnemonic.

    A lane of its operands has `group` elements of type `element` that are adjacent along K. Elements of A and B are of
    type `inputs`, and are widened to `element` if that is wider. Sums have the type `sums`. `unsigned` has the
    supported pairs: whether A and whether B is unsigned. `intrinsics` has LLVM's intrinsic by the bytes of a vector; an
    instruction on tiles has none.
    """

    name: str
    inputs: str
    element: str
    group: int
    sums: str
    unsigned: tuple[Unsigned, ...]
    intrinsics: tuple[tuple[int, str], ...] = ()

    @property
    def on_tiles(self) -> bool:
        """True if the instruction multiplies tiles, not vectors."""
        return not self.intrinsics

    @property
    def widens(self) -> bool:
        """True if elements are widened before they are multiplied."""
        return self.inputs != self.element

    @property
    def adds(self) -> bool:
        """True if the instruction adds to the sums; if not, products take a register until they are added."""
        return self.name != VPMADDWD.name

    def multiplies(self, inputs: tuple[str, str], sums: str, unsigned: Unsigned) -> bool:
        """True if the instruction multiplies elements of the types `inputs` and adds the products to `sums`."""
        is_supported = unsigned in self.unsigned or self.needs_offset(unsigned)
        return inputs == (self.inputs, self.inputs) and sums == self.sums and is_supported

    def needs_offset(self, unsigned: Unsigned) -> bool:
        """True if the kernel must add `OFFSET` to a signed A, and subtract `OFFSET` times the sums of B's columns."""
        return self.name == VPDPBUSD.name and unsigned == (False, False)

    def has_vectors_of(self, lanes: int) -> bool:
        """True if the instruction multiplies vectors with `lanes` sums."""
        return lanes * WORD_BYTES in dict(self.intrinsics)

    def emit(self, sums: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """Returns `sums` plus the products of `a` and `b`, vectors of `element`; not for an instruction on tiles."""
        intrinsic = dict(self.intrinsics)[sums.type.shape[0] * WORD_BYTES]
        if not self.adds:
            return arith.addi(sums, _call(intrinsic, sums.type, [a, b]))
        return _call(intrinsic, sums.type, [sums, a, b])


VDPBF16PS = DotInstruction(
    "vdpbf16ps", "bf16", "bf16", 2, "f32", ((False, False),),
    ((64, "llvm.x86.avx512bf16.dpbf16ps.512"), (32, "llvm.x86.avx512bf16.dpbf16ps.256")),
)  # fmt: skip
# A is unsigned, and B signed.
VPDPBUSD = DotInstruction(
    "vpdpbusd", "i8", "i8", 4, "i32", ((True, False),),
    ((64, "llvm.x86.avx512.vpdpbusd.512"), (32, "llvm.x86.avx512.vpdpbusd.256")),
)  # fmt: skip
# Products of bytes, widened to 16 bits, and sums of two of them are exact.
VPMADDWD = DotInstruction(
    "vpmaddwd", "i8", "i16", 2, "i32", _ANY_SIGNS,
    ((64, "llvm.x86.avx512.pmaddw.d.512"), (32, "llvm.x86.avx2.pmadd.wd")),
)  # fmt: skip
# Sums wrap around: they are exact modulo 2^32.
VPDPWSSD = DotInstruction(
    "vpdpwssd", "i16", "i16", 2, "i32", ((False, False),),
    ((64, "llvm.x86.avx512.vpdpwssd.512"), (32, "llvm.x86.avx512.vpdpwssd.256")),
)  # fmt: skip
TDPBF16PS = DotInstruction("tdpbf16ps", "bf16", "bf16", 2, "f32", ((False, False),))
# Stands for tdpbssd, tdpbsud, tdpbusd and tdpbuud, one for each pair of signs.
TDPB = DotInstruction("tdpbssd", "i8", "i8", 4, "i32", _ANY_SIGNS)

INSTRUCTIONS = {
    instruction.name: instruction for instruction in (TDPBF16PS, TDPB, VDPBF16PS, VPDPBUSD, VPDPWSSD, VPMADDWD)
}

# A signed byte x whose highest bit is inverted is x + OFFSET if it is read as unsigned.
OFFSET = 128


def _call(intrinsic: str, type_: ir.Type, operands: list[ir.Value]) -> ir.Value:
    return llvm.call_intrinsic(type_, intrinsic, operands, [], [])


def as_words(value: ir.Value, group: int) -> ir.Value:
    """Returns a vector of narrow elements as a vector of integers, of which each has the bits of `group` elements."""
    return as_elements(value, ir.IntegerType.get_signless(group * value.type.element_type.width))


def as_elements(value: ir.Value, element: ir.Type) -> ir.Value:
    """Returns the bits of the vector `value` as elements of type `element`."""
    old = value.type
    count = old.shape[0] * old.element_type.width // element.width
    return vector.bitcast(ir.VectorType.get([count], element), value)
