"""Fixtures: a recipe with stages, and a workbench on the real engine."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from buddy.app.panes import jobs
from buddy.app.reports import formatting
from buddy.app.session import monitors
from buddy.app.workbench.app import Workbench
from buddy.app.workspace.settings import Settings
from buddy.compiler.protocol import Stage
from buddy.compiler.protocol.recipe import PassStep, Recipe
from tests.app.picturing import ROOT, alike, passed_on

SAMPLES = Path(__file__).resolve().parent.parent.parent / "samples"
# Far more than anything takes: a loaded machine may be ten times as slow.
PATIENCE = 240.0


@pytest.fixture
def recipe() -> Recipe:
    """A recipe with three passes in three phases."""
    names = (("canonicalize", "fused"), ("one-shot-bufferize", "buffers"), ("convert-linalg-to-loops", "loops"))
    return Recipe(steps=tuple(PassStep(name, phase=phase) for name, phase in names))


@pytest.fixture
def stages() -> list[Stage]:
    """The stages of that recipe."""
    return [
        Stage(0, "fx", "torch", "t-fx", 10, language="fx"),
        Stage(1, "lower", "toplevel", "t-lower", 20),
        Stage(2, "canonicalize", "fused", "t-lower", 20, step=0, changed=False),
        Stage(3, "one-shot-bufferize", "buffers", "t-buffers", 30, step=1),
        Stage(4, "convert-linalg-to-loops", "loops", "t-loops", 40, step=2),
    ]


@pytest.fixture(autouse=True)
def messages_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages stay until the next one, because a slow machine may draw them later than they would disappear."""
    monkeypatch.setattr(jobs, "MESSAGE_SECONDS", 3600.0)


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> Callable[[Workbench], list[str]]:
    """`messages(app)`: the list of all messages from now on, including those that are replaced at once."""

    def noted(app: Workbench) -> list[str]:
        said: list[str] = []
        say = app.context.status.say

        def note(message: str) -> None:
            said.append(message)
            say(message)

        monkeypatch.setattr(app.context.status, "say", note)
        return said

    return noted


class Bench:
    """A workbench that runs without a terminal, and the means to press keys in it."""

    def __init__(self, app: Workbench, pilot: Any) -> None:
        self.app, self.pilot = app, pilot

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for `condition`, at most `PATIENCE` seconds."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"waited for {what}; {self.app.state.problem}; {self.app.state.log}"
            await self.pilot.pause(0.02)

    async def sees(self, text: str) -> None:
        """Wait until `text` is on the screen."""
        await self.until(lambda: self.shows(text), repr(text))

    async def settled(self) -> None:
        """Wait until no job is running and the screen is up to date."""
        await self.until(lambda: self.app.state.engine == "ready", "the engine")
        await self.until(lambda: not self.app.state.busy and self._done(), "the compilation")
        await self.drawn()

    def _done(self) -> bool:
        state = self.app.state
        if self.app.session._compile_timer is not None:
            return False  # an edit in a burst is compiled a little later
        return state.problem is not None or (
            state.compiled_recipe is not None and state.compiled_recipe == self.app.workspace.recipe
        )

    async def drawn(self) -> None:
        """Wait until the lines of the chosen stage are on the screen."""
        await self.pilot.pause()
        ir = self.app.ir
        await self.until(lambda: ir.chosen_row is None or self._has_come(), "the lines of the stage")
        await self.passed_on()

    def _has_come(self) -> bool:
        ir = self.app.ir
        return ir.document.text == ir.chosen_stage.text and ir.is_drawn

    async def opened(self, screen: type) -> Any:
        """Wait until a screen of this type is on top. Returns the screen."""
        await self.until(lambda: isinstance(self.app.screen, screen), screen.__name__)
        await self.pilot.pause(0.05)
        return self.app.screen

    async def press(self, *keys: str) -> None:
        """Press keys, each after the workbench has processed the previous one. Does not wait for the engine."""
        for key in keys:
            await self.pilot.press(key)
            await self.passed_on()

    async def passed_on(self) -> None:
        await passed_on(self.pilot)

    async def type(self, text: str) -> None:
        await self.press(*({" ": "space"}.get(character, character) for character in text))

    @property
    def screen(self) -> list[str]:
        """The lines on the screen, as text."""
        return ["".join(segment.text for segment in strip) for strip in self.app.screen._compositor.render_strips()]

    def shows(self, text: str) -> bool:
        return any(text in line for line in self.screen)


@pytest.fixture
def workbench(tmp_path: Path) -> Callable[..., Any]:
    """`workbench("mlp.py", size=(160, 50))`: opens a sample, or any other script, on the real engine."""

    @asynccontextmanager
    async def open_bench(
        source: str | Path, size: tuple[int, int] = (120, 40), wait: bool = True, **options: Any
    ) -> AsyncIterator[Bench]:
        path = source if isinstance(source, Path) else SAMPLES / source
        settings = options.pop("settings", None) or Settings(theme=options.pop("theme", ""))
        app = Workbench(str(path), store=tmp_path / "kept", settings=settings, **options)
        async with app.run_test(size=size) as pilot:
            bench = Bench(app, pilot)
            if wait:
                await bench.settled()
                await bench.until(lambda: app.state.passes and app.state.ops, "the catalogues")
            yield bench

    return open_bench


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Workbench]:
    """`bench(theme)`: a workbench for pictures, with fixed numbers."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(formatting, "milliseconds", lambda value: "1.0 ms")
    monkeypatch.setattr(formatting, "seconds", lambda value: "1.00 s")
    # However busy the machine is, the engine is not said to be silent.
    monkeypatch.setattr(monitors, "SILENCE_SECONDS", math.inf)
    monkeypatch.setattr(formatting, "progress_bar", lambda share, width, glyphs: glyphs.bar * (width // 2))
    return lambda *given, **options: alike(tmp_path, *given, **options)
