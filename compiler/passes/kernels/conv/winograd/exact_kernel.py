"""Winograd's convolution of bytes: exact sums, computed from 16-bit transforms by sums modulo 2^32.

A tile of F(4, 3) needs a quarter of the products of direct convolution, but of 16-bit integers, not bytes. Integer
matrices give 24² times the sums of a tile (see `exact_transforms`). These multiples may need more than 32 bits, but
overflows on the way do not matter, as additions and multiplications modulo 2^32 are associative and distributive:
`emit_exact_division` recovers each sum of at most 26 bits. Sums over more channels are computed in parts.

To keep sums small, images of unsigned bytes are read with 128 subtracted. The sums then lack 128 times the sum of the
weights, which is added at the end.
"""

from __future__ import annotations

import functools

from buddy.compiler.mlir.bindings import arith, ir, memref
from buddy.compiler.passes.kernels.contraction import convert_elements
from buddy.compiler.passes.kernels.conv.winograd.kernel import Tile, Winograd
from buddy.compiler.passes.kernels.conv.winograd.transforms import emit_exact_division
from buddy.compiler.passes.kernels.dot_instructions import OFFSET, DotInstruction
from buddy.compiler.passes.kernels.emit import Index
from buddy.compiler.passes.kernels.packing import ALIGNMENT


class ExactWinograd(Winograd):
    """Emits one convolution of bytes by signed weights."""

    @property
    def instruction(self) -> DotInstruction:
        assert self.block.gemm.instruction is not None
        return self.block.gemm.instruction

    @property
    def _subtracts_offset(self) -> bool:
        """True if images have unsigned bytes, which are read with `OFFSET` subtracted."""
        return self.conv.unsigned[0]

    def load_channels(self, offset: Index, active: int) -> ir.Value:
        value = self.e.load(self.a, offset, self.input_lanes, active)
        if self._subtracts_offset:
            value = arith.xori(value, self.e.splat(value.type, -OFFSET))  # an unsigned x becomes the signed x - OFFSET
        return convert_elements(value, ir.IntegerType.get_signless(16))

    def emit_panel(self, transformed: ir.Value, panel: Index, first: Index, count: Index) -> None:
        if not self._subtracts_offset:
            super().emit_panel(transformed, panel, first, count)
            return
        type_ = ir.MemRefType.get([self.columns], self.vector.element_type)
        self._corrections = memref.alloc(type_, [], [], alignment=ALIGNMENT)
        self._store_corrections(panel)
        super().emit_panel(transformed, panel, first, count)
        memref.dealloc(self._corrections)

    def _store_corrections(self, panel: Index) -> None:
        """Stores `OFFSET` times the sum of each output channel's weights in `panel`.

        The transform of a window at the point (1, 1) is a multiple of the sum of its weights.
        """
        e, group, lanes, packing = self.e, self.instruction.group, self.lanes, self.packing
        point = next(i for i, row in enumerate(self.matrices.of_weights) if len(set(row)) == 1)
        multiple = int(self.matrices.of_weights[point][0]) ** 2
        first = (point * len(self.matrices.of_weights) + point) * packing.point_elements
        ones = e.splat(ir.VectorType.get([lanes * group], ir.IntegerType.get_signless(16)), 1)
        sums = [e.zero(self.vector)] * self.block.gemm.vectors
        for part in range(packing.parts):
            weights = self.part_weights(panel, part)

            def add_channels(step: Index, carried: list[ir.Value], weights: ir.Value = weights) -> list[ir.Value]:
                starts = [e.add(step, first + i * lanes * group) for i in range(len(carried))]
                vectors = [e.load(weights, start, lanes * group) for start in starts]
                return [self.instruction.emit(total, ones, v) for total, v in zip(carried, vectors, strict=True)]

            sums = e.loop(0, packing.point_elements, group * self.columns, add_channels, sums)
        for i, value in enumerate(sums):
            e.store(arith.muli(value, e.splat(self.vector, OFFSET // multiple)), self._corrections, i * lanes)

    def add_parts(self, values: list[list[ir.Value]]) -> list[ir.Value]:
        sums = [[emit_exact_division(self.e, value) for value in part] for part in values]
        return [functools.reduce(arith.addi, outputs) for outputs in zip(*sums, strict=True)]

    def finish_channels(
        self, tile: Tile, values: list[ir.Value], column: Index, vector_number: Index, active: int
    ) -> None:
        if self._subtracts_offset:
            correction = self.e.load(self._corrections, self.e.mul(vector_number, self.lanes), self.lanes)
            values = [arith.addi(value, correction) for value in values]
        self.store_tile(tile, values, active)
