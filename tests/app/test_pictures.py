"""Pictures of every screen, and of every form of the panes: dark and light, 80×24 and 160×50.

One workbench a program is enough for all of them: a start costs more than its pictures. `pytest
tests/app/test_pictures.py --snapshot-update` takes new ones, to be looked at: browsers read compressed SVG.
"""

from __future__ import annotations

import gzip
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
from textual.screen import Screen
from textual.widgets import Input

from buddy.app import screens
from buddy.app.reports.compilations import PassPreview, PipelineFacts
from buddy.app.reports.fallbacks import GraphFacts
from buddy.app.reports.nodes import NodeRemark
from buddy.app.reports.plots import Plot, PlotAxis, Series
from buddy.app.reports.profile import FlameNode
from buddy.app.reports.results import bisection_result, precisions_result, profile_result, tuning_result
from buddy.app.reports.text.search_hits import read_pattern
from buddy.app.screens.detail import CodeScreen, DetailScreen, TextScreen
from buddy.app.screens.documentation import PageScreen
from buddy.app.screens.editor import EditorScreen, IrEditor, PipelineScreen
from buddy.app.screens.frontend_comparison import FrontendComparisonScreen
from buddy.app.screens.modal import AnsweringScreen, ConfirmScreen, ListScreen, ReadOnlyScreen, TableScreen
from buddy.app.screens.numerics import NumericsScreen
from buddy.app.screens.pass_options import OptionScreen
from buddy.app.screens.picker import PickerScreen
from buddy.app.screens.plot import PlotScreen
from buddy.app.screens.presets import PresetsScreen
from buddy.app.screens.profile import FlameScreen, HotSpotScreen
from buddy.app.screens.programs import ProgramScreen
from buddy.app.screens.results import LoggedResult, LogScreen, ResultScreen
from buddy.app.screens.stage_lists import FollowScreen, NodeHistoryScreen, ProvenanceStep, SearchResultsScreen
from buddy.app.screens.tables import FallbacksScreen, RecompilationsScreen, RunsScreen, TrialsScreen
from buddy.app.screens.values import ValuesScreen
from buddy.app.session.stages import StageRow
from buddy.app.workbench.app import MainScreen
from buddy.app.workbench.dispatch import Palette
from buddy.app.workbench.start import StartScreen
from buddy.app.workspace.sources import Program
from buddy.compiler.protocol import (
    Assignment,
    Attempted,
    BisectionResult,
    ExplainDynamo,
    GraphInfo,
    Guard,
    HotSpot,
    NodeRow,
    NodeTrace,
    Sampling,
    Stage,
    Tried,
    Tuned,
    UserFrame,
)
from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.protocol.searches import NodePrecision, PrecisionEffect
from tests.app.commands.test_tune import TRIES
from tests.app.picturing import DRAWN, MODULES, OPEN, SEVERAL, at_rest, compiled, mask, press, until
from tests.app.reports.test_profile import INFO, REPORT
from tests.support.dumps import unpack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
SIZES = {"80": (80, 24), "160": (160, 50)}
THEMES = {"dark": "buddy-dark", "light": "buddy-light"}
LIGHT = "only the colours differ from the dark theme, and test_snapshots.py shows every theme once"
IN_EVERY_LOOK = pytest.mark.parametrize(("size", "theme"), [
    pytest.param(size, theme, id=f"{size}-{theme}", marks=[pytest.mark.full(LIGHT)] if theme == "light" else [])
    for theme, size in product(THEMES, SIZES)
])  # fmt: skip
Picture = Callable[[str, str], bool]
# What others are made of, and is on no screen by itself.
BASES = {AnsweringScreen, EditorScreen, ListScreen, ReadOnlyScreen, TableScreen, TextScreen}


@dataclass(frozen=True)
class Shown:
    """How a picture is opened from the panes: the pane, then keys, or a screen that is `made`.

    What a machine's CPU or clock decides, and what takes minutes, is made up. `text` is on the screen once all is
    there; `back` are the keys that lead back where closing the screen does not.
    """

    screen: type[Screen[Any]] = MainScreen
    pane: str = "graph"
    keys: tuple[str, ...] = ()
    text: str = ""
    back: tuple[str, ...] = ()
    made: Callable[[Any], Screen[Any]] | None = None
    filled: Callable[[Any], None] = lambda _screen: None


FLAME = FlameNode("model", 1.0, children={
    "encoder": FlameNode(
        "encoder", 0.75, children={"mm": FlameNode("mm", 0.5, "mm.0"), "add": FlameNode("add", 0.25, "add.0")}
    ),
    "head": FlameNode("head", 0.25, "mm.1"),
})  # fmt: skip
FINDING = BisectionResult(
    "canonicalize is at fault", Recipe(), failure="output 0 differs", nodes=("add",), confirmed=True,
    name="add", before="func.func @add() {\n  return\n}", after="func.func @add() {\n}", trials=7, seconds=1.0,
)  # fmt: skip
PROGRAMS = [Program("samples/bert.py", ("--tiny",)), Program("models/resnet.onnx"), Program("package.module:net")]
PROFILED = profile_result(REPORT, msgspec.structs.replace(REPORT, nodes=REPORT.nodes[:3]), INFO)
TUNED = tuning_result(Tuned(1, Recipe(), ("fuse-rows=on",), 4, 12, 0.5, 1.6, 1.4, 1.7, 9.0), TRIES, is_better=True)
OF_PRECISIONS = precisions_result(
    Tuned(
        1, Recipe(), ("bf16 for 1 product", "int8-dynamic for 1 product"), 4, 4, 0.5, 1.6, 1.4, 1.7, 9.0, (),
        (
            NodePrecision("up/addmm.0", 2e-3, "bf16", (PrecisionEffect("bf16", 1e-3, 2e-3),)),
            NodePrecision("down/addmm.0", 2e-3, "int8-dynamic", (PrecisionEffect("int8-dynamic", 5e-4, 6e-3),)),
        ),
    ),
    (
        Attempted(1, 0, ("the first recipe",), 0.8, 0.008, 0.01, 0.2, best=True, elapsed=1.0),
        Attempted(1, 1, ("bf16 for 1 product", "int8-dynamic for 1 product"), 0.5, 0.005, 0.01, 0.2, error=6.3e-3),
        Attempted(1, 2, ("bf16 for 1 product",), 0.6, 0.006, 0.01, 0.2, error=2e-3),
    ),
    True,
    {"up/addmm.0": "up/addmm", "down/addmm.0": "down/addmm"},
)  # fmt: skip
LOGGED = [LoggedResult("12:00:00", PROFILED), LoggedResult("12:05:00", TUNED)]
SAID_BEFORE = [("11:59:59", "profiling: compiling"), ("12:06:00", f"wrote {'a-long-name/' * 20}add.toml")]
STAGES = [Stage(0, "fx", "torch", "a", 4, language="fx"), Stage(1, "lower", "toplevel", "b", 9)]
TRACES = [
    NodeTrace("a", 1, 0, (2,), (False,), ("add = …",)),
    NodeTrace("b", 2, 3, (3,), (True,), ("%0 = tensor.empty()",)),
]
STEPS_OF_NODE = [
    ProvenanceStep(StageRow(stage, (stage.name, 0)), trace) for stage, trace in zip(STAGES, TRACES, strict=True)
]
SAID = [
    NodeRemark("capture", "aten.add.Tensor"),
    NodeRemark("lowering", "by linalg in @forward"),
    NodeRemark("machine code", "…", 3),
]
SAMPLING = Sampling(1000, 900, 997, (
    HotSpot("main", 64, 600, "vfmadd231ps zmm0, zmm1, [rax]", 4, ("add",)),
    HotSpot("main", 70, 300, "jl 0x40", 5, ("add",)),
))  # fmt: skip
FRAME = UserFrame("/net.py", 6, "forward", "y = self.linear(x) * n")
PAGE = Path(__file__).resolve().parent.parent / "data" / "page.md"
# What TorchDynamo wrote while a script ran.
TRACE = Path(__file__).resolve().parent.parent / "tools" / "explain" / "data" / "trace"
FALLBACKS = [GraphFacts(
    0,
    GraphInfo(
        "Gate", (NodeRow(0, "mix/my_scale.0", "call_function", "my_scale", "demo.my_scale", "", "", bytes=1024),),
        break_reason="a branch on a tensor's value", break_line="/net.py:16", break_fix="select with torch.where",
        guards=(Guard("x is float32 [4, 8]"), Guard("n == 3", "/net.py:12")),
    ),
    (Assignment("mix/my_scale.0", "eager", reason="demo.my_scale has no op class"),),
)]  # fmt: skip
PRESETS = [
    PipelineFacts("default", Recipe(steps=(PassStep("canonicalize"), PassStep("cse")))),
    PipelineFacts("mlir", Recipe(steps=(PassStep("cse"),)), problem="cse failed in @forward"),
]
ATTEMPTS = [
    PassPreview(PassStep("canonicalize", anchor="func.func"), Tried(1, 0, True, (("arith.constant", -2),), 1.0)),
    PassPreview(PassStep("convert-scf-to-cf"), Tried(1, 1, True, (("cf.br", 12), ("scf.for", -4)), 1.0)),
    PassPreview(PassStep("lower-affine"), Tried(1, 2, problem="failed to legalize operation 'affine.for'")),
]
PLOT = Plot(
    "Error growth",
    (
        Series("grown", (0, 1, 2, 3), (1e-8, 3e-8, 2e-7, 1e-6), names=("a", "b", "c", "d")),
        Series("own", (0, 3), (1e-8, 2e-8), "points", ("a", "d")),
    ),
    PlotAxis("node"), PlotAxis("max|d|", log=True), "relative to eager",
)  # fmt: skip


def without_times(screen: Any) -> None:
    screen._show_report(msgspec.structs.replace(screen._report, seconds=1.0, compile_seconds=1.0))


PANES = {
    "panes": Shown(),
    "passes": Shown(pane="passes"),
    "ir": Shown(pane="ir", keys=("3", DRAWN)),
    "outputs": Shown(pane="outputs"),
    "source": Shown(keys=("3", DRAWN, "g", "P"), text="def ", back=("g", "P")),
    "source-focused": Shown(keys=("g", "S"), text="return x", back=("g", "P")),
    "graph-filtered": Shown(keys=("plus", "f", *"op:add", "enter"), back=("f", "ctrl+u", "enter", "plus")),
    "graph-prompt": Shown(keys=("f", *"op:"), text="op:", back=("escape",)),
    "export-prompt": Shown(keys=("g", "x"), text="export", back=("escape",)),
    "ir-loops": Shown(pane="ir", keys=("7", DRAWN)),
    "ir-line-diff": Shown(pane="ir", keys=("5", "left_square_bracket", "d", DRAWN), back=("d", "d", DRAWN)),
    "ir-side-by-side": Shown(
        pane="ir", keys=("5", "d", "d", "plus", DRAWN), text="structural", back=("plus", "d", DRAWN)
    ),
    "ir-locations": Shown(pane="ir", keys=("5", "plus", DRAWN, "g", "s"), back=("g", "s", "plus")),
    "ir-folded": Shown(pane="ir", keys=("7", "plus", DRAWN, *"jjjjjjz", "k", "l", "M"), back=("M", "Z", "Z", "plus")),
    "ir-wrapped": Shown(pane="ir", keys=("8", DRAWN, "plus", "W"), back=("W", "plus")),
    "ir-in-short": Shown(
        pane="ir",
        keys=("8", DRAWN, "left_square_bracket", DRAWN, "plus", "slash", *"insertvalue", "enter", "a"),
        text="!T1 = ",
        back=("a", "plus"),
    ),
    "ir-found": Shown(pane="ir", keys=("3", DRAWN, "slash", *"arith", "enter"), text="1/"),
    "ir-generic": Shown(pane="ir", keys=("3", DRAWN, "g", "G"), text='"builtin.module"', back=("g", "G", DRAWN)),
}
SCREENS = {
    "node": Shown(DetailScreen, keys=("o", OPEN)),
    "line": Shown(DetailScreen, "ir", ("5", DRAWN, "o", OPEN)),
    "pass": Shown(DetailScreen, "passes", ("o", OPEN)),
    "log": Shown(LogScreen, made=lambda app: LogScreen(app.state, LOGGED, SAID_BEFORE, None)),
    "help-graph": Shown(DetailScreen, "graph", ("question_mark", OPEN)),
    "help-passes": Shown(DetailScreen, "passes", ("question_mark", OPEN)),
    "help-ir": Shown(DetailScreen, "ir", ("question_mark", OPEN)),
    "help-outputs": Shown(DetailScreen, "outputs", ("question_mark", OPEN)),
    "lowerings": Shown(PickerScreen, keys=("enter", OPEN)),
    "neighbours": Shown(PickerScreen, keys=("n", OPEN)),
    "edits": Shown(PickerScreen, keys=("U", OPEN)),
    "inputs": Shown(PickerScreen, keys=("I", OPEN)),
    "themes": Shown(PickerScreen, keys=("T", OPEN)),
    "frontends": Shown(PickerScreen, keys=("g", "F", OPEN)),
    "targets": Shown(PickerScreen, keys=("g", "X", OPEN)),
    "backends": Shown(PickerScreen, keys=("g", "i", OPEN)),
    "recipes": Shown(PickerScreen, keys=("B", OPEN)),
    "phases": Shown(PickerScreen, keys=("p", OPEN)),
    "programs": Shown(ProgramScreen, made=lambda app: ProgramScreen(PROGRAMS, local=False)),
    "start": Shown(StartScreen, made=lambda app: StartScreen(PROGRAMS)),
    "page": Shown(PageScreen, made=lambda app: PageScreen(PAGE)),
    "insert": Shown(PickerScreen, "passes", ("i", OPEN, *"vect")),
    "presets": Shown(PickerScreen, "passes", ("P", OPEN)),
    "outline": Shown(PickerScreen, "ir", ("5", DRAWN, "g", "o", OPEN)),
    "bookmarks": Shown(PickerScreen, "ir", ("3", DRAWN, "M", "apostrophe", OPEN), back=("M",)),
    "types": Shown(PickerScreen, "ir", ("8", DRAWN, "left_square_bracket", DRAWN, "g", "a", OPEN)),
    "runs": Shown(RunsScreen, keys=("H", OPEN)),
    "values": Shown(ValuesScreen, "outputs", ("v", OPEN)),
    "code": Shown(CodeScreen, keys=("c", OPEN)),
    "options": Shown(OptionScreen, "passes", ("E", OPEN, "down", "down")),
    "pipeline": Shown(PipelineScreen, "passes", ("e", OPEN, "down", "end", "enter", *"convert-s"), text="convert-scf"),
    "editor": Shown(IrEditor, "ir", ("3", DRAWN, "g", "e", OPEN), text="func.func"),
    "results": Shown(SearchResultsScreen, "ir", ("3", DRAWN, "g", "slash", *"arith.add", "enter", OPEN, "J", "space")),
    "numerics": Shown(NumericsScreen, keys=("N", OPEN), text="all nodes within", filled=without_times),
    "palette": Shown(Palette, keys=("ctrl+p", *"diff"), text="Diff against"),
    "flame": Shown(FlameScreen, made=lambda app: FlameScreen(FLAME, "model, 1 s")),
    "finding": Shown(ResultScreen, made=lambda app: ResultScreen(bisection_result(FINDING))),
    "profiled": Shown(ResultScreen, made=lambda app: ResultScreen(PROFILED)),
    "tuned": Shown(ResultScreen, made=lambda app: ResultScreen(TUNED)),
    "tuned-precisions": Shown(ResultScreen, made=lambda app: ResultScreen(OF_PRECISIONS)),
    "follow": Shown(FollowScreen, made=lambda app: FollowScreen("add", STEPS_OF_NODE, None)),
    "fate": Shown(NodeHistoryScreen, made=lambda app: NodeHistoryScreen("add", SAID)),
    "confirm": Shown(ConfirmScreen, made=lambda app: ConfirmScreen("add.toml already exists. Overwrite?")),
    "hot": Shown(HotSpotScreen, made=lambda app: HotSpotScreen(SAMPLING, {"add": "add"})),
    "plot": Shown(PlotScreen, made=lambda app: PlotScreen([PLOT], app.glyphs, choose_hint="goes to the node")),
    "presets-beside": Shown(
        PresetsScreen, made=lambda app: PresetsScreen(app.session, ()), filled=lambda screen: screen.show(PRESETS)
    ),
    "fallbacks": Shown(FallbacksScreen, made=lambda app: FallbacksScreen(app.session, FALLBACKS, ())),
    "recompilations": Shown(
        RecompilationsScreen, made=lambda app: RecompilationsScreen(app.session, ExplainDynamo(0, trace=str(TRACE))),
        text="5 functions compiled",
    ),
    "trials": Shown(
        TrialsScreen, made=lambda app: TrialsScreen(app.session, app.ir.chosen_stage.text, (), 1), text="0/0 tried",
        filled=lambda screen: screen.show(ATTEMPTS),
    ),
}  # fmt: skip
OF_MODULES = {
    "by-module": Shown(keys=("g", "m", "v", "v"), back=("v", "V", "V", "g", "m")),
    "columns": Shown(keys=("plus", "f", *"op:*mm", "enter"), back=("f", "ctrl+u", "enter", "plus")),
}
OF_GRAPHS = {
    "graphs-panes": Shown(),
    "graphs": Shown(PickerScreen, keys=("g", "l", OPEN)),
    "beside": Shown(FrontendComparisonScreen, keys=("down", "down", "g", "B", OPEN), text="torch.aten"),
}


OF_DUMPS = {
    "dump-panes": Shown(),
    "dump-passes": Shown(pane="passes"),
}


class CompressedSvg(SingleFileSnapshotExtension):
    """A picture compressed to a tenth of its size. Pictures compressed by other zlib versions compare equal."""

    file_extension = "svgz"
    _file_extension = "svgz"
    _write_mode = WriteMode.BINARY

    def serialize(self, data: str, **_: Any) -> bytes:
        return gzip.compress(data.encode(), mtime=0)

    def matches(self, *, serialized_data: bytes, snapshot_data: bytes) -> bool:
        return gzip.decompress(serialized_data) == gzip.decompress(snapshot_data)


@pytest.fixture
def picture(snapshot: Any) -> Picture:
    """Whether a picture equals the approved one with that name."""
    kept = snapshot.use_extension(CompressedSvg)
    return lambda name, drawn: kept(name=name) == drawn


def every_screen() -> Iterator[type[Screen[Any]]]:
    """The screens of the workbench that are not base classes of others."""
    for module in pkgutil.iter_modules(screens.__path__):
        importlib.import_module(f"{screens.__name__}.{module.name}")
    todo: list[type[Any]] = [Screen]
    while todo:
        for found in todo.pop().__subclasses__():
            todo.append(found)
            if found.__module__.startswith("buddy.app.") and found not in BASES:
                yield found


def test_every_screen_has_a_picture() -> None:
    pictured = {shown.screen for table in (PANES, SCREENS, OF_MODULES, OF_GRAPHS) for shown in table.values()}
    assert set(every_screen()) - pictured == set()


@IN_EVERY_LOOK
async def test_the_panes_and_every_screen(bench: Any, picture: Picture, size: str, theme: str) -> None:
    """Pictures of the smallest sample, after a run."""
    assert await others(bench(), PANES | SCREENS, picture, size, theme) == []


@IN_EVERY_LOOK
async def test_what_modules_add(bench: Any, picture: Picture, size: str, theme: str) -> None:
    """On a sample that has some."""
    assert await others(bench(source=MODULES), OF_MODULES, picture, size, theme, run=False) == []


@IN_EVERY_LOOK
async def test_what_several_graphs_and_another_frontend_add(
    bench: Any, picture: Picture, size: str, theme: str
) -> None:
    """Pictures of a sample with two models."""
    assert await others(bench(source=SEVERAL), OF_GRAPHS, picture, size, theme, run=False) == []


@IN_EVERY_LOOK
async def test_a_dump_of_another_compiler(
    bench: Any, picture: Picture, size: str, theme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures of a log of `mlir-opt`, in which each function is printed alone."""
    monkeypatch.chdir(unpack("mlir", tmp_path))
    assert await others(bench(source="after_all.log"), OF_DUMPS, picture, size, theme, run=False) == []


async def others(
    app: Any, table: dict[str, Shown], picture: Picture, size: str, theme: str, *, run: bool = True
) -> list[str]:
    """The pictures that differ from the approved ones."""
    different: list[str] = []
    async with app.run_test(size=SIZES[size]) as pilot:
        await compiled(pilot, run=run)
        app.theme = THEMES[theme]
        for name, shown in table.items():
            await show(pilot, shown)
            if not picture(name, app.export_screenshot()):
                different.append(name)
            await go_back(pilot, shown)
    return different


async def show(pilot: Any, shown: Shown) -> None:
    """Open a screen from the initial state of the panes, and wait until it is complete."""
    app = pilot.app
    app.context.layout.show_pane(shown.pane)
    app.graph.move_to(2)
    place = next((k for k, row in enumerate(app.passes.rows) if row.name == "one-shot-bufferize"), 0)
    app.passes.move_to(place)
    app.ir.move_to(0)
    await until(pilot, lambda: not app.state.busy and app.ir.is_drawn)
    await press(pilot, *shown.keys)
    if shown.made is not None:
        app.push_screen(shown.made(app))
    await until(pilot, lambda: type(app.screen) is shown.screen)
    await until(pilot, lambda: shown.text in "\n".join(lines(app)))
    shown.filled(app.screen)
    for box in app.screen.query(Input):
        box.cursor_blink = False
    mask(app)
    await at_rest(pilot)


async def go_back(pilot: Any, shown: Shown) -> None:
    app = pilot.app
    while len(app.screen_stack) > 1:
        app.screen.dismiss(None)
        await until(pilot, lambda: len(app.screen_stack) == 1)
    await press(pilot, *shown.back)
    app.ir.search.find(read_pattern(""), jump=False)


def lines(app: Any) -> list[str]:
    return ["".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips()]
