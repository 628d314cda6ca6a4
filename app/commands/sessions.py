"""Leaving and coming back: what is kept of a session, reproducers, and the command line of what is on the screen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from buddy.app.panes.ir_comparison import HOW
from buddy.app.session.lines import UnavailableError
from buddy.app.workspace.bookmarks import Bookmarks
from buddy.app.workspace.command_line import ScreenState, command
from buddy.app.workspace.drafts import saved_drafts
from buddy.app.workspace.locks import FileLock
from buddy.app.workspace.runs import without_content
from buddy.app.workspace.session_file import SavedScreen, SessionFile

if TYPE_CHECKING:
    from textual.timer import Timer

    from buddy.app.commands.run import RunCommands
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.ir import IrPane

# Seconds after a change until it is kept, and after those in which it could not be.
KEEP_SECONDS = 0.5
AGAIN_SECONDS = 5.0


class SessionCommands:
    """Keeps how the screen stands, and writes down what is on it for others."""

    def __init__(self, context: WorkbenchContext, ir: IrPane, running: RunCommands) -> None:
        self._context, self._pane, self._running = context, ir, running
        # The screen is gone before the application is; the pane outlives it. There is none before and after a session.
        self._ir: IrPane | None = None
        self._later: Timer | None = None
        self._writing = self._failing = False
        # What else is to be said as the session begins: together, as one message takes the place of another.
        self.news: Sequence[str] = ()

    # ---- runs, bookmarks, inputs, layout -------------------------------------------------------------------------

    @property
    def _path(self) -> Path:
        return self._context.workspace.path_of(0).with_suffix(".session")

    @cached_property
    def _file(self) -> SessionFile:
        return SessionFile(self._path)

    @cached_property
    def _open(self) -> FileLock:
        """What all workbenches on this program share."""
        return FileLock(self._path.with_suffix(".open"))

    def restore(self) -> None:
        """Take up the layout of the last session; the stage and the node are shown as soon as they are there."""
        self._ir = self._pane
        kept, problem = self._file.read()
        self._context.layout.with_source = kept.source
        if kept.pane in self._context.layout.order:
            self._context.layout.pane_id = kept.pane
        self._context.layout.zoomed = kept.zoomed
        self._context.state.runs = list(kept.runs)
        self._running.restore(kept.inputs)
        self._context.selection.node = kept.node
        if kept.how in HOW:
            self._pane.comparison.how = kept.how
        if kept.stage is not None:
            self._pane.stages.expect(kept.stage)
        unread = self._restore_bookmarks(kept)
        if news := [text for text in (*self.news, problem, unread, *self._left_by_others()) if text]:
            self._context.say("; ".join(news))

    def _left_by_others(self) -> list[str]:
        """What earlier sessions have left, and what other workbenches hold now."""
        found, news = saved_drafts(self._context.workspace.path_of(0)), []
        if found.left:
            news.append(f"typed and not accepted when the workbench ended: {', '.join(found.left)}; its editor has it")
        with contextlib.suppress(OSError):
            if self._open.share():
                typed = f", where somebody types: {', '.join(found.open)}" if found.open else ""
                news.append(f"open in another workbench too{typed}; each keeps its own edits")
        return news

    def _restore_bookmarks(self, kept: SavedScreen) -> str:
        """What is wrong where they cannot be read, else ""."""
        if kept.bookmarks is not None:
            try:
                self._context.bookmarks.marks = Bookmarks.from_data(kept.bookmarks).marks
            except ValueError as error:
                self._file.put_aside()
                return f"the bookmarks kept from last time could not be read: {error}"
        return ""

    def note(self) -> None:
        """Something on the screen may have changed: it is kept a little later."""
        if self._ir is not None and self._later is None:
            self._later = self._context.jobs.later(KEEP_SECONDS, self._look)

    def keep(self) -> None:
        """Keep how the screen is left, and wait until it is."""
        if self._ir is None:
            return
        if self._later is not None:
            self._later.stop()
        self._file.want(self._now(self._ir))
        self._told(self._write_kept())
        self._open.release()
        self._ir = None

    def _look(self) -> None:
        self._later = None
        if self._ir is None:
            return
        self._file.want(self._now(self._ir))
        if not (self._file.is_written or self._writing):
            self._context.jobs.begin("keeping", self._write_beside)

    async def _write_beside(self) -> None:
        """Write without delaying a key, however slow the disk is; what cannot be written is tried again."""
        self._writing = True
        try:
            problem = await asyncio.to_thread(self._write_kept)
        finally:
            self._writing = False
        self._told(problem)
        if self._later is None and not self._file.is_written:
            self._later = self._context.jobs.later(AGAIN_SECONDS if problem else KEEP_SECONDS, self._look)

    def _write_kept(self) -> str:
        """What is wrong where it cannot be written, else ""."""
        try:
            self._file.write()
        except (OSError, ValueError) as error:
            return f"runs, bookmarks and layout could not be kept: {getattr(error, 'strerror', None) or error}"
        return ""

    def _told(self, problem: str) -> None:
        if problem and not self._failing:
            # What is wrong with the recipe is said too: this comes after it, and would take its place on the row.
            self._context.say("; ".join(filter(None, (self._context.workspace.problem, problem))))
        self._failing = bool(problem)

    def _now(self, ir: IrPane) -> SavedScreen:
        return SavedScreen(
            self._context.layout.pane_id,
            self._context.layout.zoomed,
            ir.stages.coming,
            self._context.selection.node,
            ir.comparison.how,
            inputs=without_content(self._running.next_inputs),
            bookmarks=self._context.bookmarks.to_data(),
            runs=tuple(self._context.state.runs),
            source=self._context.layout.with_source,
        )

    # ---- reproducers ---------------------------------------------------------------------------------------------

    def ask_reproducer(self) -> None:
        name = Path(self._context.workspace.source.partition(":")[0]).stem or "program"
        self._context.dialogs.ask("write a reproducer to the folder", f"{name}.reproducer", self.write_reproducer)

    def write_reproducer(self, folder: str) -> None:
        # With it comes the command line, which a start of the workbench can do without.
        from buddy.app.reports.reproducer import has_foreign_files

        def question(path: Path) -> str:
            holds = "holds other things than a reproducer; files of the same names are replaced"
            what = f"{folder.strip()} {holds if has_foreign_files(path) else 'is there already'}. Write into it?"
            return what if path.exists() else ""

        def start(path: Path, _asked: bool) -> None:
            self._context.jobs.begin("reproducer", self._write, path)

        self._context.files.use_path(folder, start, question)

    async def _write(self, folder: Path) -> None:
        from buddy.app.reports.reproducer import EngineDescription, ReproducerSubject, write_reproducer

        session, state = self._context.session, self._context.state
        if state.info is None:
            return
        subject = ReproducerSubject(
            self._context.workspace.recipe, state.info, state.welcome, str(session.inputs),
            tuple(state.assignments.values()), state.files, session.shapes,
        )  # fmt: skip
        engine = EngineDescription(session.compile_beside, session.whole_text, session.run_values)
        self._context.say(f"writing {folder}{self._context.glyphs.ellipsis}")
        request = write_reproducer(folder, subject, engine, UnavailableError)
        try:
            found = await self._context.jobs.result_of(request, f"{folder} could not be written")
        except OSError as error:
            self._context.say(f"{folder} could not be written: {error}")
            return
        if found is not None:
            without = f", without outputs: {found.problem}" if found.problem else ""
            without += f"; {found.lacks}" if found.lacks else ""
            self._context.say(
                f"{len(found.stages)} stages in {folder}; `buddy-tui replay {folder}` does it again{without}"
            )

    # ---- the command line ----------------------------------------------------------------------------------------

    def command_line(self, shown: ScreenState | None = None) -> str:
        """The command that gives without a screen what is `shown`, which is what is on it unless something is said."""
        recipe = self._context.workspace.recipe
        preset = next((each.recipe for each in self._context.state.presets if each.name == recipe.preset), None)
        return command(recipe, preset, self._context.workspace.path, shown or self._shown())

    def _shown(self) -> ScreenState:
        ir, pane, graphs = self._pane, self._context.layout.pane_id, len(self._context.state.graphs)
        if pane != "ir" or ir.shown is None:
            return ScreenState(pane, graphs=graphs)
        names = [row.stage.name for row in ir.rows]
        stage = _stage_word(ir.shown.key, names)
        other = next((row for row in ir.rows if ir.document.other is not None and row.stage == ir.document.other), None)
        if ir.document.diff is None or other is None:
            return ScreenState(pane, stage, graphs=graphs)
        return ScreenState(pane, stage, _stage_word(other.key, names), ir.comparison.how == "structural", graphs)

    def copy_command(self) -> None:
        self._context.dialogs.copy(self.command_line())


def _stage_word(key: tuple[str, int], names: list[str]) -> str:
    """A stage as `--stage` takes it: `canonicalize#2` where there are several of that name."""
    name, number = key
    return f"{name}#{number + 1}" if names.count(name) > 1 else name
