"""The graph pane on the real engine: the tree of modules, picked nodes, neighbours, code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buddy.app.panes.graph_nodes import ModuleRow
from buddy.app.reports.formatting import ASCII, clip_start
from buddy.app.screens.detail import CodeScreen, CodeView
from buddy.app.screens.picker import PickerScreen
from buddy.compiler.protocol.recipe import EAGER

pytestmark = pytest.mark.slow
Open = Callable[..., Any]


async def test_nodes_have_the_names_of_their_modules_first(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        graph = bench.app.graph
        await bench.sees("up/addmm.0")
        await bench.sees("up.weight")
        graph.show_node("act/gelu.0")
        await bench.press("o")
        await bench.until(lambda: str(bench.app.screen.query_one("#box").border_title) == "act/gelu.0", "the title")
        await bench.press("q", "f")
        await bench.type("name:up/addmm*")
        await bench.press("enter")
        assert [row.stable for row in graph.rows] == ["up/addmm.0"]
        await bench.press("f", "ctrl+u", "enter", "g", "m")
        await bench.until(lambda: graph._shown_name(graph.rows[-2]) == graph.rows[-2].short_name, "the tree")


def test_the_end_of_a_long_name_is_kept() -> None:
    assert clip_start("layer.0.query/addmm.0", 12, ASCII) == "~ery/addmm.0"
    assert clip_start("add.0", 5, ASCII) == "add.0"
    assert clip_start("add.0", 0, ASCII) == ""


async def test_several_picked_nodes_switch_to_eager_at_once(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        graph, recipe = bench.app.graph, bench.app.workspace
        await bench.press("f")
        await bench.type("op:addmm lowering:linalg")
        await bench.press("enter")
        assert [row.name for row in graph.rows] == ["addmm", "addmm_1"]
        await bench.press("V")
        await bench.sees("2 nodes picked")
        await bench.press("space")
        await bench.settled()
        assert {choice.node for choice in recipe.recipe.choices} == {row.stable for row in graph.selected_rows}
        assert {choice.lowering for choice in recipe.recipe.choices} == {EAGER}
        await bench.press("space")
        await bench.settled()
        assert recipe.recipe.choices == (), "both are compiled again"
        await bench.press("V", "f", "ctrl+u")
        await bench.type("time>1ms")
        await bench.press("enter")
        await bench.sees("no node has been timed yet")
        assert graph.filter_text == "op:addmm lowering:linalg", "a filter that cannot be read changes nothing"
        await bench.press("f", "ctrl+u", "enter")
        graph.show_node(next(row.stable for row in graph.rows if row.name == "addmm"))
        await bench.press("O")
        assert len(graph.selected_rows) == 2
        await bench.press("V", "v")
        assert [row.name for row in graph.selected_rows] == ["addmm"]
        assert graph.current.name == "gelu", "picking goes on to the next row"


async def test_modules_fold_and_actions_on_a_module_apply_to_its_nodes(workbench: Open) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        graph = bench.app.graph
        await bench.press("g", "m")
        heads = [entry for entry in graph.entries if isinstance(entry, ModuleRow)]
        assert heads, "mlp.py has modules"
        await bench.sees(f"- {heads[0].name}")
        nodes = {row.stable for row in heads[0].nodes}
        graph.move_to(graph.entries.index(heads[0]))
        await bench.press("z")
        assert graph.entry.folded
        assert not nodes & {row.stable for row in graph.entries if not isinstance(row, ModuleRow)}
        await bench.press("space")
        await bench.settled()
        assert {choice.node for choice in bench.app.workspace.recipe.choices} <= nodes
        assert bench.app.workspace.recipe.choices
        await bench.sees("in eager")
        await bench.press("u")
        await bench.settled()
        await bench.press("Z", "g", "m")
        assert not any(isinstance(entry, ModuleRow) for entry in graph.entries)


async def test_neighbours_are_listed_and_drawn_and_code_lines_link_to_nodes(workbench: Open, tmp_path: Path) -> None:
    async with workbench("mlp.py", size=(160, 50)) as bench:
        graph = bench.app.graph
        graph.show_node(next(row.stable for row in graph.rows if row.name == "gelu"))
        await bench.press("n")
        await bench.opened(PickerScreen)
        await bench.sees("user")
        await bench.press("enter")
        assert graph.current.name == "addmm"
        await bench.press("w")
        await bench.press(*["ctrl+u"])
        await bench.type(str(tmp_path / "near.dot"))
        await bench.press("enter")
        await bench.until((tmp_path / "near.dot").exists, "the drawing")
        assert "gelu" in (tmp_path / "near.dot").read_text()
        await bench.press("c")
        view = (await bench.opened(CodeScreen)).query_one(CodeView)
        await bench.until(lambda: view.line is not None, "the line")
        assert "torch.ops.aten.addmm.default" in view.line.text
        await bench.sees("def forward(self")
        await bench.press("j", "enter")
        assert graph.current.name == "gelu"
        row = graph.current
        assert (row.shape, row.strides, row.bytes) == ("128x1024", "1024x1", 128 * 1024 * 4)


async def test_a_graph_of_training_says_what_is_saved(workbench: Open) -> None:
    async with workbench("training.py", size=(160, 50)) as bench:
        graph = bench.app.graph
        for number, inputs in enumerate((0, 25)):
            if number:
                await bench.press("g", "t")
                await bench.settled()
            await bench.sees("25 tensors saved, 408 kB; 2 ops recomputed, 131 kB")
            await bench.press("f", "ctrl+u")
            await bench.type("training:saved")
            await bench.press("enter")
            assert len(graph.rows) == 25
            assert sum(row.opcode == "placeholder" for row in graph.rows) == inputs
            # Activations of 32 x 8 tokens of 16, 48 or 64 numbers; the means and deviations of norms; attention's sums.
            assert {row.bytes for row in graph.rows} == {16_384, 49_152, 65_536, 1024, 2048}
            graph.show_node(graph.rows[0].stable)
            await bench.sees(" saved 16.4 kB ")
            await bench.press("o")
            await bench.sees("saved 16.4 kB: kept in memory for the backward graph")
            await bench.press("q")
