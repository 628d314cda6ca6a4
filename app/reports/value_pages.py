"""The values of the tensors of a run: the tensors to view, a cache of blocks of values, and the formats of values.

Does not import Textual.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from buddy.compiler.protocol import Element, RunTensor, ValueKind, Values

# The size of the block of values of one request: about a screen.
BLOCK_ROWS, BLOCK_COLUMNS = 64, 32
# The sides of an output that can be viewed.
OUTPUT_SIDES: tuple[ValueKind, ...] = ("output", "eager", "difference")
# The width of a column in characters; one of them separates columns.
CELL_WIDTH = 11


class ViewedTensor(NamedTuple):
    """A tensor to view, and its sides: `OUTPUT_SIDES` or some of them, or "input"."""

    tensor: RunTensor
    sides: tuple[ValueKind, ...]

    @property
    def title(self) -> str:
        return f"{self.tensor.name} {self.tensor.dtype}[{','.join(map(str, self.tensor.shape))}]"


def viewed_tensors(tensors: Sequence[RunTensor]) -> list[ViewedTensor]:
    """Returns the outputs, then the inputs. An output has a difference only if eager's output has the same shape."""
    outputs_by_name = {tensor.name: tensor for tensor in tensors if tensor.kind == "output"}
    outputs = []
    for tensor in tensors:
        if tensor.kind == "eager":
            output = outputs_by_name.get(tensor.name)
            sides: tuple[ValueKind, ...] = ("eager",)
            if output is not None:
                sides = OUTPUT_SIDES if output.shape == tensor.shape else ("output", "eager")
            outputs.append(ViewedTensor(tensor, sides))
    return [*outputs, *(ViewedTensor(tensor, ("input",)) for tensor in tensors if tensor.kind == "input")]


class ValuePages:
    """The cached blocks of one side of a sliced tensor. `has_size` says whether its height and width are known."""

    def __init__(self, height: int = 0, width: int = 0) -> None:
        self.height, self.width = height, width
        self.has_size = bool(height or width)
        self._blocks: dict[tuple[int, int], Values] = {}

    def add(self, values: Values) -> None:
        """Caches a block of values, and sets the size of the tensor."""
        self.height, self.width, self.has_size = values.height, values.width, True
        self._blocks[values.row // BLOCK_ROWS, values.column // BLOCK_COLUMNS] = values

    def missing_blocks(self, row: int, rows: int, column: int, columns: int) -> list[tuple[int, int]]:
        """Returns the first row and column of each uncached block of the window of `rows` x `columns` values."""
        block_rows = range(row // BLOCK_ROWS, (row + max(rows, 1) - 1) // BLOCK_ROWS + 1)
        block_columns = range(column // BLOCK_COLUMNS, (column + max(columns, 1) - 1) // BLOCK_COLUMNS + 1)
        blocks = ((block_row, block_column) for block_row in block_rows for block_column in block_columns)
        starts = [(block[0] * BLOCK_ROWS, block[1] * BLOCK_COLUMNS) for block in blocks if block not in self._blocks]
        return [start for start in starts if not self.has_size or self._is_inside(*start)]

    def _is_inside(self, row: int, column: int) -> bool:
        return row < self.height and column < self.width

    def cell(self, row: int, column: int) -> Element | None:
        """Returns a value; `None` if it is not cached."""
        block = self._blocks.get((row // BLOCK_ROWS, column // BLOCK_COLUMNS))
        return block.cells[row % BLOCK_ROWS][column % BLOCK_COLUMNS] if block is not None else None

    def row_name(self, row: int) -> str:
        """Returns the index of a row as text; empty if no value of the row is cached."""
        block = next((block for (block_row, _), block in self._blocks.items() if block_row == row // BLOCK_ROWS), None)
        return block.row_names[row % BLOCK_ROWS] if block is not None else ""

    def column_name(self, column: int) -> str:
        """Returns the index of a column as text; empty if no value of the column is cached."""
        block = next(
            (block for (_, block_column), block in self._blocks.items() if block_column == column // BLOCK_COLUMNS),
            None,
        )
        return str(block.column_names[column % BLOCK_COLUMNS]) if block is not None else ""

    def row_values(self, row: int) -> list[Element]:
        """Returns the cached values of a row."""
        return [cell for column in range(self.width) if (cell := self.cell(row, column)) is not None]


def value_text(value: Element | None, width: int = CELL_WIDTH - 1) -> str:
    """Returns a value in at most `width` characters; a dot for a value that is not cached."""
    if value is None:
        return "."
    if not isinstance(value, float):
        text = str(value)
        return text if len(text) <= width else text[: width - 1] + "~"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    text = f"{value:.5g}"
    return text if len(text) <= width else f"{value:.2e}"


def value_role(value: Element | None, side: ValueKind, max_error: float) -> str:
    """Returns the theme's role for a value: `bad` if it is not finite, or a difference of `max_error` / 2 or more.

    Other differences are `warn`, or `faint` if 0.
    """
    if side == "difference" and isinstance(value, int | float):
        if value == 0:
            return "faint"
        is_large = max_error > 0 and abs(value) >= max_error / 2
        return "bad" if is_large or not math.isfinite(value) else "warn"
    return "bad" if isinstance(value, float) and not math.isfinite(value) else "text"
