"""Indices out of range: compiled code reads and writes nothing outside its tensors, whatever the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from buddy.compiler.presets import default_recipe
from buddy.compiler.runner import LoadedProgram
from tests.programs import Line, assert_same

TABLE = torch.arange(12.0).reshape(4, 3)
FAR = torch.tensor([1, 4, 1 << 40, -1, -(1 << 40)])
# The places that these mean in compiled code. (-1 is the last one where negative indices count from the end, too.)
LAST = torch.tensor([1, 3, 3, 3, 3])

PROGRAMS: dict[str, Callable[..., Any]] = {
    "embedding": lambda x, i: F.embedding(i, x),
    "gather": lambda x, i: x.gather(0, i[:, None].expand(5, 3)),
    "index_select": lambda x, i: x.index_select(0, i),
    "index": lambda x, i: x[i],
    "scatter": lambda x, i: x.scatter(0, i[:, None].expand(5, 3), x.repeat(2, 1)),
    "index_put": lambda x, i: x.index_put((i,), x[:1]),
    "index_add": lambda x, i: x.index_add(0, i, x.repeat(2, 1)[:5]),
    "put": lambda x, i: x.put(i, x[:, 0].repeat(2)[:5]),
}


@pytest.mark.parametrize("preset", ["default", "upstream"])
def test_an_index_out_of_range_means_the_last_place(preset: str) -> None:
    def every(x: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
        return [program(x, i) for name, program in PROGRAMS.items() if name != "put"]

    line = Line(every, TABLE, LAST)
    program = LoadedProgram(line.compile(default_recipe(preset=preset)).artifact)
    tensors = [FAR if tensor.dtype is torch.int64 else tensor for tensor in line.program.tensors]
    assert_same(program(tensors), every(TABLE, LAST), [name for name in PROGRAMS if name != "put"])


def test_a_flat_index_out_of_range_means_the_last_element() -> None:
    line = Line(PROGRAMS["put"], TABLE, LAST)
    program = LoadedProgram(line.compile().artifact)
    tensors = [FAR if tensor.dtype is torch.int64 else tensor for tensor in line.program.tensors]
    assert_same(program(tensors), [PROGRAMS["put"](TABLE, torch.tensor([1, 4, 11, 11, 11]))])
