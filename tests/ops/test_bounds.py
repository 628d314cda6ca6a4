"""Indices out of range: compiled code reads and writes nothing outside its tensors, whatever the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from buddy.compiler.presets import default_recipe
from buddy.compiler.runner import LoadedProgram
from tests.ops.cases import aten
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


def test_positions_of_maxima_and_a_sorter_may_be_anything() -> None:
    def every(x: torch.Tensor, at: torch.Tensor, sorter: torch.Tensor) -> list[torch.Tensor]:
        plane, window = x[:3].reshape(1, 1, 3, 3), ([2, 2], [1, 1], [0, 0], [1, 1], False)
        return [
            aten.max_pool2d_with_indices_backward(plane[:, :, :2, :2], plane, *window, at.reshape(1, 1, 2, 2)),
            torch.searchsorted(x[:, 0].contiguous(), x[:, 1].contiguous(), sorter=sorter),
        ]

    inside = [TABLE, torch.tensor([1, 8, 8, 8]), torch.arange(4)]
    outside = [TABLE, torch.tensor([1, 9, 1 << 40, -1]), torch.tensor([0, 1, 2, 1 << 40])]
    program = LoadedProgram(Line(every, *inside).compile().artifact)
    assert_same(program(outside), every(*inside))


def test_a_mask_with_ones_but_no_values_writes_nothing() -> None:
    line = Line(lambda x: x.index_put((x > 99,), x.new_empty(0)), TABLE)
    assert_same(LoadedProgram(line.compile().artifact)([TABLE + 99]), [TABLE + 99])
