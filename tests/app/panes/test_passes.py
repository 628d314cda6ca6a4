"""The passes pane: which rows it shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from buddy.app.panes.pass_rows import fold_rows, pass_rows
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import Recipe

Open = Callable[..., Any]
PRESET = default_recipe()


def shown(recipe: Recipe) -> list[str]:
    return [row.name for row in fold_rows(pass_rows(recipe, []), PRESET)]


def number_of(recipe: Recipe, name: str) -> int:
    return next(index for index, step in enumerate(recipe.steps) if step.name == name)


def test_neighbouring_passes_that_the_preset_leaves_off_are_one_row() -> None:
    rows = fold_rows(pass_rows(PRESET, []), PRESET)
    folded = [row for row in rows if row.folded]
    assert folded
    assert all(len(row.folded) > 1 for row in folded)
    listed = [name for row in rows for name in (row.folded or (row.name,))]
    assert listed == [row.name for row in pass_rows(PRESET, [])]


def test_a_pass_that_the_user_switched_off_keeps_its_row() -> None:
    recipe = PRESET
    for name in ("fuse-epilogues", "fuse-rows"):
        recipe = recipe.toggled(number_of(recipe, name))
    assert {"fuse-epilogues", "fuse-rows"} <= set(shown(recipe))


def test_a_pass_that_the_user_switched_on_has_a_row() -> None:
    name = next(row.folded[1] for row in fold_rows(pass_rows(PRESET, []), PRESET) if row.folded)
    assert name not in shown(PRESET)
    assert name in shown(PRESET.toggled(number_of(PRESET, name)))


def test_an_unknown_preset_folds_nothing() -> None:
    steps = tuple(msgspec.structs.replace(step, enabled=False) for step in PRESET.steps)
    rows = pass_rows(msgspec.structs.replace(PRESET, steps=steps), [])
    assert fold_rows(rows, None) == rows


@pytest.mark.slow
async def test_a_key_shows_the_folded_passes_and_the_cursor_stays(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(160, 50)) as bench:
        passes = bench.app.passes
        await bench.press("tab")
        row = next(k for k, row in enumerate(passes.rows) if row.folded)
        first = passes.rows[row].folded[0]
        passes.move_to(row)
        await bench.press("z")
        assert passes.current.name == first
        assert not any(row.folded for row in passes.rows)
        await bench.press("j", "z")
        assert first in passes.current.folded


@pytest.mark.slow
async def test_space_enter_and_a_search_show_the_passes_of_one_row(workbench: Open) -> None:
    async with workbench("arith_add.py", size=(120, 40)) as bench:
        passes = bench.app.passes
        await bench.press("tab")
        for key in ("space", "enter"):
            row = next(k for k, row in enumerate(passes.rows) if row.folded)
            n_folded, names = sum(bool(row.folded) for row in passes.rows), passes.rows[row].folded
            passes.move_to(row)
            await bench.pilot.pause()
            await bench.sees(f"{len(names)} passes off: space shows")
            await bench.press(key)
            assert [row.name for row in passes.rows[row : row + len(names)]] == list(names)
            assert sum(bool(row.folded) for row in passes.rows) == n_folded - 1
            assert bench.app.workspace.recipe == bench.app.workspace.preset, "nothing was switched on"
        await bench.press("z")
        last = [row for row in passes.rows if row.folded][-1].folded[-1]
        await bench.press("slash", *last)
        assert last in passes.current.folded, "while the user types, nothing is unfolded"
        await bench.press("enter")
        assert passes.current.name == last
        assert bench.app.workspace.recipe.steps[passes.current.number].name == last


@pytest.mark.slow
async def test_the_pane_opens_at_the_first_pass_that_changed_something(workbench: Open) -> None:
    async with workbench("mlp.py") as bench:
        await bench.press("tab")
        passes, row = bench.app.passes, bench.app.passes.current
        assert row.step is not None
        assert row.stage.stage.changed
        assert not any(
            above.step and above.stage and above.stage.stage.changed for above in passes.rows[: passes.cursor]
        )
        assert bench.app.ir.chosen_key == row.stage.key, "the IR pane shows its result"
        await bench.press("j", "shift+tab", "tab")
        assert bench.app.ir.chosen_key != row.stage.key, "only once"


@pytest.mark.slow
async def test_the_pane_opens_at_the_stage_that_the_user_has_chosen(workbench: Open) -> None:
    async with workbench("mlp.py") as bench:
        await bench.press("5", "tab")
        assert bench.app.passes.current.stage.key == bench.app.ir.chosen_key
        assert bench.app.ir.stages.phase == "buffers"
