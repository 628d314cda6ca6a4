"""The values of a run as pages: tensors, cached blocks, number formats. No Textual."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from buddy.compiler.protocol import Element, KeptTensor, Values, Which

# The size of one request: about a screen.
ROWS, COLUMNS = 64, 32
SIDES: tuple[Which, ...] = ("output", "eager", "difference")
CELL = 11


class ViewedTensor(NamedTuple):
    """A tensor to view, and its sides: output, eager's output and their difference, or input."""

    tensor: KeptTensor
    sides: tuple[Which, ...]

    @property
    def title(self) -> str:
        return f"{self.tensor.name} {self.tensor.dtype}[{','.join(map(str, self.tensor.shape))}]"


def entries_of(tensors: Sequence[KeptTensor]) -> list[ViewedTensor]:
    """The entries for outputs, then for inputs. Only an output with the same shape as eager's has a difference."""
    by_side = {(tensor.which, tensor.name): tensor for tensor in tensors}
    found = []
    for tensor in tensors:
        if tensor.which == "eager":
            ours = by_side.get(("output", tensor.name))
            same = ours is not None and ours.shape == tensor.shape
            found.append(ViewedTensor(tensor, SIDES if same else ("output", "eager") if ours else ("eager",)))
    return [*found, *(ViewedTensor(tensor, ("input",)) for tensor in tensors if tensor.which == "input")]


class ValuePages:
    """The cached blocks of one side of a tensor, for one choice of slices."""

    def __init__(self, height: int = 0, width: int = 0) -> None:
        self.height, self.width = height, width
        self.known = bool(height or width)
        self._blocks: dict[tuple[int, int], Values] = {}

    def take(self, values: Values) -> None:
        self.height, self.width, self.known = values.height, values.width, True
        self._blocks[values.row // ROWS, values.column // COLUMNS] = values

    def missing(self, row: int, rows: int, column: int, columns: int) -> list[tuple[int, int]]:
        """The origins of the blocks that a window needs and that are not cached."""
        down = range(row // ROWS, (row + max(rows, 1) - 1) // ROWS + 1)
        across = range(column // COLUMNS, (column + max(columns, 1) - 1) // COLUMNS + 1)
        places = [(i, j) for i in down for j in across if (i, j) not in self._blocks]
        return [(i * ROWS, j * COLUMNS) for i, j in places if not self.known or self._inside(i, j)]

    def _inside(self, i: int, j: int) -> bool:
        return i * ROWS < self.height and j * COLUMNS < self.width

    def cell(self, row: int, column: int) -> Element | None:
        """A value, `None` if it is not cached."""
        block = self._blocks.get((row // ROWS, column // COLUMNS))
        return block.cells[row % ROWS][column % COLUMNS] if block is not None else None

    def row_name(self, row: int) -> str:
        """The index of a row; empty if no value of the row is cached."""
        block = next((found for (i, _), found in self._blocks.items() if i == row // ROWS), None)
        return block.row_names[row % ROWS] if block is not None else ""

    def column_name(self, column: int) -> str:
        block = next((found for (_, j), found in self._blocks.items() if j == column // COLUMNS), None)
        return str(block.column_names[column % COLUMNS]) if block is not None else ""

    def row_values(self, row: int) -> list[Element]:
        """The cached values of a row."""
        return [cell for column in range(self.width) if (cell := self.cell(row, column)) is not None]


def value_text(value: Element | None, width: int = CELL - 1) -> str:
    """A value in at most `width` characters; a dot for a value that is not cached."""
    if value is None:
        return "."
    if isinstance(value, bool) or not isinstance(value, float):
        text = str(value)
        return text if len(text) <= width else text[: width - 1] + "~"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    text = f"{value:.5g}"
    return text if len(text) <= width else f"{value:.2e}"


def role_of(value: Element | None, side: Which, worst: float) -> str:
    """The role of a value: differences relative to the largest, other values by whether they are finite."""
    if side == "difference" and isinstance(value, int | float):
        size = abs(value)
        if size == 0:
            return "faint"
        return "bad" if not math.isfinite(size) or size >= worst / 2 > 0 else "warn"
    return "bad" if isinstance(value, float) and not math.isfinite(value) else "text"
