"""Indices out of range: compiled code reads and writes nothing outside its tensors, whatever the data."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime import LoadedProgram
from tests.ops.cases import aten
from tests.programs import Line, assert_same

TABLE = torch.arange(12.0).reshape(4, 3)
INSIDE = torch.tensor([1, 3, 0, 2, 3])
FAR = [torch.tensor([1, at, 0, 2, 3]) for at in (4, 12, 1 << 40, -5, -13, -(1 << 40))]

PROGRAMS: dict[str, Callable[..., Any]] = {
    "embedding": lambda x, i: F.embedding(i, x),
    "gather": lambda x, i: x.gather(0, i[:, None].expand(5, 3)),
    "index_select": lambda x, i: x.index_select(0, i),
    "index": lambda x, i: x[i],
    "two indices": lambda x, i: x[i, i % 3],
    "scatter": lambda x, i: x.scatter(0, i[:, None].expand(5, 3), x.repeat(2, 1)),
    "scatter into a constant": lambda x, i: torch.full((5, 4), 2.0).scatter(1, i[:, None], 7),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None].expand(5, 3), x.repeat(2, 1)),
    "index_put": lambda x, i: x.index_put((i,), x[:1]),
    "put": lambda x, i: x.put(i * 3, x[:, 0].repeat(2)[:5]),
}


@pytest.mark.parametrize("preset", ["default", "upstream"])
def test_an_index_out_of_range_is_refused_in_eagers_words(preset: str) -> None:
    """Those of the op whose index it is: all others are given indices inside."""

    def every(x: torch.Tensor, *indices: torch.Tensor) -> list[torch.Tensor]:
        return [program(x, i) for program, i in zip(PROGRAMS.values(), indices, strict=True)]

    inside = [INSIDE + 0 for _ in PROGRAMS]
    line = Line(every, TABLE, *inside)
    program = LoadedProgram(line.compile(default_recipe(preset=preset)).artifact)
    assert_same(program(line.program.tensors), every(TABLE, *inside), list(PROGRAMS))
    for number, name in enumerate(PROGRAMS):
        for far in FAR:
            given = [far if i == number else index for i, index in enumerate(inside)]
            try:
                PROGRAMS[name](TABLE, far)
            except (IndexError, RuntimeError) as error:
                with pytest.raises(type(error), match=re.escape(str(error).splitlines()[0][:60])):
                    program([TABLE, *given])
            else:
                raise AssertionError(f"eager takes {far} for {name}")


def test_indices_that_no_input_tells_are_not_looked_through() -> None:
    line = Line(lambda x: x[torch.arange(3) + 1].gather(1, torch.full((3, 2), 2)), TABLE)
    line.compile()
    assert "func.call" not in line.stages[0][1].content


def test_positions_of_maxima_may_be_anything() -> None:
    def gradient(x: torch.Tensor, at: torch.Tensor) -> list[torch.Tensor]:
        plane, window = x[:3].reshape(1, 1, 3, 3), ([2, 2], [1, 1], [0, 0], [1, 1], False)
        return [aten.max_pool2d_with_indices_backward(plane[:, :, :2, :2], plane, *window, at.reshape(1, 1, 2, 2))]

    inside = [TABLE, torch.tensor([1, 8, 8, 8])]
    program = LoadedProgram(Line(gradient, *inside).compile().artifact)
    assert_same(program([TABLE, torch.tensor([1, 9, 1 << 40, -1])]), gradient(*inside))


def test_a_sorter_out_of_range_is_refused_in_eagers_words() -> None:
    def search(x: torch.Tensor, sorter: torch.Tensor) -> list[torch.Tensor]:
        return [torch.searchsorted(x[:, 0].contiguous(), x[:, 1].contiguous(), sorter=sorter)]

    program = LoadedProgram(Line(search, TABLE, torch.arange(4)).compile().artifact)
    assert_same(program([TABLE, torch.arange(4)]), search(TABLE, torch.arange(4)))
    with pytest.raises(RuntimeError, match="sorter index out of range"):
        program([TABLE, torch.tensor([0, 1, 2, 1 << 40])])


def test_a_mask_with_ones_but_no_values_writes_nothing() -> None:
    line = Line(lambda x: x.index_put((x > 99,), x.new_empty(0)), TABLE)
    program = LoadedProgram(line.compile().artifact)
    assert_same(program([TABLE]), [TABLE])
    with pytest.raises(RuntimeError, match="shape mismatch"):
        program([TABLE + 99])
