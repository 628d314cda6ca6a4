"""Simulates the user's recovery actions until a run succeeds; measures how long engines are unavailable."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import NamedTuple

from buddy.app.session.state import State
from tests.reliability.faults import PASSES
from tests.reliability.processes import Process, engines, waited
from tests.reliability.user import Drilled

# Seconds between looks, and for a key.
_LOOK, _ACT = 0.02, 0.1
# Seconds without news after which a user gives up a running request, in addition to the session's own start time; the
# multiple of this time within which recovery must end; and its minimum in seconds.
PATIENCE = 4.0
STARTS, BOUND = 4, 60.0
# Seconds to read a message, and of inactivity before a broken pass or a run is considered.
_READ, _IDLE = 0.3, 1.0
# The roles of processes that are started.
_STARTED = ("engine", "host", "compiler")
# The number of recent events and actions in the report of a fault.
_TOLD = 60


class Away(NamedTuple):
    """Seconds for which an engine or a worker was unavailable: in total, and without waits for a processor during
    its start.
    """

    whole: float
    own: float


class Absence:
    """Times how long the engine or one of its workers is unavailable, from the latest cause on.

    A start is work of the engine and then of its workers, each on one thread: time in which these were ready to run and
    had no processor is the machine's. Workers start in parallel; the one that had to wait longer counts.
    """

    def __init__(self) -> None:
        self.found: list[Away] = []
        self._away = False
        self._mark: tuple[float, dict[Process, float]] | None = None

    def begin(self) -> None:
        """Records a cause now."""
        self._mark = time.monotonic(), _kept_waiting()

    def given_up(self) -> None:
        """A missing worker is replaced by another one."""
        if self._away:
            self.begin()

    def look(self, state: State) -> None:
        workers = [state.workers.get(name) for name in ("compiler", "host")]
        there = state.engine == "ready" and all(each and each.state in ("ready", "busy") for each in workers)
        if there and self._away:
            self._ended()
        elif not there and self._mark is None:
            self.begin()
        self._away = not there

    def _ended(self) -> None:
        assert self._mark is not None
        (since, before), self._mark = self._mark, None
        late = dict.fromkeys(_STARTED, 0.0)
        for process, seconds in _kept_waiting().items():
            late[process.role] += seconds - before.get(process, 0.0)
        whole = time.monotonic() - since
        self.found.append(Away(whole, whole - late["engine"] - max(late["host"], late["compiler"])))


class Recovery:
    """A user who does what the screen suggests. `start` is the session's own start time in seconds."""

    def __init__(self, app: Drilled, start: float) -> None:
        self._app, self._start = app, start
        self._began = self._moved = time.monotonic()
        self._standing, self._last, self._ran = "", "", False
        self._told: deque[str] = deque(maxlen=_TOLD)
        self.absence = Absence()

    @property
    def bound(self) -> float:
        """Seconds until recovery must be complete."""
        return max(BOUND, STARTS * self._start)

    @property
    def told(self) -> str:
        """The events, and the actions taken."""
        return "\n".join(self._told)

    async def until_well(self) -> bool:
        """Acts until a run of the current recipe succeeds; returns whether it did, in time."""
        while time.monotonic() < self._began + self.bound:
            await asyncio.sleep(_LOOK)
            self._look()
            key = self._wanted()
            if key == "well":
                return True
            if key:
                await self._press(key)
        return False

    def _look(self) -> None:
        state = self._app.state
        self.absence.look(state)
        workers = " ".join(f"{name} {worker.state}" for name, worker in sorted(state.workers.items()))
        engine = f"{state.engine}, silent" if state.silent_seconds else f"{state.engine} {state.connection_error}"
        now = f"{engine} {sorted(state.jobs.items())} {state.problem} {len(state.board.rows())} {workers}"
        if now != self._standing:
            self._standing, self._moved, self._last = now, time.monotonic(), ""
            self._tell(now)

    def _tell(self, what: str) -> None:
        self._told.append(f"{time.monotonic() - self._began:6.2f} s: {what}")

    def _wanted(self) -> str:
        """The key that a user would press now, "" for none, "well" if everything works."""
        state, waiting = self._app.state, time.monotonic() - self._moved
        if state.silent_seconds or (state.engine == "lost" and waiting > _READ and self._app.session._needs_user):
            return "R"
        if state.connection_error and waiting > _READ and self._last != "R":
            return "R"
        if state.engine != "ready":
            return ""
        if self._broken and (state.problem is not None or waiting > _IDLE):
            return "u"
        busy = self._app.situation().busy
        if any(worker.state == "stopped" for worker in state.workers.values()):
            return "" if waiting < _READ else "ctrl+c" if busy else "R"
        if not busy and "open" in state.problems and waiting > _READ:
            return "R"
        if busy or not state.captured:
            return self._impatient(waiting, busy)
        if self._ran and state.run_recipe == self._app.workspace.recipe and state.problem is None:
            return "well"
        return "r" if not self._ran or waiting > _IDLE else ""

    def _impatient(self, waiting: float, busy: bool) -> str:
        """The action on a request that has been running for longer than a start takes."""
        if self._last == "ctrl+c":
            return "R" if waiting > PATIENCE else ""
        return "" if waiting < self._start + PATIENCE else "ctrl+c" if busy else "R"

    @property
    def _broken(self) -> bool:
        return any(step.name in PASSES for step in self._app.workspace.recipe.steps)

    async def _press(self, key: str) -> None:
        """Presses `key` on the main screen, whatever is open over it: text typed there is kept."""
        app, state = self._app, self._app.state
        self._tell(f"pressed {key}")
        if key == "r":
            self._ran = True
            state.graph_state_of(state.graph).run_recipe = None
        engine = app.engine_commands
        {"R": engine.start_over, "ctrl+c": engine.cancel_jobs, "u": app.context.edits.undo, "r": engine.run_program}[
            key
        ]()
        # Opening the program is not delayed by a broken pass.
        if key == "u" and state.busy and "open" not in state.jobs.values():
            engine.cancel_jobs()
        if key == "R":
            self.absence.begin()
        elif key == "ctrl+c":
            self.absence.given_up()
        self._moved, self._last = time.monotonic(), key
        await asyncio.sleep(_ACT)


def _kept_waiting() -> dict[Process, float]:
    """Seconds that each engine, host and compiler was ready to run and had no processor."""
    return {process: waited(process.pid) for process in engines() if process.role in _STARTED}
