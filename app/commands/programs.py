"""Opens another program in the workbench, and notices changes of the open one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from buddy.app.workspace.inputs import relative_to_working_directory
from buddy.app.workspace.sources import Program, RecentPrograms

if TYPE_CHECKING:
    from buddy.app.panes.context import WorkbenchContext

# Called with the source and the arguments of the script.
OpenProgram = Callable[[str, tuple[str, ...]], object]


class ProgramCommands:
    """Opens another program, lists recent ones, and notices changed files.

    `open_program` replaces the program of the workbench. `is_busy` says whether jobs run that this would cancel.
    """

    def __init__(self, context: WorkbenchContext, open_program: OpenProgram, is_busy: Callable[[], bool]) -> None:
        self._context, self._open_program, self._is_busy = context, open_program, is_busy
        self._recent = RecentPrograms(context.workspace.store)
        self._is_checking = False

    def add_to_recent(self) -> None:
        """Put the program of the workbench first in the list of recent programs."""
        self._recent.add(self._context.workspace.source, self._context.workspace.arguments)

    def ask_program(self) -> None:
        """Choose a recent program, or type a path, and open it."""
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
        """Open the program, after a question if that would lose something."""
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
        """Record in the state which files of the program have changed since it was captured.

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
