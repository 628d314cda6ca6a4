"""Reads windows of the tensors of each graph's latest run, which runners store in files.

Imports neither torch nor MLIR.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.run_report import (
    DifferenceMap,
    FetchValues,
    ListValues,
    MapDifferences,
    RunTensor,
    ValueList,
    Values,
)
from buddy.compiler.support.files import scratch_folder
from buddy.compiler.support.processes.jobs import Job, JobFailed

if TYPE_CHECKING:
    import numpy as np

    from buddy.compiler.protocol.connection import Frame


Index = tuple[int | slice, ...]
_INDEX_FILE = "index.json"
# The largest window of one answer; no screen shows more.
_MAX_ROWS, _MAX_COLUMNS = 1000, 1000
# Files that are not larger than a page are read instead of mapped.
_MIN_MAPPED_BYTES = 4096


class RunValues:
    """The folders with the tensors of each graph's latest run; `close` removes them."""

    def __init__(self, send: Callable[[Frame], None]) -> None:
        self._send = send
        self._base: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0
        # The folder of each graph's latest run, by the number of the graph.
        self._runs: dict[int, Path] = {}

    def new_folder(self) -> Path:
        """Returns an empty folder for the runner of the next run."""
        if self._base is None:
            self._base = scratch_folder("values")
        self._count += 1
        folder = Path(self._base.name) / str(self._count)
        folder.mkdir()
        return folder

    def add(self, graph: int, folder: Path) -> None:
        """Adds `folder` as the values of a graph's latest run, and removes those of the previous run."""
        drop_values(self._runs.get(graph))
        self._runs[graph] = folder

    def clear(self) -> None:
        """Removes all values, because another program has been opened."""
        for folder in self._runs.values():
            drop_values(folder)
        self._runs.clear()

    def close(self) -> None:
        self._runs.clear()
        if self._base is not None:
            self._base.cleanup()

    # ---- requests ------------------------------------------------------------------------------------------------

    async def list_values(self, frame: ListValues, job: Job) -> None:
        tensors = tuple(_tensor(entry) for entry in self._entries(frame.graph))
        self._send(ValueList(job.request, tensors))

    async def fetch_values(self, frame: FetchValues, job: Job) -> None:
        kinds = ("output", "eager") if frame.kind == "difference" else (frame.kind,)
        files = [self._file(frame.graph, kind, frame.name) for kind in kinds]
        self._send(await _compute_in_thread(_window, files, frame, frame.name))

    async def map_differences(self, frame: MapDifferences, job: Job) -> None:
        files = [self._file(frame.graph, kind, frame.name) for kind in ("output", "eager")]
        self._send(await _compute_in_thread(_difference_map, files, frame, frame.name))

    def _entries(self, graph: int) -> list[dict[str, Any]]:
        """Returns the index of the tensors of a graph's latest run. Raises `JobFailed`."""
        folder = self._runs.get(graph)
        if folder is None:
            raise JobFailed(Diagnostic(f"graph {graph} has not been run", "its values", "run it first"))
        try:
            entries: list[dict[str, Any]] = json.loads((folder / _INDEX_FILE).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise JobFailed(Diagnostic(f"cannot read the values: {error}", str(folder), "run it again")) from error
        return entries

    def _file(self, graph: int, kind: str, name: str) -> Path:
        """Returns the file of tensor `name` of a kind ("input", "output" or "eager"). Raises `JobFailed`."""
        for entry in self._entries(graph):
            if (entry["kind"], entry["name"]) == (kind, name):
                if not entry["file"]:
                    what = f"{name} is too large to be stored"
                    raise JobFailed(Diagnostic(what, "its values", "write it to a file with `buddy-tui reproduce`"))
                return self._runs[graph] / str(entry["file"])
        raise JobFailed(Diagnostic(f"the run has no {kind} {name}", "its values"))


def drop_values(folder: Path | None) -> None:
    """Removes the folder of a run, if it has one."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _tensor(entry: dict[str, Any]) -> RunTensor:
    return RunTensor(entry["kind"], entry["name"], entry["dtype"], tuple(entry["shape"]), bool(entry["file"]))


async def _compute_in_thread(
    compute: Callable[[list[Any], Any], Any], files: list[Path], frame: Frame, name: str
) -> Any:
    """Calls `compute` with the arrays in `files` and `frame` in a thread, so that the event loop is not blocked.

    `name` is the tensor's, for messages. Raises `JobFailed` for an invalid slice, arrays of different shapes, or a file
    that was deleted.
    """

    def work() -> Any:
        import numpy as np

        def load(file: Path) -> Any:
            # An empty array cannot be mapped, and mapping a small one gains nothing.
            return np.load(file, mmap_mode="r" if file.stat().st_size > _MIN_MAPPED_BYTES else None)

        return compute([load(file) for file in files], frame)

    try:
        return await asyncio.to_thread(work)
    except ValueError as error:
        raise JobFailed(Diagnostic(str(error), f"a slice of {name}", "as in Python: 0, :, 3:8")) from error
    except _ShapeMismatchError as error:
        raise JobFailed(Diagnostic(str(error), f"the difference of {name}", "look at each of the two")) from error
    except OSError as error:
        raise JobFailed(Diagnostic(f"the values of {name} were deleted: {error}", todo="run again")) from error


def parse_index(text: str, shape: Sequence[int]) -> Index:
    """Parses an index of a tensor, as in `tensor[...]`. Raises `ValueError` for an index that does not fit `shape`."""
    unbracketed = text.strip().removeprefix("[").removesuffix("]")
    parts = [part.strip() for part in unbracketed.split(",") if part.strip()]
    if parts.count("...") > 1:
        raise ValueError("... may occur once")
    if "..." in parts:
        ellipsis = parts.index("...")
        parts[ellipsis : ellipsis + 1] = [":"] * (len(shape) - len(parts) + 1)
    if len(parts) > len(shape):
        raise ValueError(f"{len(parts)} dims are sliced, the tensor has {len(shape)}")
    parts += [":"] * (len(shape) - len(parts))
    return tuple(_parse_part(part, dim, size) for dim, (part, size) in enumerate(zip(parts, shape, strict=True)))


def _parse_part(part: str, dim: int, size: int) -> int | slice:
    """Parses the index or slice of dim `dim`, which has `size` elements. Raises `ValueError`."""
    try:
        numbers = [int(number) if number.strip() else None for number in part.split(":")]
    except ValueError:
        raise ValueError(f"{part!r} is neither an index nor a slice of dim {dim}") from None
    if len(numbers) == 1 and numbers[0] is not None:
        if not -size <= numbers[0] < size:
            raise ValueError(f"index {numbers[0]} is out of range for dim {dim} of size {size}")
        return numbers[0] % size
    if numbers[2:] == [0]:
        raise ValueError(f"the step of {part!r} is 0")
    if len(numbers) > 3:
        raise ValueError(f"{part!r} is not a slice of dim {dim}")
    return slice(*numbers)


class _ShapeMismatchError(Exception):
    """Two arrays cannot be subtracted, because their shapes differ."""


class _Matrix:
    """Arrays of one shape, sliced alike, as matrices: columns are the last remaining dim, rows all other dims."""

    def __init__(self, arrays: list[np.ndarray], slices: str) -> None:
        shape = arrays[0].shape
        if any(array.shape != shape for array in arrays):
            raise _ShapeMismatchError("the output and eager's have different shapes")
        index = parse_index(slices, shape)
        self.views = [array[index] for array in arrays]
        # The indices of the elements in each dim that is sliced; dims with a single index do not remain.
        ranges = [
            range(*part.indices(size)) for part, size in zip(index, shape, strict=True) if isinstance(part, slice)
        ]
        self._row_ranges, self._column_range = ranges[:-1], ranges[-1] if ranges else range(1)
        self.height, self.width = math.prod(map(len, self._row_ranges)), len(self._column_range)

    def row(self, view: Any, row: int) -> Any:
        """Returns a row of one of the views; if no dim remains, the row has one element."""
        return view[self._row_index(row)] if view.ndim else view.reshape(1)

    def _row_index(self, row: int) -> tuple[int, ...]:
        """Returns the index of a row in all dims of the views but the last."""
        index = []
        for dim in reversed(self._row_ranges):
            row, position = divmod(row, len(dim))
            index.append(position)
        return tuple(reversed(index))

    def row_name(self, row: int) -> str:
        """Returns the index of a row in the tensor, such as `0,3`."""
        return ",".join(str(dim[i]) for dim, i in zip(self._row_ranges, self._row_index(row), strict=True))

    def column_names(self, first: int, end: int) -> tuple[int, ...]:
        return tuple(self._column_range[first:end])


def _window(arrays: list[np.ndarray], frame: FetchValues) -> Values:
    """Returns the window of elements that `frame` requests, of one array or of the difference of two."""
    matrix = _Matrix(arrays, frame.slices)
    row, column = max(frame.row, 0), max(frame.column, 0)
    end = min(row + min(frame.rows, _MAX_ROWS), matrix.height)
    right = min(column + min(frame.columns, _MAX_COLUMNS), matrix.width)
    cells = []
    for number in range(row, end):
        parts = [matrix.row(view, number)[column:right] for view in matrix.views]
        elements = parts[0] if len(parts) == 1 else _subtract(*parts)
        cells.append(tuple(map(_element, elements.tolist())))
    names = tuple(matrix.row_name(number) for number in range(row, end))
    return Values(
        frame.request, matrix.height, matrix.width, row, column, tuple(cells), names, matrix.column_names(column, right)
    )


def _element(value: Any) -> bool | int | float | str:
    """Returns an element in a type that MessagePack has: a complex number becomes a text."""
    return f"{value:.6g}" if isinstance(value, complex) else value


def _to_wide(array: np.ndarray) -> np.ndarray:
    """Returns `array` in a type in which differences are accurate, and integers do not wrap around.

    On x86-64, `longdouble` has 64 bits for the fraction, as many as the widest integers.
    """
    import numpy as np

    if array.dtype.kind in "iu":
        return array.astype(np.longdouble)
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def _subtract(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Returns the difference; 0 where both are equal, also if both are the same infinity or both are NaN."""
    import numpy as np

    one, other = _to_wide(ours), _to_wide(theirs)
    with np.errstate(invalid="ignore"):
        difference = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, one - other)
    return difference if np.iscomplexobj(difference) else difference.astype(np.float64)


def _difference_map(arrays: list[np.ndarray], frame: MapDifferences) -> DifferenceMap:
    """Returns the largest absolute difference of two arrays in each block of a grid; NaN counts as infinity."""
    import numpy as np

    matrix = _Matrix(arrays, frame.slices)
    row_starts = _starts(matrix.height, min(frame.rows, _MAX_ROWS))
    column_starts = _starts(matrix.width, min(frame.columns, _MAX_COLUMNS))
    ours, theirs = (view.reshape(matrix.height, matrix.width) for view in matrix.views)
    blocks = []
    for top, bottom in pairwise(row_starts):
        column_maxima = np.abs(_subtract(ours[top:bottom], theirs[top:bottom])).max(axis=0)
        column_maxima = np.nan_to_num(column_maxima, nan=math.inf, posinf=math.inf)
        blocks.append(tuple(float(column_maxima[left:right].max()) for left, right in pairwise(column_starts)))
    return DifferenceMap(frame.request, tuple(blocks), tuple(row_starts), tuple(column_starts))


def _starts(length: int, max_count: int) -> list[int]:
    """Divides `length` into at most `max_count` non-empty parts; returns the start of each part, then `length`."""
    count = min(length, max(max_count, 1))
    return [number * length // count for number in range(count + 1)] if count else [0]
