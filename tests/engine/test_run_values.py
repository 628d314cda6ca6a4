"""The values of a run, by windows: which tensors there are, slices, differences from eager, and maps of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from buddy.compiler.engine.run_values import RunValues, parse_index
from buddy.compiler.protocol import FetchValues, ListValues, MapDifferences
from buddy.compiler.support.processes.jobs import Job, JobFailed

EAGER = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.fixture
def stored() -> Any:
    """Two outputs: one that differs at [1, 2, 3] and is infinite at [0, 0, 0], and a complex one; one too long."""
    sent: list[Any] = []
    values = RunValues(sent.append)
    folder = values.new_folder()
    ours = EAGER.copy()
    ours[1, 2, 3] += 0.5
    ours[0, 0, 0] = np.inf
    arrays = {("eager", "a"): EAGER, ("output", "a"): ours}
    arrays |= {("eager", "z"): np.array([1 + 2j]), ("output", "z"): np.array([1 + 2j]), ("input", "e"): EAGER[:0]}
    arrays |= {("eager", "n"): np.array([2**62]), ("output", "n"): np.array([2**62 + 1])}
    arrays |= {("eager", "w"): EAGER, ("output", "w"): EAGER[0]}
    arrays |= {("eager", "s"): np.array(3), ("output", "s"): np.array(5)}
    entries = []
    for number, ((kind, name), array) in enumerate(arrays.items()):
        np.save(folder / f"{number}.npy", array)
        entries.append((kind, name, str(array.dtype), array.shape, f"{number}.npy"))
    entries.append(("input", "long", "float32", (10**9,), ""))
    keys = ("kind", "name", "dtype", "shape", "file")
    (folder / "index.json").write_text(json.dumps([dict(zip(keys, entry, strict=True)) for entry in entries]))
    values.add(0, folder)
    values.sent = sent  # type: ignore[attr-defined]
    yield values
    values.close()


async def asked(stored: Any, frame: Any) -> Any:
    acts = {ListValues: stored.list_values, FetchValues: stored.fetch_values, MapDifferences: stored.map_differences}
    await acts[type(frame)](frame, Job(frame.request))
    return stored.sent[-1]


async def test_a_window_has_the_rows_and_columns_asked_for_with_their_names(stored: Any) -> None:
    found = await asked(stored, FetchValues(1, 0, "eager", "a", row=2, rows=2, column=1, columns=2))
    assert (found.height, found.width) == (6, 4)
    assert found.cells == ((9.0, 10.0), (13.0, 14.0))
    assert found.row_names == ("0,2", "1,0")
    assert found.column_names == (1, 2)


async def test_slices_take_what_they_take_in_python(stored: Any) -> None:
    found = await asked(stored, FetchValues(1, 0, "eager", "a", "1, ::2, 1:3"))
    assert np.array_equal(np.array(found.cells), EAGER[1, ::2, 1:3])
    assert (found.row_names, found.column_names) == (("0", "2"), (1, 2))
    one = await asked(stored, FetchValues(1, 0, "eager", "a", "[1, 2, -1]"))
    assert one.cells == ((23.0,),)
    assert (await asked(stored, FetchValues(1, 0, "eager", "a", "..., 0"))).cells == (
        (0.0, 4.0, 8.0),
        (12.0, 16.0, 20.0),
    )


@pytest.mark.parametrize(
    ("slices", "said"),
    [("2", "index 2 is out of range for dim 0 of size 2"), ("0,0,0,0", "the tensor has 3"),
     ("x", "neither an index nor a slice"), ("::0", "the step of '::0' is 0"), ("...,...", "may occur once")],
)  # fmt: skip
async def test_slices_that_do_not_fit_are_refused_with_the_reason(stored: Any, slices: str, said: str) -> None:
    with pytest.raises(JobFailed, match=said):
        await asked(stored, FetchValues(1, 0, "eager", "a", slices))


async def test_differences_are_ours_less_eagers_and_0_where_both_are_the_same(stored: Any) -> None:
    found = await asked(stored, FetchValues(1, 0, "difference", "a"))
    assert found.cells[5][3] == 0.5
    assert found.cells[0][0] == math.inf
    assert sum(cell != 0 for row in found.cells for cell in row) == 2
    assert (await asked(stored, FetchValues(1, 0, "difference", "s"))).cells == ((2.0,),)
    assert (await asked(stored, FetchValues(1, 0, "difference", "n"))).cells == ((1.0,),)
    assert (await asked(stored, MapDifferences(1, 0, "n"))).blocks == ((1.0,),)
    with pytest.raises(JobFailed, match="different shapes") as error:
        await asked(stored, FetchValues(1, 0, "difference", "w"))
    assert "slice" not in str(error.value.diagnostic)
    assert (await asked(stored, FetchValues(1, 0, "output", "z"))).cells == (("1+2j",),)


async def test_a_map_has_the_worst_of_each_block_and_where_it_begins(stored: Any) -> None:
    found = await asked(stored, MapDifferences(1, 0, "a", rows=3, columns=2))
    assert found.blocks == ((math.inf, 0.0), (0.0, 0.0), (0.0, 0.5))
    assert (found.row_starts, found.column_starts) == ((0, 2, 4, 6), (0, 2, 4))
    inner = await asked(stored, MapDifferences(1, 0, "a", "1", rows=99, columns=99))
    assert inner.blocks[2] == (0.0, 0.0, 0.0, 0.5)


async def test_empty_long_and_unknown_tensors_are_told_apart(stored: Any) -> None:
    tensors = (await asked(stored, ListValues(1, 0))).tensors
    assert [tensor.name for tensor in tensors if not tensor.is_stored] == ["long"]
    assert (await asked(stored, FetchValues(1, 0, "input", "e"))).cells == ()
    with pytest.raises(JobFailed, match="too large to be stored"):
        await asked(stored, FetchValues(1, 0, "input", "long"))
    with pytest.raises(JobFailed, match="no output b"):
        await asked(stored, FetchValues(1, 0, "output", "b"))
    with pytest.raises(JobFailed, match="graph 1 has not been run"):
        await asked(stored, ListValues(1, 1))


async def test_the_run_before_goes_and_the_folder_ends_with_the_engine(stored: Any) -> None:
    first = stored.new_folder()
    stored.add(0, first)
    second = stored.new_folder()
    stored.add(0, second)
    assert not first.exists()
    stored.close()
    assert not second.exists()
    assert not Path(second).parent.exists()


def test_what_no_slice_says_is_all_of_a_dim() -> None:
    assert parse_index("1", (2, 3)) == (1, slice(None))
    assert parse_index("", ()) == ()
