"""Panes of plug-ins: what they read, draw and answer, and that nothing which they do breaks the workbench."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buddy.app.cli.new import plugin_files
from buddy.app.cli.workbench import make_parser
from buddy.app.screens.picker import PickerScreen
from buddy.app.session.pane_plugins import (
    Pane,
    PaneCallError,
    PaneLine,
    PaneSource,
    PaneThread,
    check_lines,
    find_panes,
    pane_file_error,
)
from buddy.app.workbench.dispatch import ActionCommands
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.plugin_code import TimeIsUp
from buddy.compiler.protocol.recipe import PluginFile

Open = Callable[..., Any]

PANES = '''
import time

from buddy.api import Pane, PaneLine


class Sizes(Pane):
    """The stages, the nodes, and the number of loops in the last stage in MLIR."""

    title = "Stage sizes"
    keys = {"s": "sort by size", "z": "count loops"}
    by_size, note = False, ""

    def lines(self, view, width):
        stages = sorted(view.stages, key=lambda stage: -stage.lines if self.by_size else stage.index)
        head = f"first {stages[0].name}" if stages else "no stages"
        lines = [PaneLine(((head, "title"), (f" {self.note}", "dim"))), f"selected {view.selected}", "x" * 500]
        return lines + [PaneLine(((row.display_name, "syntax:value"),), row.stable) for row in view.nodes]

    def press(self, view, key):
        if key == "s":
            self.by_size = not self.by_size
        else:
            texts = [line for stage in view.stages if stage.name == "lower" for line in view.lines(stage)]
            self.note = f"{sum('linalg.' in line for line in texts)} ops of linalg"

    def click(self, view, row, column):
        self.note = f"clicked {row}, {column}"


class Raises(Pane):
    def lines(self, view, width):
        return [f"selected {view.selected}"] if not view.selected else 1 / 0


class Loops(Pane):
    def lines(self, view, width):
        while True:
            try:
                time.sleep(0.001)
                sum(range(10_000))
            except Exception:
                pass
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "panes.py"
    path.write_text(PANES)
    return path


@pytest.mark.slow
async def test_a_pane_draws_the_state_and_answers_keys_and_clicks(workbench: Open, file: Path) -> None:
    async with workbench("mlp.py", size=(160, 50), pane_files=(f"{file}:Sizes",)) as bench:
        await bench.settled()
        await bench.press("g", "A")
        await bench.sees("Stage sizes")
        await bench.sees("first fx")
        assert bench.app.pane is bench.app.plugin
        await bench.press("s")
        await bench.until(lambda: bench.shows("first ") and not bench.shows("first fx"), "the other order")
        await bench.press("z")
        await bench.sees("ops of linalg")

        view = bench.app.plugin
        row = next(k for k, line in enumerate(view.lines) if line.node == "act/gelu.0")
        view.move_to(row)
        await bench.press("enter")
        await bench.sees("selected act/gelu.0")
        assert bench.app.pane is bench.app.graph
        assert view.mark_of(row).is_selected
        await bench.pilot.click(view, offset=(6, 1))
        await bench.sees("clicked 0, 4")

        await bench.press("g", "A")
        assert not view.display
        assert bench.app.pane.pane_id == "ir"
        await bench.press("g", "A")
        await bench.sees("clicked 0, 4")  # the same object


@pytest.mark.slow
async def test_the_palette_ranks_panes_of_plugins_by_words_like_actions(workbench: Open, file: Path) -> None:
    async with workbench("mlp.py", size=(160, 50), pane_files=(f"{file}:Sizes",)) as bench:
        provider = ActionCommands(bench.app.screen)

        async def first(query: str) -> str:
            hits = [hit async for hit in provider.search(query)]
            return str(max(hits, key=lambda hit: hit.score).text)

        # A key, the start of a word of a title, and a synonym. The letters are also in the title of the pane.
        assert [await first(query) for query in ("p", "in", "page")] == ["Phases", "Passes: Insert pass", "Report"]
        assert await first("sizes") == "Pane of a plug-in: Sizes"


@pytest.mark.slow
async def test_a_pane_that_raises_or_loops_is_switched_off_and_others_go_on(workbench: Open, file: Path) -> None:
    panes = tuple(f"{file}:{name}" for name in ("Raises", "Loops", "Sizes"))
    async with workbench("mlp.py", size=(160, 50), pane_files=panes) as bench:
        await bench.settled()
        await bench.press("g", "A")
        await bench.opened(PickerScreen)
        await bench.press("enter")
        await bench.sees("selected")
        bench.app.context.selection.select_node("act/gelu.0")
        await bench.sees("raised ZeroDivisionError: division by zero")
        assert bench.shows("panes.py:3")
        assert bench.shows("g A shows it again")
        assert "the pane Raises of panes.py raised" in str(bench.app.state.log[-1])

        bench.app.plugin.show(bench.app.plugin.sources()[1])
        await bench.press("tab", "j")  # the workbench answers while the pane runs
        await bench.sees("the pane Loops of panes.py took too long, and was stopped")
        where = bench.app.plugin.problem.where
        assert 36 <= int(where.rpartition(":")[2]) <= 46, where

        await bench.press("ctrl+p")
        await bench.type("sizes")
        await bench.sees("Pane of a plug-in: Sizes")
        await bench.press("enter")
        await bench.sees("first fx")


@pytest.mark.slow
async def test_a_narrow_screen_shows_the_pane_alone_and_without_panes_a_message_says_so(
    workbench: Open, file: Path
) -> None:
    async with workbench("mlp.py", size=(80, 24), pane_files=(f"{file}:Sizes",)) as bench:
        await bench.settled()
        await bench.press("g", "A")
        await bench.sees("first fx")
        assert bench.shows("[Plug-in]")
        assert not bench.app.ir.display
        await bench.press("tab")
        assert bench.app.pane.pane_id == "outputs"
        bench.app.plugin._sources = ()
        await bench.press("g", "A")
        await bench.sees("No plug-in has a pane")


PROGRAM = """
import torch


@torch.library.custom_op("one_of_each::apply", mutates_args=())
def apply(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * (x + torch.sqrt(x * x + 4))


apply.register_fake(torch.empty_like)
model, example_inputs = lambda x: apply(x) - 3.0, (torch.ones(3),)
"""


@pytest.mark.slow
async def test_a_plugin_has_an_op_a_pass_a_backend_and_a_pane(workbench: Open, tmp_path: Path) -> None:
    for name, text in plugin_files("plugin", "one-of-each").items():
        (tmp_path / name).write_text(text)
    (tmp_path / "program.py").write_text(PROGRAM)
    options = {
        "plugins": (PluginFile(str(tmp_path / "one_of_each.py")),),
        "pane_files": (f"{tmp_path / 'one_of_each_pane.py'}:OneOfEachPane",),
    }
    async with workbench(tmp_path / "program.py", size=(160, 50), **options) as bench:
        await bench.settled()
        app = bench.app
        recipe = next(preset.recipe for preset in app.state.presets if preset.name == "one-of-each-upstream")
        recipe = msgspec.structs.replace(app.workspace.recipe, preset=recipe.preset, steps=recipe.steps)
        app.context.edits.edit(msgspec.structs.replace(recipe, backend="one-of-each-o3"), "all of the plug-in")
        await bench.press("g", "A")
        await bench.until(lambda: app.state.compiled_recipe == app.workspace.recipe, "the compilation")
        await bench.sees("     2 linalg")
        names = [row.stage.name for row in app.state.board.rows()]
        assert {"one-of-each", "optimize"} <= set(names)
        await bench.press("r")
        await bench.until(lambda: app.state.report is not None, "the run")
        assert app.state.report.ok


# ---- finding and loading ---------------------------------------------------------------------------------------------


def installed(folder: Path, name: str, text: str, entry_points: str) -> None:
    """Write a module and the metadata of a package that has it."""
    (folder / f"{name}.py").write_text(text)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_panes_of_packages_and_files_are_found_without_an_import(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising = "raise RuntimeError('imported')\n"
    installed(tmp_path, "first_panes", raising, "[buddy.panes]\nSizes = first_panes:Sizes\nOne = first_panes:One\n")
    installed(tmp_path, "other_panes", raising, "[buddy.panes]\nOne = other_panes:One\n")
    monkeypatch.syspath_prepend(tmp_path)
    sources, problems = find_panes((f"{file}:Sizes", f"{file}:Loops"))
    assert [(source.name, source.origin) for source in sources] == [
        ("One", "first-panes 1.0"),
        ("Sizes", "first-panes 1.0"),
        ("Loops", "panes.py"),
    ]
    assert [problem.what for problem in problems] == [
        "two plug-ins have a pane 'One'; that of other-panes 1.0 is left out",
        "two plug-ins have a pane 'Sizes'; that of panes.py is left out",
    ]
    assert "first_panes" not in sys.modules
    with pytest.raises(RuntimeError, match="imported") as raised:
        sources[0].load()
    problem = sources[0].diagnose(raised.value)
    assert problem.what == "the pane One of first-panes 1.0 raised RuntimeError: imported"
    assert problem.where == f"{tmp_path / 'first_panes.py'}:1"


@pytest.mark.parametrize(
    ("text", "what", "todo"),
    [
        (
            "from buddy.api import require_api\nrequire_api(99)\n",
            "version 99 of buddy.api is needed",
            "update buddy-tui",
        ),
        ("from buddy.api import NoSuchName\n", "needs a name that this buddy.api does not have", "update buddy-tui"),
        ("class Mine:\n    pass\n", "is not a subclass of buddy.api.Pane", "name a class of a pane"),
        (
            "from buddy.api import Pane\nclass Mine(Pane):\n    keys = {'q': ''}\n",
            "cannot have the key q",
            "other keys",
        ),
        ("x = (\n", "is not valid Python", "correct the plug-in"),
        ("", "raised AttributeError", "correct the plug-in"),
    ],
)
def test_a_pane_that_cannot_be_loaded_says_why(text: str, what: str, todo: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    source = PaneSource("Mine", "mine.py", f"{tmp_path / 'mine.py'}:Mine")
    with pytest.raises((BuddyError, ImportError, SyntaxError, AttributeError)) as raised:
        source.load()
    problem = source.diagnose(raised.value)
    assert what in problem.what
    assert todo in problem.todo


def test_the_option_names_a_file_and_a_class(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pane_file_error(f"{file}:Sizes") == ""
    assert "no such file" in pane_file_error(f"{file.parent}/none.py:Sizes")
    assert "not of the form FILE.py:CLASS" in pane_file_error(str(file))
    assert make_parser().parse_args(["model.py", "--pane", f"{file}:Sizes"]).pane == [f"{file}:Sizes"]
    with pytest.raises(SystemExit):
        make_parser().parse_args(["model.py", "--pane", "Sizes"])
    assert "not of the form FILE.py:CLASS" in capsys.readouterr().err


# ---- calls and lines -------------------------------------------------------------------------------------------------


async def test_a_call_is_limited_and_its_errors_are_passed_on() -> None:
    def raises(error: BaseException) -> None:
        raise error

    thread = PaneThread()
    try:
        assert await thread.call(lambda: 3) == 3
        assert await thread.call(lambda: thread.wait_for(asyncio.sleep(0.1, 4))) == 4
        for error in (ValueError("x"), SystemExit(3), StopIteration(), KeyboardInterrupt(), asyncio.CancelledError()):
            with pytest.raises(PaneCallError) as raised:
                await thread.call(lambda error=error: raises(error))  # type: ignore[misc]
            assert raised.value.error is error

        def loop() -> None:
            while True:
                pass

        started = time.monotonic()
        with pytest.raises(PaneCallError) as raised:
            await thread.call(loop, 0.2)
        assert isinstance(raised.value.error, TimeIsUp)
        assert time.monotonic() - started < 9.0
        while thread._thread.is_alive():
            await asyncio.sleep(0.01)
    finally:
        thread.stop()


async def test_a_thread_without_a_call_ends() -> None:
    thread, before = PaneThread(), threading.active_count()
    thread.stop()
    while thread._thread.is_alive():
        await asyncio.sleep(0.01)
    assert threading.active_count() < before


def test_lines_are_checked() -> None:
    roles = frozenset({"text", "bad"})
    lines = check_lines(["a", PaneLine((("b", "bad"),), "n")], roles)
    assert lines == [PaneLine((("a", "text"),)), PaneLine((("b", "bad"),), "n")]
    assert len(check_lines(["a"] * 30_000, roles)) == 20_001
    for wrong in ("text", None, [1], [PaneLine((("a", "red"),))], [PaneLine(((1, "text"),))]):  # type: ignore[arg-type]
        with pytest.raises(BuddyError):
            check_lines(wrong, roles)
    assert Pane.keys == {}
