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

# Lanes of a vector of f32 that the instruction takes twice.
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
    """The vectors of the scalars of a body, for two executions of it.

    `pairs` has the scalars that are rounded: a vector with those of the first execution, followed by the second's.
    """

    e: KernelEmitter
    each: tuple[dict[ir.Value, ir.Value], dict[ir.Value, ir.Value]]
    pairs: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def round(self, scalar: ir.Value, first: ir.Value, second: ir.Value) -> None:
        """Makes `scalar` the vectors `first` and `second` of f32, rounded."""
        type_ = ir.VectorType.get([2 * LANES], ir.BF16Type.get())
        self.pairs[scalar] = llvm.call_intrinsic(type_, _INTRINSIC, [second, first], [], [])

    def widened(self, scalar: ir.Value, number: int) -> ir.Value:
        """Returns the rounded `scalar` of one execution as f32: each of its elements follows 16 bits of zeros."""
        words = as_elements(self.pairs[scalar], ir.IntegerType.get_signless(16))
        places = [place for lane in range(LANES) for place in (2 * LANES, number * LANES + lane)]
        return as_elements(vector.shuffle(words, self.e.zero(words.type), places), ir.F32Type.get())

    def split(self, scalar: ir.Value) -> None:
        """Extracts the vectors of a rounded `scalar`."""
        for number, values in enumerate(self.each):
            if scalar in self.pairs and scalar not in values:
                places = [number * LANES + lane for lane in range(LANES)]
                values[scalar] = vector.shuffle(self.pairs[scalar], self.pairs[scalar], places)


def emit_paired_body(body: VectorBody, values: PairedValues) -> None:
    """Emits `body` twice, op by op, and adds the results to `values`."""
    for op in (op.operation for op in body.op.block.operations):
        if op.name == "linalg.yield":
            continue
        with op.location:
            if rounds(op):
                values.split(op.operands[0])
                values.round(op.results[0], *(body.vector_of(op.operands[0], each) for each in values.each))
                continue
            is_widening = op.name == "arith.extf" and str(op.results[0].type) == "f32"
            for number, each in enumerate(values.each):
                if is_widening and op.operands[0] in values.pairs:
                    each[op.results[0]] = values.widened(op.operands[0], number)
                    continue
                for scalar in op.operands:
                    values.split(scalar)
                body.emit_op(op, each)
