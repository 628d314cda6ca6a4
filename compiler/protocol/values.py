"""Frames that read the tensors of the latest run of a graph, inputs and outputs, in windows."""

from __future__ import annotations

from typing import Literal

import msgspec

from buddy.compiler.protocol.frame import Frame, Request

Which = Literal["input", "output", "eager", "difference"]
Element = bool | int | float | str


class ListValues(Request["ValueList"], frozen=True):
    """List the tensors of the latest run of graph number `graph` with `keep`; answered by `ValueList`."""

    graph: int = 0


class FetchValues(Request["Values"], frozen=True):
    """Get a window of a tensor; answered by `Values`.

    `slices` is as in `tensor[...]` ("" for all of it): `0, :, 3:8`. The remaining dims are shown as a matrix, with the
    last dim along its rows. A `difference` is the output minus eager.
    """

    graph: int
    which: Which
    name: str
    slices: str = ""
    row: int = 0
    rows: int = 50
    column: int = 0
    columns: int = 20


class MapDifferences(Request["DifferenceMap"], frozen=True):
    """Compare output `name` with eager block by block.

    Answered by `DifferenceMap`, of at most `rows` x `columns` blocks of the matrix.
    """

    graph: int
    name: str
    slices: str = ""
    rows: int = 40
    columns: int = 100


class KeptTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tensor of a run. A tensor that was too large to store has no values: `kept` is false."""

    which: Which
    name: str
    dtype: str
    shape: tuple[int, ...]
    kept: bool = True


class ValueList(Frame, frozen=True):
    request: int
    tensors: tuple[KeptTensor, ...]


class Values(Frame, frozen=True):
    """`cells` of the matrix from `row` and `column` on; complex numbers are text.

    `height` and `width` are the matrix's. `row_names` are the indices of the rows' dims, such as `0,3`, `column_names`
    those of the last dim.
    """

    request: int
    height: int
    width: int
    row: int
    column: int
    cells: tuple[tuple[Element, ...], ...]
    row_names: tuple[str, ...]
    column_names: tuple[int, ...]


class DifferenceMap(Frame, frozen=True):
    """The greatest absolute difference in each block, infinite if only one side is finite.

    Block `(i, j)` begins at row `row_starts[i]` and column `column_starts[j]` of the matrix; the last entry of each is
    the end of the matrix.
    """

    request: int
    blocks: tuple[tuple[float, ...], ...]
    row_starts: tuple[int, ...]
    column_starts: tuple[int, ...]
