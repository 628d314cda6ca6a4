"""The base class of Winograd's kernels: the check that sums are finite, and direct convolution if they are not.

Output transforms add and subtract the values of all points, so an infinity would become NaN in results that do not
depend on it, and sums of large numbers may overflow where the products of the convolution do not.
"""

from __future__ import annotations

import functools

from buddy.compiler.mlir.bindings import arith, ir, vector
from buddy.compiler.passes.kernels.contraction import convert_elements, emit_add, emit_multiply_add
from buddy.compiler.passes.kernels.conv.direct import ConvKernel
from buddy.compiler.passes.kernels.conv.shape import Convolution
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter
from buddy.compiler.passes.kernels.epilogue import KernelResults, ResultOffsets


class CheckedKernel(ConvKernel):
    """A kernel that convolves directly, with the flat `unpacked` weights, where its own sums are not finite."""

    def __init__(
        self,
        e: KernelEmitter,
        a: ir.Value,
        b: ir.Value,
        unpacked: ir.Value,
        results: KernelResults,
        conv: Convolution,
    ) -> None:
        super().__init__(e, a, b, results, conv)
        self.unpacked = unpacked

    def are_finite(self, values: list[ir.Value]) -> ir.Value:
        """Emits an i1 that is true if all values and their sum are finite."""
        total = functools.reduce(arith.addf, values)
        zero_or_nan = arith.subf(total, total)  # NaN for an infinity, and for NaN
        is_zero = arith.cmpf(arith.CmpFPredicate.OEQ, zero_or_nan, self.e.zero(self.vector))
        return vector.reduction(ir.IntegerType.get_signless(1), vector.CombiningKind.AND, is_zero)

    def store(self, value: ir.Value, offsets: ResultOffsets, active: int) -> None:
        """Adds the initial sums to `value` and stores it, through the epilogue if there is one."""
        if self.results.has_initial_sums:
            value = emit_add(self.results.initial(offsets, 0, active), value)
        self.results.finish(value, offsets, 0, active)

    def direct_sums(self, start: Index, column: Index, active: int) -> ir.Value:
        """Returns the sums of the window at offset `start` of the image, for `active` channels from `column` on."""
        e, channel_stride, mask = self.e, self.conv.n.strides[1], self.e.mask(self.lanes, active)
        weight_type = ir.VectorType.get([self.lanes], self.unpacked.type.element_type)
        index_type = ir.VectorType.get([self.lanes], ir.IndexType.get())
        channel_offsets = arith.muli(vector.step(index_type), e.splat(index_type, channel_stride))

        def add_product(number: Index, total: list[ir.Value]) -> list[ir.Value]:
            a, b = start, e.mul(column, channel_stride)
            for loop in reversed(self.conv.k):
                number, k = e.divide(number, loop.size)
                a_stride, b_stride, _ = loop.strides
                a, b = e.add(a, e.mul(k, a_stride)), e.add(b, e.mul(k, b_stride))
            weights = vector.gather(
                weight_type, self.unpacked, [e.value(b)], channel_offsets, mask, e.zero(weight_type)
            )
            wide = convert_elements(weights, self.vector.element_type)
            return [emit_multiply_add(self.broadcast_element(a), wide, total[0])]

        # One loop over the whole window: LLVM would unroll short loops to much code that rarely runs.
        return e.loop(0, self.conv.depth, 1, add_product, [e.zero(self.vector)])[0]
