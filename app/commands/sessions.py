"""The session of a program: runs and cancels jobs, opens programs, saves the session, writes reproducers, reports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from buddy.app.actions import key_of
from buddy.app.panes.ir_comparison import DIFF_MODES
from buddy.app.reports.progress_texts import cancelled_text
from buddy.app.session.requests import UnavailableError
from buddy.app.workspace.files import FileLock
from buddy.app.workspace.inputs import relative_to_working_directory
from buddy.app.workspace.presets import ScreenState, headless_command
from buddy.app.workspace.recipe_files import saved_drafts
from buddy.app.workspace.session_file import Bookmarks, SavedSession, SessionFile, without_content
from buddy.app.workspace.sources import Program, RecentPrograms

if TYPE_CHECKING:
    from textual.timer import Timer

    from buddy.app.commands.run import RunCommands
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.ir import IrPane
    from buddy.app.reports.share.contents import SharedGraph


# ---- the jobs of the engine ------------------------------------------------------------------------------------------


# The message while jobs are being cancelled.
_CANCELLING = "cancelling"


class EngineCommands:
    """Starts and stops the jobs of the engine. `stop_reduction` stops a reduction, which runs in this process."""

    def __init__(self, context: WorkbenchContext, stop_reduction: Callable[[], object]) -> None:
        self._context, self._stop_reduction = context, stop_reduction

    def run_program(self) -> None:
        """Compiles and runs the shown graph, and compares it with eager."""
        self._context.session.run()

    def cancel_jobs(self) -> None:
        """Cancels the jobs of the engine, and stops a reduction. `report_cancelled` reports the end of the jobs."""
        self._context.session.cancel()
        self._stop_reduction()
        self._context.say(_CANCELLING)

    def report_cancelled(self) -> None:
        """Shows that jobs were cancelled, with the key that starts them again, unless another message is shown."""
        if self._context.status.message != _CANCELLING:
            return
        if self._context.state.opening_cancelled:
            self._context.say(cancelled_text())
            return
        is_compiled = self._context.state.compiled_recipe == self._context.workspace.recipe
        self._context.say(f"Cancelled. Press {key_of('run')} to {'run' if is_compiled else 'compile and run'}")

    def start_over(self) -> None:
        """Connects again if the connection to the engine failed. Otherwise, restarts the engine and runs the script."""
        session, state = self._context.session, self._context.state
        if state.connection_error and not state.silent_seconds:
            session.reconnect()
            return
        session.start_over()
        self._context.say("restarting the engine; the script runs again")

    def toggle_auto(self) -> None:
        """Switches between running the program after each edit and only on request."""
        session = self._context.session
        session.auto_run = not session.auto_run
        if session.auto_run:
            self._context.say("the program runs after each edit")
        else:
            self._context.say(f"the program runs only when you press {key_of('run')}")

    def toggle_watch(self) -> None:
        """Starts or stops reopening the program when one of its files changes."""
        session = self._context.session
        session.toggle_watching()
        if session.watching:
            self._context.say("file watching is on: the program is reopened when a file changes")
        else:
            self._context.say("file watching is off")


# ---- the program -----------------------------------------------------------------------------------------------------


# Called with the source and the arguments of the script.
OpenProgram = Callable[[str, tuple[str, ...]], object]


class ProgramCommands:
    """Opens another program, lists recent ones, and notices changed files.

    `open_program` replaces the program of the workbench, and cancels the running jobs. `is_busy` says whether jobs run.
    """

    def __init__(self, context: WorkbenchContext, open_program: OpenProgram, is_busy: Callable[[], bool]) -> None:
        self._context, self._open_program, self._is_busy = context, open_program, is_busy
        self._recent = RecentPrograms(context.workspace.store)
        self._is_checking = False

    def add_to_recent(self) -> None:
        """Puts the program of the workbench first in the list of recent programs."""
        self._recent.add(self._context.workspace.source, self._context.workspace.arguments)

    def ask_program(self) -> None:
        """Lets the user choose a recent program or type a path, and opens it."""
        from buddy.app.screens.programs import ProgramScreen

        recent, workspace = self._recent.read(), self._context.workspace
        # The open program is last, so that the first entry is the program that was open before.
        others = [program for program in recent if not self._is_shown(program)]
        opened_at = recent[0].opened_at if recent else 0.0
        current = Program(workspace.source, workspace.arguments, opened_at)
        programs = [*others, current] if len(others) < len(recent) else others
        screen = ProgramScreen(programs, local=self._context.session.is_local)
        self._context.dialogs.open(screen, self._confirm)

    def _is_shown(self, program: Program) -> bool:
        """Whether `program` is the one that is open."""
        workspace = self._context.workspace
        return workspace.is_same_program(program.source, program.arguments)

    def _confirm(self, program: Program | None) -> None:
        """Opens the program, after a question if that would lose something."""
        if program is None:
            return
        name = relative_to_working_directory(program.text)
        problem = self._context.workspace.problem
        losses = ["what is running will be cancelled"] if self._is_busy() else []
        losses += [f"the edits of this program are not saved: {problem}"] if problem else []
        if losses:
            losses_text = "; ".join(losses)
            question = f"{losses_text[0].upper()}{losses_text[1:]}. Open {name}?"
            self._context.dialogs.confirm(question, lambda: self._open(program), "the program was not changed")
        else:
            self._open(program)

    def _open(self, program: Program) -> None:
        self._open_program(program.source, program.arguments)

    # ---- changes of the files ------------------------------------------------------------------------------------

    async def check_files(self) -> None:
        """Records in the state which files of the program have changed since it was captured.

        Does nothing while the files are watched, the program is being opened, or another check runs.
        """
        session, state = self._context.session, self._context.state
        if session.watching or self._is_checking or "open" in state.jobs.values():
            return
        self._is_checking = True
        try:
            # In a thread, because a file may be on a slow network.
            changed = tuple(await asyncio.to_thread(session.file_states.changed_names))
        finally:
            self._is_checking = False
        if changed != state.changed_files:
            state.changed_files = changed
            session.notify(frozenset({"status", "outputs"}))


# ---- the session file, reproducers and reports -----------------------------------------------------------------------


# Seconds from a change until the session is saved, and from a failed save until the next attempt.
SAVE_SECONDS = 0.5
RETRY_SECONDS = 5.0


class SessionCommands:
    """Saves and restores the session file of the program; writes reproducers and reports; copies command lines."""

    def __init__(self, context: WorkbenchContext, ir: IrPane, run_commands: RunCommands) -> None:
        self._context, self._ir, self._run_commands = context, ir, run_commands
        # The IR pane between `restore` and `save`, else `None`: before and after, there is no state to save.
        self._active_ir: IrPane | None = None
        self._save_timer: Timer | None = None
        self._is_writing = self._save_failed = False
        # Messages for the start of the session. They are shown together, because a message replaces the previous one.
        self.startup_messages: Sequence[str] = ()

    # ---- the session file ----------------------------------------------------------------------------------------

    @property
    def _path(self) -> Path:
        """The path of the session file, next to the recipe of the first graph."""
        return self._context.workspace.path_of(0).with_suffix(".session")

    @cached_property
    def _file(self) -> SessionFile:
        return SessionFile(self._path)

    @cached_property
    def _open_lock(self) -> FileLock:
        """A lock that all workbenches with this program open hold in shared mode."""
        return FileLock(self._path.with_suffix(".open"))

    def restore(self) -> None:
        """Restores the last session: layout, runs, inputs, bookmarks; its stage and node when the engine has them."""
        self._active_ir = self._ir
        saved, problem = self._file.read()
        self._context.layout.shows_source = saved.source
        if saved.pane in self._context.layout.visible_order:
            self._context.layout.pane_id = saved.pane
        self._context.layout.zoomed = saved.zoomed
        self._context.state.runs = list(saved.runs)
        self._run_commands.restore(saved.inputs)
        self._context.selection.node = saved.node
        if saved.diff_mode in DIFF_MODES:
            self._ir.comparison.mode = saved.diff_mode
        if saved.stage is not None:
            self._ir.expect(saved.stage, saved.cursor)
        bookmarks_problem = self._restore_bookmarks(saved)
        others = self._describe_other_sessions()
        if messages := [text for text in (*self.startup_messages, problem, bookmarks_problem, *others) if text]:
            self._context.say("; ".join(messages))

    def _describe_other_sessions(self) -> list[str]:
        """Returns messages about drafts of earlier sessions, and about other workbenches with this program open."""
        drafts, messages = saved_drafts(self._context.workspace.path_of(0)), []
        if drafts.unsaved:
            names = ", ".join(drafts.unsaved)
            messages.append(f"unsaved input of the last session: {names}; open the editor to restore it")
        with contextlib.suppress(OSError):
            if self._open_lock.take_shared():
                editing = f" (editing: {', '.join(drafts.open)})" if drafts.open else ""
                messages.append(f"the program is also open in another workbench{editing}; each has its own edits")
        return messages

    def _restore_bookmarks(self, saved: SavedSession) -> str:
        """Restores the saved bookmarks, if any. Returns an error message if they are invalid, else an empty string."""
        if saved.bookmarks is not None:
            try:
                self._context.bookmarks.marks = Bookmarks.from_data(saved.bookmarks).marks
            except ValueError as error:
                self._file.mark_invalid()
                return f"the saved bookmarks could not be read: {error}"
        return ""

    def schedule_save(self) -> None:
        """Saves the session in `SAVE_SECONDS`. Called when the screen may have changed."""
        if self._active_ir is not None and self._save_timer is None:
            self._save_timer = self._context.jobs.call_later(SAVE_SECONDS, self._save_changes)

    def save(self) -> None:
        """Saves the session, and waits until it is written. Called once, at exit: later changes are not saved."""
        if self._active_ir is None:
            return
        if self._save_timer is not None:
            self._save_timer.stop()
        self._file.set_session(self._current_screen(self._active_ir))
        self._report_problem(self._write_file())
        self._open_lock.release()
        self._active_ir = None

    def _save_changes(self) -> None:
        """Writes the session file in the background, if the screen has changed since the last write."""
        self._save_timer = None
        if self._active_ir is None:
            return
        self._file.set_session(self._current_screen(self._active_ir))
        if not (self._file.is_written or self._is_writing):
            self._context.jobs.begin("save-session", self._write_in_background)

    async def _write_in_background(self) -> None:
        """Writes the session file in a thread, because the disk may be slow. A failed write is repeated later."""
        self._is_writing = True
        try:
            problem = await asyncio.to_thread(self._write_file)
        finally:
            self._is_writing = False
        self._report_problem(problem)
        if self._save_timer is None and not self._file.is_written:
            self._save_timer = self._context.jobs.call_later(
                RETRY_SECONDS if problem else SAVE_SECONDS, self._save_changes
            )

    def _write_file(self) -> str:
        """Writes the session file. Returns the error message, or an empty string."""
        try:
            self._file.write()
        except (OSError, ValueError) as error:
            return f"runs, bookmarks and layout could not be saved: {getattr(error, 'strerror', None) or error}"
        return ""

    def _report_problem(self, problem: str) -> None:
        """Shows the problem of a write, unless the write before it failed too. An empty `problem` is a success."""
        if problem and not self._save_failed:
            # This message replaces the one about a recipe that could not be saved, so it repeats that one.
            self._context.say("; ".join(filter(None, (self._context.workspace.problem, problem))))
        self._save_failed = bool(problem)

    def _current_screen(self, ir: IrPane) -> SavedSession:
        """The state of the screen that the session file stores."""
        return SavedSession(
            pane=self._context.layout.pane_id,
            zoomed=self._context.layout.zoomed,
            stage=ir.stages.expected_key,
            node=self._context.selection.node,
            diff_mode=ir.comparison.mode,
            inputs=without_content(self._run_commands.next_inputs),
            bookmarks=self._context.bookmarks.to_data(),
            runs=tuple(self._context.state.runs),
            source=self._context.layout.shows_source,
            cursor=ir.cursor_to_save,
        )

    # ---- reproducers ---------------------------------------------------------------------------------------------

    def ask_reproducer(self) -> None:
        """Asks for the folder of a reproducer, and writes it."""
        name = self._context.workspace.program_name
        self._context.dialogs.ask("write a reproducer to the folder", f"{name}.reproducer", self.write_reproducer)

    def write_reproducer(self, folder: str) -> None:
        """Writes a reproducer to the typed folder. Asks before it writes into an existing one."""
        # Imported on demand, because the start of the workbench does not need it.
        from buddy.app.reports.reproducer import has_foreign_files

        def question(path: Path) -> str:
            if not path.exists():
                return ""
            foreign = " and is not a reproducer; files with the same names will be replaced"
            return f"{folder.strip()} exists{foreign if has_foreign_files(path) else ''}. Write into it?"

        def start(path: Path, _confirmed: bool) -> None:
            self._context.jobs.begin("reproducer", self._write_reproducer, path)

        self._context.files.use_path(folder, start, question)

    async def _write_reproducer(self, folder: Path) -> None:
        """Compiles and runs the shown graph, and writes the reproducer. Shows the result or the error."""
        from buddy.app.reports.reproducer import EngineFunctions, ReproducerSubject, write_reproducer

        session, state = self._context.session, self._context.state
        if state.info is None:
            return
        subject = ReproducerSubject(
            self._context.workspace.recipe, state.info, state.welcome, str(session.inputs),
            tuple(state.assignments.values()), state.files, session.shapes,
        )  # fmt: skip
        engine = EngineFunctions(session.compile_for_comparison, session.fetch_text, session.run_with_values)
        self._context.say(f"writing {folder}{self._context.glyphs.ellipsis}")
        request = write_reproducer(folder, subject, engine, UnavailableError)
        try:
            description = await self._context.jobs.result_of(request, f"{folder} could not be written")
        except OSError as error:
            self._context.say(f"{folder} could not be written: {error}")
            return
        if description is None:
            return
        notes = f"; without outputs, because the run failed: {description.problem}" if description.problem else ""
        notes += f"; {description.missing_files_text}" if description.missing_files_text else ""
        count = len(description.stages)
        self._context.say(f"wrote {count} stages to {folder}; `buddy-tui replay {folder}` repeats the run{notes}")

    # ---- reports -------------------------------------------------------------------------------------------------

    def ask_report(self) -> None:
        """Asks for the file of a report, and writes it."""
        name = self._context.workspace.program_name
        self._context.dialogs.ask("write a report to the file", f"{name}.html", self.write_report)

    def write_report(self, file: str) -> None:
        """Writes a report to the typed file. Asks before it replaces a file that is not a report."""
        from buddy.app.reports.share.page import may_be_replaced

        def question(path: Path) -> str:
            return "" if may_be_replaced(path) else f"{file.strip()} exists and is not a report. Replace it?"

        def start(path: Path, _confirmed: bool) -> None:
            self._context.jobs.begin("report", self._write_report, path)

        self._context.files.use_path(file, start, question)

    async def _write_report(self, path: Path) -> None:
        """Writes the report on the shown graph. Shows the result or the error."""
        from buddy.app.reports import formatting
        from buddy.app.reports.share.page import write_report

        jobs, state, failure = self._context.jobs, self._context.state, f"{path} could not be written"
        try:
            graph = await jobs.result_of(self._shared_graph(), failure)
            if graph is None:
                return
            progress = self._context.status.show_progress
            request = write_report(path, [graph], self._context.session.request, state.welcome, progress)
            size = await jobs.result_of(request, failure)
        except OSError as error:
            self._context.say(f"{failure}: {error.strerror or error}")
            return
        if size is not None:
            self._context.say(f"wrote {len(graph.stages)} stages to {path} ({formatting.size(size)})")

    async def _shared_graph(self) -> SharedGraph:
        """The shown graph for a report: its stages, run, numerics and profile under the current recipe.

        Compiles it, and runs it unless it has been run with this recipe. If that fails, the field `problem` is the
        reason, and the stages are those that are up to date. Raises `UnavailableError` if the user cancels.
        """
        from buddy.app.reports.share.contents import SharedGraph

        session, state, recipe = self._context.session, self._context.state, self._context.workspace.recipe
        assert state.info is not None
        graph_state, graph = state.graph_state, SharedGraph(state.info, recipe)
        try:
            compiled = await session.compile_for_comparison(recipe)
            graph = graph._replace(stages=compiled.stages, assignments=tuple(state.assignments.values()))
            latest_report = state.report if state.run_recipe == recipe else None
            graph = graph._replace(report=latest_report or await session.run_for_comparison(recipe))
        except UnavailableError as error:
            if error.cancelled:
                raise
            stages = graph.stages or tuple(row.stage for row in state.board.rows() if not row.outdated_reason)
            graph = graph._replace(stages=stages, problem=error.diagnostic)
        comparison = graph_state.comparison
        return graph._replace(
            numerics=comparison.report if comparison and comparison.recipe == recipe else None,
            profile=state.profile if graph_state.profiled_recipe == recipe else None,
        )

    # ---- the command line ----------------------------------------------------------------------------------------

    def command_line(self, screen: ScreenState | None = None) -> str:
        """The command line that prints what `screen` describes, by default the current screen."""
        recipe = self._context.workspace.recipe
        preset = next((preset.recipe for preset in self._context.state.presets if preset.name == recipe.preset), None)
        return headless_command(recipe, preset, self._context.workspace.path, screen or self._screen_state())

    def _screen_state(self) -> ScreenState:
        """What the screen shows: the pane that has focus; in the IR pane, the stage, and the other one of a diff."""
        ir, pane, graph_count = self._ir, self._context.layout.pane_id, len(self._context.state.graphs)
        if pane != "ir" or ir.chosen_row is None:
            return ScreenState(pane, n_graphs=graph_count)
        names = [row.stage.name for row in ir.rows]
        stage = _stage_argument(ir.chosen_row.key, names)
        other = ir.document.other
        other_row = next((row for row in ir.rows if other is not None and row.stage == other), None)
        if ir.document.diff is None or other_row is None:
            return ScreenState(pane, stage, n_graphs=graph_count)
        is_structural = ir.comparison.mode == "structural"
        return ScreenState(pane, stage, _stage_argument(other_row.key, names), is_structural, graph_count)

    def copy_command(self) -> None:
        """Copies the command line that prints what the screen shows."""
        self._context.dialogs.copy(self.command_line())


def _stage_argument(key: tuple[str, int], names: list[str]) -> str:
    """The argument of `--stage` for a stage: its name, or as `canonicalize#2` if several of `names` are equal to it.

    `key` is the name of the stage, and the number of stages with that name before it.
    """
    name, number = key
    return f"{name}#{number + 1}" if names.count(name) > 1 else name
