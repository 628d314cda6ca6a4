"""Pictures of the screen, on the real engine, compared with those that were looked at and found right.

Times and the machine's name are masked, and the recipe is the test's own: the pictures say only how things look.
`pytest tests/app/test_snapshots.py --snapshot-update` takes new ones.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pytest_textual_snapshot import SVGImageExtension

from buddy.app import figures
from buddy.app.fates import Said
from buddy.app.profile import Flame
from buddy.app.screens.confirm import ConfirmScreen
from buddy.app.screens.finding import FindingScreen
from buddy.app.screens.flame import FlameScreen
from buddy.app.screens.follow import FateScreen, FollowScreen, Step
from buddy.app.settings import Settings
from buddy.app.stages import StageRow
from buddy.app.workbench import Workbench
from buddy.app.workspace import Workspace
from buddy.compiler.protocol import Finding, NodeTrace, Stage
from buddy.compiler.recipe import PassStep, Recipe

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = "samples/arith_add.py"
PATIENCE = 120.0
BOUNDARIES = (("bufferize-function-boundaries", True), ("function-boundary-type-conversion", "identity-layout-map"))
STEPS = (
    PassStep("canonicalize", phase="fused"),
    PassStep("one-shot-bufferize", options=BOUNDARIES, phase="buffers"),
    PassStep("results-to-out-params", phase="buffers"),
    PassStep("convert-linalg-to-loops", anchor="func.func", phase="loops"),
    PassStep("convert-scf-to-cf", phase="llvm"),
    PassStep("expand-strided-metadata", phase="llvm"),
    PassStep("finalize-memref-to-llvm", phase="llvm"),
    PassStep("convert-arith-to-llvm", phase="llvm"),
    PassStep("convert-index-to-llvm", phase="llvm"),
    PassStep("convert-func-to-llvm", options=(("use-bare-ptr-memref-call-conv", True),), phase="llvm"),
    PassStep("convert-cf-to-llvm", phase="llvm"),
    PassStep("reconcile-unrealized-casts", phase="llvm"),
    PassStep("ensure-debug-info-scope-on-llvm-func", options=(("emission-kind", "LineTablesOnly"),), phase="llvm"),
)
NOON = time.mktime((2026, 6, 1, 12, 0, 0, 0, 0, -1))
OPEN, DRAWN = "<open>", "<drawn>"
Before = Callable[[Any], Awaitable[None]]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Workbench]:
    """A workbench on the smallest sample, with the recipe above and times that are always the same."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(figures, "milliseconds", lambda value: "1.0 ms")
    monkeypatch.setattr(figures, "seconds", lambda value: "1.00 s")
    monkeypatch.setattr(figures, "bar", lambda share, width, glyphs: glyphs.bar * (width // 2))

    def make(
        theme: str = "buddy-dark", steps: tuple[PassStep, ...] = STEPS, source: str = SOURCE, **options: Any
    ) -> Workbench:
        kept = Workspace(source, (), tmp_path)
        kept.begin(Recipe())
        kept.edit(msgspec.structs.replace(kept.recipe, steps=steps), "the test's")
        return Workbench(source, store=tmp_path, settings=Settings(theme), **options)

    return make


def after(*keys: str, run: bool = False) -> Before:
    """Wait for the compilation, run if asked, press keys, and wait until all is drawn.

    `OPEN` among the keys waits for a screen over the panes, `DRAWN` for the lines of the stage.
    """

    async def before(pilot: Any) -> None:
        await until(pilot, lambda: not pilot.app.state.busy and (pilot.app.state.compiled or pilot.app.state.problem))
        if run:
            await pilot.press("r")
            await until(pilot, lambda: not pilot.app.state.busy and pilot.app.state.report)
        app = pilot.app
        waits = {
            OPEN: lambda: len(app.screen_stack) > 1,
            DRAWN: lambda: len(app.screen_stack) == 1 and app.ir._view == app.ir.view_of(app.ir.shown),
        }
        for key in keys:
            if key in waits:
                await until(pilot, waits[key])
                continue
            await pilot.press(key)
            await pilot.pause(0.1)
        await until(pilot, lambda: app.ir.shown is None or app.ir._view == app.ir.view_of(app.ir.shown))
        app.state.welcome = msgspec.structs.replace(app.state.welcome, target="cpu")
        if app.state.report is not None:
            same = msgspec.structs.replace(app.state.report.compiled, median=1.0)
            app.state.shown.report = msgspec.structs.replace(app.state.report, compiled=same, eager=same)
        app._be_silent()
        app.session_changed(frozenset({"outputs", "status"}))
        await pilot.pause(0.3)

    return before


async def until(pilot: Any, condition: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, pilot.app.state.log
        await pilot.pause(0.05)
    await pilot.pause(0.2)


def test_four_panes_dark(snap_compare: Any, bench: Any) -> None:
    """160×50: graph, passes, IR and outputs after a run."""
    assert snap_compare(bench(), terminal_size=(160, 50), run_before=after("3", run=True))


def test_four_panes_light(snap_compare: Any, bench: Any) -> None:
    """160×50 in the light theme, with the loops."""
    assert snap_compare(bench("buddy-light"), terminal_size=(160, 50), run_before=after("7", run=True))


def test_four_panes_high_contrast_at_120_columns(snap_compare: Any, bench: Any) -> None:
    """120×40 in the high-contrast theme."""
    assert snap_compare(bench("buddy-high-contrast"), terminal_size=(120, 40), run_before=after("3"))


@pytest.mark.parametrize("theme", ["buddy-dark", "buddy-light"])
@pytest.mark.parametrize(("pane", "keys"), [("graph", ()), ("passes", ("tab",)), ("ir", ("tab", "tab", "3"))])
def test_one_pane_at_80_columns(snap_compare: Any, bench: Any, theme: str, pane: str, keys: tuple[str, ...]) -> None:
    """80×24: one pane has the screen, the status line says which."""
    assert snap_compare(bench(theme), terminal_size=(80, 24), run_before=after(*keys))


def test_the_outputs_at_80_columns_in_ascii(snap_compare: Any, bench: Any) -> None:
    """80×24 with ASCII alone."""
    before = after("shift+tab", run=True)
    assert snap_compare(bench(ascii_mode=True), terminal_size=(80, 24), run_before=before)


def test_a_failing_pass(snap_compare: Any, bench: Any) -> None:
    """A pass that others need is off: the failure is marked, its diagnostic in its tab, later tabs stale."""
    steps = tuple(step for step in STEPS if step.name != "one-shot-bufferize")
    assert snap_compare(bench(steps=steps), terminal_size=(120, 40), run_before=after("exclamation_mark"))


def test_help(snap_compare: Any, bench: Any) -> None:
    """80×24: the keys of the graph pane."""
    assert snap_compare(bench(), terminal_size=(80, 24), run_before=after("question_mark"))


def test_choosing_a_lowering(snap_compare: Any, bench: Any) -> None:
    """80×24: the registries that lower the node."""
    assert snap_compare(bench(), terminal_size=(80, 24), run_before=after("enter"))


@pytest.mark.parametrize("theme", ["buddy-dark", "buddy-light"])
def test_a_line_diff_at_80_columns(snap_compare: Any, bench: Any, theme: str) -> None:
    """80×24: what bufferization changed, unified, with equal lines folded and words marked."""
    before = after("tab", "tab", "5", "left_square_bracket", "d")
    assert snap_compare(bench(theme), terminal_size=(80, 24), run_before=before)


@pytest.mark.parametrize("theme", ["buddy-dark", "buddy-light"])
def test_a_structural_diff_side_by_side(snap_compare: Any, bench: Any, theme: str) -> None:
    """160×50, zoomed: results that became out-parameters, both texts next to each other."""
    before = after("tab", "tab", "5", "d", "d", "plus")
    assert snap_compare(bench(theme), terminal_size=(160, 50), run_before=before)


SEVERAL = "samples/two_models.py"


def test_several_graphs(snap_compare: Any, bench: Any) -> None:
    """160×50: the line of graphs under the header, and where the graph on the screen breaks off."""
    assert snap_compare(bench(source=SEVERAL), terminal_size=(160, 50), run_before=after("3"))


def test_several_graphs_at_80_columns(snap_compare: Any, bench: Any) -> None:
    """80×24: the list to choose from, with the whole reason of the entry under the cursor."""
    assert snap_compare(bench(source=SEVERAL), terminal_size=(80, 24), run_before=after("g", "l"))


@pytest.mark.parametrize("theme", ["buddy-dark", "buddy-light"])
def test_what_a_search_over_all_stages_found(snap_compare: Any, bench: Any, theme: str) -> None:
    """80×24: the stages that hold a text with their counts, one of them unfolded."""
    keys = ("3", "g", "slash", *"arith.add", "enter", OPEN, "J", "space")
    assert snap_compare(bench(theme), terminal_size=(80, 24), run_before=after(*keys))


@pytest.mark.parametrize("theme", ["buddy-dark", "buddy-light"])
def test_reading_one_function_with_locations(snap_compare: Any, bench: Any, theme: str) -> None:
    """160×50, zoomed: one function alone, a loop folded, nodes and Python lines at the right, a name underlined."""
    one_function = ("f", OPEN, "down", "enter", DRAWN)
    keys = ("tab", "tab", "7", "plus", DRAWN, "g", "s", *one_function, *"jjjjjjz", "k", "l", "l", "M")
    assert snap_compare(bench(theme), terminal_size=(160, 50), run_before=after(*keys))


MODULES = "samples/mlp.py"


@pytest.mark.parametrize("theme", ["buddy-dark", "buddy-light"])
def test_the_graph_by_module(snap_compare: Any, bench: Any, theme: str) -> None:
    """80×24: nodes under the heads of their modules, two of them picked."""
    before = after("g", "m", "v", "v")
    assert snap_compare(bench(theme, source=MODULES), terminal_size=(80, 24), run_before=before)


@pytest.mark.parametrize("theme", ["buddy-dark", "buddy-light"])
def test_the_graph_with_all_its_columns(snap_compare: Any, bench: Any, theme: str) -> None:
    """160×50, zoomed: memory and strides, narrowed by a filter."""
    before = after("plus", "f", *"op:*mm", "enter")
    assert snap_compare(bench(theme, source=MODULES), terminal_size=(160, 50), run_before=before)


BOTH = pytest.mark.parametrize(
    ("theme", "size"), [("buddy-dark", (80, 24)), ("buddy-light", (160, 50))], ids=["80-dark", "160-light"]
)


@BOTH
def test_what_a_pass_did(snap_compare: Any, bench: Any, theme: str, size: tuple[int, int]) -> None:
    """Bufferization op by op."""

    async def before(pilot: Any) -> None:
        await after("tab")(pilot)
        passes = pilot.app.passes
        passes.move_to(next(k for k, row in enumerate(passes.rows) if row.name == "one-shot-bufferize"))
        await pilot.press("o")
        await pilot.pause(0.3)

    assert snap_compare(bench(theme), terminal_size=size, run_before=before)


@BOTH
def test_the_pipeline_as_text(snap_compare: Any, bench: Any, theme: str, size: tuple[int, int]) -> None:
    """A word that is being typed, what it could become, and what is wrong so far."""
    keys = ("tab", "e", "down", "end", "enter", *"convert-s")
    assert snap_compare(bench(theme), terminal_size=size, run_before=after(*keys))


@BOTH
def test_ir_in_the_editor(snap_compare: Any, bench: Any, theme: str, size: tuple[int, int]) -> None:
    """A text that does not verify, with the cursor where it is wrong."""

    async def before(pilot: Any) -> None:
        await after("tab", "tab", "3", "g", "e")(pilot)
        await until(pilot, lambda: pilot.app.screen.query("TextArea"))
        area = pilot.app.screen.area
        area.load_text(area.text.replace("arith.addf", "arith.adff"))
        await pilot.press("ctrl+s")
        await until(pilot, lambda: area.cursor_location != (0, 0))

    assert snap_compare(bench(theme), terminal_size=size, run_before=before)


SCREENS = {
    "themes": ("T", OPEN, "down", "down", "down"),
    "wrapped": ("tab", "tab", "8", DRAWN, "plus", "W"),
}


@BOTH
@pytest.mark.parametrize("screen", SCREENS)
def test_each_screen(snap_compare: Any, bench: Any, screen: str, theme: str, size: tuple[int, int]) -> None:
    """The list of themes, one of them shown; long lines on several lines of the screen."""
    assert snap_compare(bench(theme), terminal_size=size, run_before=after(*SCREENS[screen]))


@pytest.mark.parametrize("theme", ["buddy-colour-blind", "buddy-ansi", "buddy-ansi-light"])
def test_a_diff_in_the_other_themes(snap_compare: Any, bench: Any, theme: str) -> None:
    """Syntax, what came and went, the cursor, in the themes that no other picture shows."""
    assert snap_compare(bench(theme), terminal_size=(120, 40), run_before=after("tab", "tab", "3", DRAWN, "d", DRAWN))


# ---- every screen that opens over the panes, one workbench for all: a start costs more than its pictures -------------

# How each screen is opened from the panes: the pane, and keys.
BY_KEYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "python": ("graph", ("g", "S", OPEN)),
    "lowerings": ("graph", ("enter", OPEN)),
    "options": ("passes", ("E", OPEN, "down", "down")),
    "outline": ("ir", ("g", "o", OPEN)),
    "line": ("ir", ("o", OPEN)),
    "edits": ("graph", ("U", OPEN)),
    "runs": ("graph", ("H", OPEN)),
    "values": ("outputs", ("v", OPEN)),
    "source": ("graph", ("g", "P")),
    "log": ("graph", ("L", OPEN)),
    "help": ("ir", ("question_mark", OPEN)),
}
FLAME = Flame("model", 1.0, inside={
    "encoder": Flame("encoder", 0.75, inside={"mm": Flame("mm", 0.5, "mm.0"), "add": Flame("add", 0.25, "add.0")}),
    "head": Flame("head", 0.25, "mm.1"),
})  # fmt: skip
FINDING = Finding(
    "canonicalize is at fault", Recipe(), wrong="output 0 differs", nodes=("add",), confirmed=True,
    name="add", before="func.func @add() {\n  return\n}", after="func.func @add() {\n}", trials=7, seconds=1.0,
)  # fmt: skip
# What is said of a CPU's instructions, or names this folder, is made up.
STAGES = [Stage(0, "fx", "torch", "a", 4, language="fx"), Stage(1, "lower", "toplevel", "b", 9)]
TRACES = [
    NodeTrace("a", 1, 0, (2,), (False,), ("add = …",)),
    NodeTrace("b", 2, 3, (3,), (True,), ("%0 = tensor.empty()",)),
]
STEPS_OF_NODE = [Step(StageRow(stage, (stage.name, 0)), trace) for stage, trace in zip(STAGES, TRACES, strict=True)]
SAID = [Said("capture", "aten.add.Tensor"), Said("lowering", "by linalg in @forward"), Said("machine code", "…", 3)]
BY_HAND: dict[str, Callable[[], Any]] = {
    "flame": lambda: FlameScreen(FLAME, "model, 1 s"),
    "finding": lambda: FindingScreen(FINDING),
    "follow": lambda: FollowScreen("add", STEPS_OF_NODE, None),
    "fate": lambda: FateScreen("add", SAID),
    "confirm": lambda: ConfirmScreen("add.toml is there already. Replace it?"),
}


@pytest.fixture
def picture(snapshot: Any) -> Callable[[str, str], bool]:
    """Whether a picture is as the one of that name that was found right."""
    kept = snapshot.use_extension(SVGImageExtension)
    return lambda name, drawn: kept(name=name) == drawn


async def test_every_screen(bench: Any, picture: Callable[[str, str], bool]) -> None:
    """All screens at 80×24 in the dark, then at 160×50 in the light theme."""
    other: list[str] = []
    app = bench()
    async with app.run_test(size=(80, 24)) as pilot:
        await after(run=True)(pilot)
        steady(app)
        for name, theme, width, height in (("80-dark", "buddy-dark", 80, 24), ("160-light", "buddy-light", 160, 50)):
            app.theme = theme
            await pilot.resize_terminal(width, height)
            for screen in (*BY_KEYS, *BY_HAND):
                await shown(pilot, screen)
                if not picture(f"{screen}-{name}", app.export_screenshot()):
                    other.append(f"{screen}-{name}")
                if len(app.screen_stack) > 1:
                    app.screen.dismiss(None)
                    await until(pilot, lambda: len(app.screen_stack) == 1)
                if app.arrangement.with_source:
                    app.arrangement.toggle_source()
    assert other == []


async def shown(pilot: Any, screen: str) -> None:
    """Open a screen from the panes as they are at the start, and wait until it is drawn."""
    app = pilot.app
    if screen in BY_HAND:
        app.push_screen(BY_HAND[screen]())
        await until(pilot, lambda: len(app.screen_stack) > 1)
        return
    pane, keys = BY_KEYS[screen]
    app.show_pane(pane)
    app.graph.move_to(2)
    app.passes.move_to(next(k for k, row in enumerate(app.passes.rows) if row.name == "one-shot-bufferize"))
    app.show_pane(pane)
    await until(pilot, lambda: not app.state.busy and app.ir._view == app.ir.view_of(app.ir.shown))
    await after(*keys)(pilot)
    await until(pilot, lambda: not app.arrangement.with_source or app.source.row_count)


def steady(app: Any) -> None:
    """Have what is different from machine to machine, and from run to run, always the same."""
    app.state.welcome = msgspec.structs.replace(app.state.welcome, packages={}, pid=1, engine="1")
    app.state.workers.clear()
    app.state.runs = [msgspec.structs.replace(run, at=NOON) for run in app.state.runs]
