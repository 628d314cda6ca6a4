"""Support for pictures of the screen: a workbench on the real engine with reproducible output.

Times and the machine's name are masked, and the recipe is the test's own: pictures say only how things look.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from buddy.app.workbench.app import Workbench
from buddy.app.workspace.settings import Settings
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol.recipe import PassStep, Recipe

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = "samples/arith_add.py"
SEVERAL = "samples/two_models.py"
MODULES = "samples/mlp.py"
TRAINING = "samples/training.py"
PATIENCE = 240.0
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
# How often a message may be passed on: from a widget up to the application, and from there to a screen and its widgets.
PASSED_ON = 12
Before = Callable[[Any], Awaitable[None]]


def alike(
    store: Path, theme: str = "buddy-dark", steps: tuple[PassStep, ...] = STEPS, source: str = SOURCE, **options: Any
) -> Workbench:
    """A workbench on a small sample, with the recipe above."""
    kept = Workspace(source, (), store)
    kept.load(Recipe())
    kept.edit(msgspec.structs.replace(kept.recipe, steps=steps), "the test's")
    return Workbench(source, store=store, settings=Settings(theme), **options)


def after(*keys: str, run: bool = False) -> Before:
    """Wait for the compilation, run if asked, press keys, and wait until all is drawn.

    `OPEN` among the keys waits for a screen over the panes, `DRAWN` for the lines of the stage.
    """

    async def before(pilot: Any) -> None:
        await compiled(pilot, run=run)
        await press(pilot, *keys)
        mask(pilot.app)
        await at_rest(pilot)

    return before


async def compiled(pilot: Any, *, run: bool = False) -> None:
    app = pilot.app
    await until(pilot, lambda: not app.state.busy and (app.state.compiled_recipe or app.state.problem))
    await until(pilot, lambda: app.workspace.recipe.is_dump or (app.state.passes and app.state.ops))
    if run:
        await pilot.press("r")
        await until(pilot, lambda: not app.state.busy and app.state.report)


async def press(pilot: Any, *keys: str) -> None:
    app = pilot.app
    waits = {
        OPEN: lambda: len(app.screen_stack) > 1,
        DRAWN: lambda: len(app.screen_stack) == 1 and app.ir.is_drawn,
    }
    for key in keys:
        if key in waits:
            await until(pilot, waits[key])
            continue
        await pilot.press(key)
        await passed_on(pilot)
    await until(pilot, lambda: app.ir.chosen_row is None or app.ir.is_drawn)


def mask(app: Any) -> None:
    """Replace everything that varies between machines and runs by fixed values."""
    app.state.welcome = msgspec.structs.replace(app.state.welcome, target="cpu", packages={}, pid=1, engine="1")
    app.state.workers.clear()
    app.state.runs = [
        msgspec.structs.replace(run, ended_at=NOON, report=msgspec.structs.replace(run.report, load=None))
        for run in app.state.runs
    ]
    if app.state.report is not None:
        same = msgspec.structs.replace(app.state.report.compiled, median=1.0)
        app.state.graph_state.report = msgspec.structs.replace(app.state.report, compiled=same, eager=same, load=None)
    app.context.status.clear()
    app.session_changed(frozenset({"outputs", "status"}))


async def passed_on(pilot: Any) -> None:
    """Wait until all messages are handled and their effects are drawn."""
    for _ in range(PASSED_ON):
        await pilot.pause(0)


async def at_rest(pilot: Any) -> None:
    """Wait until the screen no longer changes."""
    before: list[Any] = []
    while before != (before := [list(strip) for strip in pilot.app.screen._compositor.render_strips()]):
        await passed_on(pilot)
        await pilot.pause(0.1)


async def until(pilot: Any, condition: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, pilot.app.state.log
        await pilot.pause(0.02)
    await passed_on(pilot)
