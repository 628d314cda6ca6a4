"""Rounds two vectors of f32 to bfloat16 by one instruction, and emits the body of an op on two vectors at a time.

On AMD's Zen 4, `vcvtne2ps2bf16` rounds two vectors in the time in which `vcvtneps2bf16` rounds one, and a shuffle with
zeros widens each of them again, where an extension takes a shuffle and a shift.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from buddy.compiler.mlir.bindings import ir, llvm, vector
from buddy.compiler.passes.kernels.body import VectorBody
from buddy.compiler.passes.kernels.dot_instructions import VDPBF16PS, as_elements
from buddy.compiler.passes.kernels.emit import KernelEmitter

# Lanes of each of the two vectors of f32 that the instruction rounds.
LANES = 16
_INTRINSIC = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"


def rounds_pairs(instruction: str, lanes: int) -> bool:
    """True if a kernel that multiplies with `instruction`, in vectors of `lanes` sums, can round two of them at once.

    Both instructions belong to the extension AVX512_BF16.
    """
    return instruction == VDPBF16PS.name and lanes == LANES


def rounds(op: ir.Operation) -> bool:
    """True if `op` rounds a f32 to bfloat16."""
    return op.name == "arith.truncf" and rounds_types(op.operands[0].type, op.results[0].type)


def rounds_types(wide: ir.Type, narrow: ir.Type) -> bool:
    """True if a conversion between these types rounds a f32 to bfloat16."""
    return (str(wide), str(narrow)) == ("f32", "bf16")


@dataclass
class PairedValues:
    """The vectors of the scalars of a body that is emitted twice, for two vectors of sums.

    `vectors` has those of the first and of the second time. `pairs` has the scalars that the body rounds: both vectors
    in one, those of the first time in the lower half.
    """

    e: KernelEmitter
    vectors: tuple[dict[ir.Value, ir.Value], dict[ir.Value, ir.Value]]
    pairs: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def round(self, scalar: ir.Value, first: ir.Value, second: ir.Value) -> None:
        """Rounds the vectors `first` and `second` of f32, and records the result as those of `scalar`."""
        type_ = ir.VectorType.get([2 * LANES], ir.BF16Type.get())
        self.pairs[scalar] = llvm.call_intrinsic(type_, _INTRINSIC, [second, first], [], [])

    def widened(self, scalar: ir.Value, number: int) -> ir.Value:
        """Returns the rounded `scalar` of the first (0) or second (1) time as f32: 16 zero bits, then its 16 bits."""
        words = as_elements(self.pairs[scalar], ir.IntegerType.get_signless(16))
        first_zero = 2 * LANES  # the number of the first element of the second operand of the shuffle
        mask = [element for lane in range(LANES) for element in (first_zero, number * LANES + lane)]
        return as_elements(vector.shuffle(words, self.e.zero(words.type), mask), ir.F32Type.get())

    def split(self, scalar: ir.Value) -> None:
        """Extracts both vectors of `scalar`, if it is rounded."""
        for number, vectors in enumerate(self.vectors):
            if scalar in self.pairs and scalar not in vectors:
                mask = [number * LANES + lane for lane in range(LANES)]
                vectors[scalar] = vector.shuffle(self.pairs[scalar], self.pairs[scalar], mask)


def emit_paired_body(body: VectorBody, values: PairedValues) -> None:
    """Emits `body` twice, op by op, and adds the results to `values`."""
    for op in (op.operation for op in body.op.block.operations):
        if op.name == "linalg.yield":
            continue
        with op.location:
            if rounds(op):
                values.split(op.operands[0])
                values.round(op.results[0], *(body.vector_of(op.operands[0], vectors) for vectors in values.vectors))
                continue
            is_widening = op.name == "arith.extf" and str(op.results[0].type) == "f32"
            for number, vectors in enumerate(values.vectors):
                if is_widening and op.operands[0] in values.pairs:
                    vectors[op.results[0]] = values.widened(op.operands[0], number)
                    continue
                for scalar in op.operands:
                    values.split(scalar)
                body.emit_op(op, vectors)
