"""Transforms weights of 3x3 windows for F(m x m, 3 x 3) and packs them for the matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.passes.kernels.arithmetic import converted
from buddy.compiler.passes.kernels.conv.winograd.transforms import WINDOW, on_both_sides, transforms
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, for_blocks
from buddy.compiler.passes.kernels.packing import Extent, PackedWindows


@dataclass(frozen=True)
class TransformedWeights:
    """`G g Gᵀ` of every window as [panel, point, input channel, column]; columns beyond the output channels are zeros.

    `n`, `channels` and `window` are sizes and strides of the unpacked weights.
    """

    outputs: int
    n: Extent
    channels: Extent
    window: tuple[int, int]
    columns: int
    lanes: int

    @property
    def points(self) -> int:
        return (self.outputs + WINDOW - 1) ** 2

    @property
    def shape(self) -> tuple[int, ...]:
        return (-(-self.n[0] // self.columns), self.points, self.channels[0], self.columns)

    def fill(self, e: KernelEmitter, source: Any, target: Any) -> None:
        """Emits the transform from the flat weights `source` to the flat `target`. Sums are in double precision."""
        if not self._dense:
            self._zero_rest(e, target)

        def panel(number: Index, active: int) -> None:
            read, written = e.mul(number, self.columns * self.n[1]), e.mul(number, self._panel)
            if self._dense:
                self._by_vectors(e, source, read, active, target, written)
                return

            def one(indices: list[Index]) -> None:
                here = e.dot(indices, (self.channels[1], self.n[1]), read)
                self._window(e, source, here, target, e.dot(indices, (self.columns, 1), written))

            e.nest((self.channels[0], active), one)

        for_blocks(e, self.n[0], self.columns, panel)

    @property
    def _panel(self) -> int:
        return self.points * self.channels[0] * self.columns

    @property
    def _dense(self) -> bool:
        """True if windows are contiguous, channel by channel, as in PyTorch."""
        size = WINDOW * WINDOW
        return (self.window, self.channels[1], self.n[1], self.lanes > 1) == (
            (WINDOW, 1), size, size * self.channels[0], True,
        )  # fmt: skip

    def _by_vectors(self, e: KernelEmitter, source: Any, read: Index, active: int, target: Any, written: Index) -> None:
        """Emits a panel, one vector of columns at a time."""
        windows = PackedWindows(e, source, self.n[1], WINDOW * WINDOW, self.columns, self.lanes)
        double, element = ir.F64Type.get(), source.type.element_type
        matrix = transforms(self.outputs).of_weights

        def one(channel: Index, rows: list[Index]) -> None:
            there = e.add(written, e.mul(channel, self.columns))

            def vector(column: Index, _: list[Any]) -> Sequence[Any]:
                values = [
                    converted(e.load(windows.scratch, e.add(row, column), self.lanes), double) for row in rows
                ]  # fmt: skip
                grid = [values[line * WINDOW : (line + 1) * WINDOW] for line in range(WINDOW)]
                found = [value for row in on_both_sides(e, matrix, grid) for value in row]
                for point, value in enumerate(found):
                    offset = e.add(e.add(there, column), point * self.channels[0] * self.columns)
                    e.store(converted(value, element), target, offset)
                return ()

            e.loop(0, self.columns, self.lanes, vector)

        windows.each(read, self.channels[0], active, one)

    def _window(self, e: KernelEmitter, source: Any, here: Index, target: Any, there: Index) -> None:
        """Transforms one window, from offset `here`, to all of its points, from offset `there`."""
        double, element = ir.F64Type.get(), source.type.element_type

        def weight(line: int, pixel: int) -> Any:
            offset = e.dot((line, pixel), self.window, here)
            return converted(e.load_scalar(source, offset), double)

        matrix = transforms(self.outputs).of_weights
        grid = [[weight(line, pixel) for pixel in range(WINDOW)] for line in range(WINDOW)]
        rows = on_both_sides(e, matrix, grid)
        for point, value in enumerate(value for row in rows for value in row):
            offset = e.add(there, point * self.channels[0] * self.columns)
            e.store_scalar(converted(value, element), target, offset)

    def _zero_rest(self, e: KernelEmitter, target: Any) -> None:
        """Emits zeros for the whole last panel, if fewer columns are left than its width."""
        panels, rest = divmod(self.n[0], self.columns)
        if not rest:
            return
        zero = e.zero(target.type.element_type)

        def one(index: Index, _: list[Any]) -> Sequence[Any]:
            e.store_scalar(zero, target, index)
            return ()

        e.loop(panels * self._panel, (panels + 1) * self._panel, 1, one)
