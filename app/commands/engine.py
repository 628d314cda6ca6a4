"""Runs the program, cancels jobs, restarts the engine, and turns automatic runs and file watching on and off."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from buddy.app.actions import key_of
from buddy.app.reports.progress_texts import cancelled_text

if TYPE_CHECKING:
    from buddy.app.panes.context import WorkbenchContext

# The message while jobs are being cancelled.
_CANCELLING = "cancelling"


class EngineCommands:
    """Starts and stops the jobs of the engine. `stop_reduction` stops a reduction, which runs in this process."""

    def __init__(self, context: WorkbenchContext, stop_reduction: Callable[[], object]) -> None:
        self._context, self._stop_reduction = context, stop_reduction

    def run_program(self) -> None:
        """Compile and run the shown graph, and compare it with eager."""
        self._context.session.run()

    def cancel_jobs(self) -> None:
        """Cancel the jobs of the engine, and stop a reduction. `report_cancelled` is called when they have ended."""
        self._context.session.cancel()
        self._stop_reduction()
        self._context.say(_CANCELLING)

    def report_cancelled(self) -> None:
        """Show that jobs were cancelled, with the key that starts them again, unless another message is shown."""
        if self._context.status.message != _CANCELLING:
            return
        if self._context.state.opening_cancelled:
            self._context.say(cancelled_text())
            return
        is_compiled = self._context.state.compiled_recipe == self._context.workspace.recipe
        self._context.say(f"Cancelled. Press {key_of('run')} to {'run' if is_compiled else 'compile and run'}")

    def start_over(self) -> None:
        """Restart the engine, and run the script again. If the connection to it failed, connect again instead."""
        session, state = self._context.session, self._context.state
        if state.connection_error and not state.silent_seconds:
            session.reconnect()
            return
        session.start_over()
        self._context.say("restarting the engine; the script runs again")

    def toggle_auto(self) -> None:
        """Switch between running the program after each edit and only on request."""
        session = self._context.session
        session.auto_run = not session.auto_run
        if session.auto_run:
            self._context.say("the program runs after each edit")
        else:
            self._context.say(f"the program runs only when you press {key_of('run')}")

    def toggle_watch(self) -> None:
        """Start or stop reopening the program when one of its files changes."""
        session = self._context.session
        session.toggle_watching()
        if session.watching:
            self._context.say("file watching is on: the program is reopened when a file changes")
        else:
            self._context.say("file watching is off")
