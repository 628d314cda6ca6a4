"""Values of a run, by pages, slices and maps of differences; on the real engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buddy.app.reports.value_pages import BLOCK_COLUMNS, BLOCK_ROWS, ValuePages, value_role, value_text, viewed_tensors
from buddy.app.screens.values import ValuesScreen
from buddy.compiler.protocol import RunTensor, Values

SCRIPT = """
import torch

def model(x):
    return x * 2 + 1, x.sum(dim=1)

example_inputs = (torch.arange(2 * 100 * 70, dtype=torch.float32).reshape(2, 100, 70),)
"""


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1.5, "1.5"), (-123456.7, "-1.2346e+05"), (1e-300, "1e-300"), (-1.23456e-300, "-1.23e-300"),
     (math.nan, "nan"), (True, "True"), (12345678901234, "123456789~"), ("1+2j", "1+2j"), (None, ".")],
)  # fmt: skip
def test_a_value_fits_its_cell(value: Any, text: str) -> None:
    assert value_text(value, 11 if text == "-1.2346e+05" else 10) == text
    assert len(value_text(value)) <= 10


def test_an_output_of_another_shape_has_no_difference_and_inputs_come_last() -> None:
    tensors = (
        RunTensor("input", "x", "float32", (2,)), RunTensor("eager", "a", "float32", (2,)),
        RunTensor("output", "a", "float32", (2,)), RunTensor("eager", "b", "float32", (2,)),
        RunTensor("output", "b", "float32", (3,)), RunTensor("eager", "c", "float32", (2,)),
    )  # fmt: skip
    found = [(entry.tensor.name, len(entry.sides)) for entry in viewed_tensors(tensors)]
    assert found == [("a", 3), ("b", 2), ("c", 1), ("x", 1)]


def test_only_missing_blocks_are_requested() -> None:
    pages = ValuePages()
    assert pages.missing_blocks(0, 10, 0, 5) == [(0, 0)]
    cells, row_names = ((1.0,) * BLOCK_COLUMNS,) * BLOCK_ROWS, tuple(map(str, range(BLOCK_ROWS)))
    pages.add(Values(1, 70, 40, 0, 0, cells, row_names, tuple(range(BLOCK_COLUMNS))))
    assert pages.missing_blocks(0, 10, 0, 5) == []
    assert pages.missing_blocks(60, 10, 30, 5) == [(0, BLOCK_COLUMNS), (BLOCK_ROWS, 0), (BLOCK_ROWS, BLOCK_COLUMNS)]
    assert pages.missing_blocks(60, 500, 0, 5) == [(BLOCK_ROWS, 0)]
    assert (pages.cell(3, 4), pages.cell(65, 0)) == (1.0, None)


def test_differences_are_coloured_relative_to_the_largest() -> None:
    roles = [value_role(value, "difference", 1.0) for value in (0.0, 0.1, -0.6, math.inf, math.nan)]
    assert roles == ["faint", "warn", "bad", "bad", "bad"]


@pytest.mark.slow
async def test_the_values_of_a_run_are_paged_sliced_and_compared(workbench: Callable[..., Any], tmp_path: Path) -> None:
    script = tmp_path / "three_dims.py"
    script.write_text(SCRIPT)
    async with workbench(script, size=(120, 40)) as bench:
        app = bench.app
        await bench.press("shift+tab", "v")
        await bench.sees("no run of this graph yet")
        await bench.press("r")
        await bench.until(lambda: app.state.report is not None, "the run")
        await bench.press("v")
        await bench.until(lambda: bench.shows("141"), "the first page")
        assert isinstance(app.screen, ValuesScreen)
        await bench.sees("compiled: ")
        await bench.sees("[0,0,0]  1.0")
        await bench.press("j", "l")
        await bench.until(lambda: bench.shows("[0,1,1]  143.0"), "the cell")
        await bench.press("G", *["greater_than_sign"] * 9)
        await bench.until(lambda: bench.shows("[1,99,69]  27999.0"), "the last cell")
        await bench.press("tab", "tab")
        await bench.until(lambda: bench.shows("difference: "), "the difference")
        await bench.until(lambda: bench.shows("[1,99,69]  0.0"), "no difference")
        await bench.press("colon")
        await bench.type("1, 5, 7:9")
        await bench.press("enter")
        await bench.until(lambda: bench.shows("[1, 5, 7:9]"), "the slice")
        await bench.press("tab")
        await bench.until(lambda: bench.shows("14715"), "the sliced values")
        await bench.press("colon", *["backspace"] * 12)
        await bench.type("9")
        await bench.press("enter")
        await bench.until(lambda: bench.shows("index 9 is out of range for dim 0 of size 2"), "the refusal")
        await bench.press("n")
        await bench.until(lambda: bench.shows("compiled: ") and bench.shows("(2 of 3)"), "the other output")
        await bench.press("n")
        await bench.until(lambda: bench.shows("input: ") and bench.shows("(3 of 3)"), "the input")
        await bench.press("m")
        await bench.until(lambda: bench.shows("only outputs can be compared with eager"), "no map of an input")
        await bench.press("p", "m")
        await bench.until(lambda: bench.shows("difference map: "), "the map")
        await bench.press("q")
        assert not isinstance(app.screen, ValuesScreen)
