"""What a user does when something has gone wrong, until a run comes out right again; and how long engines are away."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import NamedTuple

from buddy.app.session.state import State
from tests.reliability.faults import PASSES
from tests.reliability.processes import Process, engines, waited
from tests.reliability.user import Drilled

# Seconds between looks, and those that a key takes.
_LOOK, _ACT = 0.02, 0.1
# Seconds without anything new after which a user gives up what is under way, beside as many as the session's own start
# took; and how often that until all has to be well again, but so many seconds at least.
PATIENCE = 4.0
STARTS, BOUND = 4, 60.0
# Seconds in which a message is read, and in which nothing happens before a broken pass or a run is thought of.
_READ, _IDLE = 0.3, 1.0
# What is started, by the roles of processes.
_STARTED = ("engine", "host", "compiler")
# What a fault is told with: the latest so many things that happened, and what was done.
_TOLD = 60


class Away(NamedTuple):
    """Seconds for which an engine or a worker was away: all, and those in which its start was not kept waiting."""

    whole: float
    own: float


class Absence:
    """Times how long the engine or one of its workers is away, from the latest reason for it on.

    A start is work of the engine's and then of its workers', each on one thread: what these were ready to run and had
    no processor is the machine's. Workers start beside each other, if both do: of these the one counts that had to wait
    longer.
    """

    def __init__(self) -> None:
        self.found: list[Away] = []
        self._away = False
        self._mark: tuple[float, dict[Process, float]] | None = None

    def begin(self) -> None:
        """There is a reason now."""
        self._mark = time.monotonic(), _kept_waiting()

    def given_up(self) -> None:
        """A worker that is away is replaced by another one."""
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
    """Somebody who does what the screen says. `start` is how many seconds the session's own start took."""

    def __init__(self, app: Drilled, start: float) -> None:
        self._app, self._start = app, start
        self._began = self._moved = time.monotonic()
        self._standing, self._last, self._ran = "", "", False
        self._told: deque[str] = deque(maxlen=_TOLD)
        self.absence = Absence()

    @property
    def bound(self) -> float:
        """Seconds until all has to be well."""
        return max(BOUND, STARTS * self._start)

    @property
    def told(self) -> str:
        """What has happened, and what was done about it."""
        return "\n".join(self._told)

    async def until_well(self) -> bool:
        """Act until a run of the recipe as it is has ended without a problem; whether it has, in time."""
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
        engine = f"{state.engine}, silent" if state.silent else f"{state.engine} {state.link}"
        now = f"{engine} {sorted(state.jobs.items())} {state.problem} {len(state.board.rows())} {workers}"
        if now != self._standing:
            self._standing, self._moved, self._last = now, time.monotonic(), ""
            self._tell(now)

    def _tell(self, what: str) -> None:
        self._told.append(f"{time.monotonic() - self._began:6.2f} s: {what}")

    def _wanted(self) -> str:
        """The key that somebody would press now, "" for none, "well" where all is."""
        state, waiting = self._app.state, time.monotonic() - self._moved
        if state.silent or (state.engine == "lost" and waiting > _READ and self._app.session._for_user):
            return "R"
        if state.link and waiting > _READ and self._last != "R":
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
        if self._ran and state.ran == self._app.workspace.recipe and state.problem is None:
            return "well"
        return "r" if not self._ran or waiting > _IDLE else ""

    def _impatient(self, waiting: float, busy: bool) -> str:
        """What is done about something that has been under way for longer than a start takes."""
        if self._last == "ctrl+c":
            return "R" if waiting > PATIENCE else ""
        return "" if waiting < self._start + PATIENCE else "ctrl+c" if busy else "R"

    @property
    def _broken(self) -> bool:
        return any(step.name in PASSES for step in self._app.workspace.recipe.steps)

    async def _press(self, key: str) -> None:
        """What `key` does on the main screen, whatever else is open over it: what is typed there stays."""
        app, state = self._app, self._app.state
        self._tell(f"pressed {key}")
        if key == "r":
            self._ran = True
            state.of(state.graph).ran = None
        {"R": app.start_over, "ctrl+c": app.cancel_jobs, "u": app.context.edits.undo, "r": app.run_program}[key]()
        # What opens the program is not what a broken pass holds up.
        if key == "u" and state.busy and "open" not in state.jobs.values():
            app.cancel_jobs()
        if key == "R":
            self.absence.begin()
        elif key == "ctrl+c":
            self.absence.given_up()
        self._moved, self._last = time.monotonic(), key
        await asyncio.sleep(_ACT)


def _kept_waiting() -> dict[Process, float]:
    """Seconds that each engine, host and compiler has been ready to run and had no processor."""
    return {process: waited(process.pid) for process in engines() if process.role in _STARTED}
