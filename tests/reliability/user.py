"""A simulated user: presses keys, waits for the screen, and follows its suggestions after a fault."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from textual import events
from textual.widgets import Input

from buddy.app.screens.editor import EditorScreen
from buddy.app.session.state import Topic
from buddy.app.widgets.prompt import Prompt
from buddy.app.workbench import app
from buddy.app.workbench.app import MainScreen, Workbench
from tests.reliability.processes import waited

_THREAD = "thread-self"
# Seconds after which a key counts as dead: even a loaded machine is faster than that.
DEAD = 60.0


class Reaction(NamedTuple):
    """Seconds from a key to the screen that shows it: in total, and without waits for the processor."""

    whole: float
    own: float


class Drilled(Workbench):
    """The workbench, with notifications of its drawing and a record of its messages."""

    CSS_PATH = str(Path(app.__file__).with_name("workbench.tcss"))

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self.told: list[str] = []
        self.drawn = asyncio.Event()
        say = self.context.status.say

        def tell(message: str) -> None:
            self.told.append(message)
            say(message)

        self.context.status.say = tell  # type: ignore[method-assign]

    def post_display_hook(self) -> None:
        self.drawn.set()

    def session_changed(self, topics: frozenset[Topic]) -> None:
        super().session_changed(topics)
        for cells in (self.border_lines.header_cells(120), self.border_lines.status_cells(120)):
            text = "".join(text for text, _ in cells).strip()
            if text not in self.told[-6:]:
                self.told.append(text)


class User:
    """Drives `app`. Random choices come from `chance`; files are written to `folder`."""

    def __init__(self, app: Drilled, folder: Path, chance: random.Random) -> None:
        self.app, self._folder, self._chance = app, folder, chance
        self._files = 0
        self._digits = itertools.cycle("0123456789")
        self.steps: dict[str, Callable[[], Awaitable[None]]] = {
            "opening": self._open,
            "toggling": self._toggle,
            "running": self._run,
            "paging": self._page,
            "diffing": self._diff,
            "searching": self._search,
            "exporting": self._export,
            "saving": self._save,
            "trying passes": self._try,
            "bisecting": self._bisect,
            "editing IR": self._edit_ir,
            "typing a name": self._type_name,
        }

    # ---- keys ----------------------------------------------------------------------------------------------------

    async def press(self, *keys: str) -> None:
        for key in keys:
            self._send(key)
            await asyncio.sleep(0.01)

    def _send(self, key: str) -> None:
        event = events.Key(key, key if len(key) == 1 else None)
        event.set_sender(self.app)
        assert self.app._driver is not None
        self.app._driver.send_message(event)

    async def reaction(self) -> Reaction:
        """The time until the screen shows a key: one more letter, another focused pane, a list that closes."""
        key, visible = self._probe()
        before = visible()
        start, late = time.perf_counter(), waited(_THREAD)
        self.app.drawn.clear()
        self._send(key)
        while True:
            await asyncio.wait_for(self.app.drawn.wait(), DEAD)
            self.app.drawn.clear()
            if visible() != before:
                break
        self.app.screen._compositor.render_strips()
        whole = time.perf_counter() - start
        return Reaction(whole, whole - (waited(_THREAD) - late))

    @property
    def typing(self) -> bool:
        return isinstance(self.app.screen, EditorScreen) or self._prompt.display

    @property
    def unsaved(self) -> tuple[str, str]:
        """The unsaved text in an editor and on the line at the bottom."""
        editors = [screen.area.text for screen in self.app.screen_stack if isinstance(screen, EditorScreen)]
        return "\n".join(editors), self._prompt.query_one(Input).value if self._prompt.display else ""

    def _probe(self) -> tuple[str, Callable[[], object]]:
        """A key, and what it changes.

        At a text input it is a digit that was not sent recently: earlier letters may still be in transit, and must not
        be mistaken for it.
        """
        if self.typing:
            digit = next(self._digits)
            return digit, lambda: (self.typing, "".join(self.unsaved).count(digit))
        key = "tab" if isinstance(self.app.screen, MainScreen) else "escape"
        return key, lambda: (self.typing, self.app.context.layout.pane_id, len(self.app.screen_stack))

    @property
    def _prompt(self) -> Prompt:
        return self.app.screen_stack[0].query_one(Prompt)

    async def go_back(self) -> None:
        """Closes whatever is open, and discards typed text."""
        for _ in range(6):
            if self._prompt.display:
                await self.press("escape")
            elif not isinstance(self.app.screen, MainScreen):
                await self.press(*(("ctrl+c", "ctrl+c") if isinstance(self.app.screen, EditorScreen) else ("escape",)))
            else:
                return
            await asyncio.sleep(0.03)

    # ---- steps of a session --------------------------------------------------------------------------------------

    def _file(self, ending: str) -> str:
        self._files += 1
        return str(self._folder / f"file{self._files}{ending}")

    async def _open(self) -> None:
        self.app.session.reload((self.app.workspace.source,))

    async def _toggle(self) -> None:
        # Passes that no later pass depends on: the recipe stays right.
        safe = {("cse", "mlir"), ("canonicalize", "mlir")}
        rows = [
            number
            for number, row in enumerate(self.app.passes.rows)
            if row.step is not None and (row.step.name, row.step.level) in safe and row.step.phase != "llvm"
        ]
        if rows:
            self.app.context.layout.show_pane("passes")
            self.app.passes.cursor = self._chance.choice(rows)
            await self.press("space")

    async def _run(self) -> None:
        await self.press("r")

    async def _page(self) -> None:
        self.app.context.layout.show_pane("ir")
        await self.press("[", "[", "pagedown", "]")

    async def _diff(self) -> None:
        self.app.context.layout.show_pane("ir")
        await self.press("]", "d")

    async def _search(self) -> None:
        self.app.context.layout.show_pane("ir")
        await self.press("/", *"add", "enter")

    async def _export(self) -> None:
        if self.app.state.captured:
            self.app.export_commands._export_to(self._file(".export"), ("object",))

    async def _save(self) -> None:
        self.app.recipe_edit_commands._save_to(self._file(".recipe.toml"))

    async def _try(self) -> None:
        self.app.context.layout.show_pane("passes")
        await self.press("w")

    async def _bisect(self) -> None:
        if self.app.state.captured and not self.app.bisect_commands.job.running:
            self.app.bisect_commands._begin_bisection("differs", "1, 20 s")

    async def _edit_ir(self) -> None:
        self.app.context.layout.show_pane("ir")
        self.app.text_edit_commands.edit_ir_built_in()
        for _ in range(50):
            await asyncio.sleep(0.02)
            if isinstance(self.app.screen, EditorScreen):
                return await self.press(*"// mine")

    async def _type_name(self) -> None:
        await self.press("ctrl+s", *"half a name")
