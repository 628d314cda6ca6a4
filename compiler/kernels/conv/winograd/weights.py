"""Weights of 3x3 windows, transformed for F(m x m, 3 x 3) and packed as the matrix products read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.bindings import ir
from buddy.compiler.kernels.arithmetic import converted
from buddy.compiler.kernels.conv.winograd.transforms import WINDOW, on_both_sides, transforms
from buddy.compiler.kernels.emit import Emitter, Index, for_blocks
from buddy.compiler.kernels.packing import Extent


@dataclass(frozen=True)
class TransformedWeights:
    """`G g Gᵀ` of every window as [panel, point, channel in, column]; columns beyond the channels out are zeros.

    `n`, `channels` and `window` are sizes and strides in the weights as the program has them.
    """

    outputs: int
    n: Extent
    channels: Extent
    window: tuple[int, int]
    columns: int

    @property
    def points(self) -> int:
        return (self.outputs + WINDOW - 1) ** 2

    @property
    def shape(self) -> tuple[int, ...]:
        return (-(-self.n[0] // self.columns), self.points, self.channels[0], self.columns)

    def fill(self, e: Emitter, source: Any, target: Any) -> None:
        """Emit what makes it, from the flat weights `source` to the flat `target`. Sums are in double precision."""
        self._zero_rest(e, target)

        def panel(number: Index, active: int) -> None:
            read, written = e.mul(number, self.columns * self.n[1]), e.mul(number, self._panel)

            def one(indices: list[Index]) -> None:
                here = e.dot(indices, (self.channels[1], self.n[1]), read)
                self._window(e, source, here, target, e.dot(indices, (self.columns, 1), written))

            e.nest((self.channels[0], active), one)

        for_blocks(e, self.n[0], self.columns, panel)

    @property
    def _panel(self) -> int:
        return self.points * self.channels[0] * self.columns

    def _window(self, e: Emitter, source: Any, here: Index, target: Any, there: Index) -> None:
        """One window, from offset `here` on, to all of its points, from offset `there` on."""
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

    def _zero_rest(self, e: Emitter, target: Any) -> None:
        """Zeros for all of the last panel, where it is wider than what is left for it."""
        panels, rest = divmod(self.n[0], self.columns)
        if not rest:
            return
        zero = e.zero(target.type.element_type)

        def one(index: Index, _: list[Any]) -> Sequence[Any]:
            e.store_scalar(zero, target, index)
            return ()

        e.loop(panels * self._panel, (panels + 1) * self._panel, 1, one)
