"""Fault drills: faults are injected into a session at random moments, and no work of the user may be lost.

A batch is one session of the real workbench on the real engine. In each of its rounds the user does something while one
or more faults are injected, and meanwhile the screen has to respond. Then the user does what the screen suggests (`R`,
`ctrl+c`, undo a broken pass) and runs the program again, which has to give the right result.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from buddy.app.session.engine_options import RemoteHost
from buddy.app.workspace.settings import Settings
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol.recipe import PluginFile
from tests.reliability.campaign import Attempt, Campaign, Fault, Tried
from tests.reliability.faults import KINDS, PASSES, PLUGIN, Struck, strike
from tests.reliability.processes import Process, engines, survivors
from tests.reliability.recovery import Recovery
from tests.reliability.user import Drilled, Reaction, User

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
PROGRAMS = ("arith_add.py", "two_models.py", "buddy_style.py")
COUNT, BATCH = 2_000, 20
# GiB per process of the engine: torch and MLIR need one, and a pass that uses up memory reaches the limit soon.
MEMORY = "2"
# The share of rounds in which many faults also hit processes that take seconds to restart: while they exit, while they
# start, one after the other. Otherwise a few hit the rest.
HEAVY, MANY, FEW = 0.25, 12, 3
DEAR = ("engine", "host", "link")
# The time limit for a key in seconds, without the machine's own delay.
LATE = 0.2
# An engine or worker is back within this multiple of the session's own start time, plus the seconds before a restart:
# the orderly exit of an engine, up to 3 s, and a kill. Both times are without waits for a processor; the remaining
# influence of the machine (caches, memory, the disk) is less than another start.
SLOW, SLOW_BY = 2.0, 4.0
GONE = 60.0
# Time limit for a report in seconds: a busy worker reads garbage, which crashes it, only when it is done.
NEWS = 20.0
_SAID = re.compile(
    "ended|exited|died|stopped|answer|gone|crashed|could not|SIG|not done|failed|not a valid frame|lost|memory|wrong"
)


class Session:
    """One session with faults. `outcomes`, `faults` and `facts` are its results."""

    def __init__(self, app: Drilled, user: User, chance: random.Random, kinds: tuple[str, ...], store: Path) -> None:
        self._app, self._user, self._chance, self._kinds, self._store = app, user, chance, kinds, store
        self.outcomes: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self.facts: dict[str, list[float]] = {}
        self._seen: set[Process] = set()
        self._round = ""
        self._on: list[Struck] = []
        # Until it is known, a value that is long enough for the first start on a loaded machine.
        self._start, self._own_start = 120.0, 0.0

    async def begin(self) -> None:
        start = time.perf_counter()
        recovery = await self._settle()
        self._start = time.perf_counter() - start
        assert recovery is not None, f"the session does not even begin: {self.faults}"
        self._own_start = sum(away.own for away in recovery.absence.found)
        self._fact("s to start", self._start)
        self._fact("s to start the engine and its workers", self._own_start)

    def lift(self) -> None:
        """Removes the lasting faults: limits on memory and on files, including those of this process."""
        while self._on:
            self._on.pop().lift()

    def only(self, kind: str) -> None:
        """Injects only faults of this kind from now on."""
        self._kinds = (kind,)

    async def round(self, most: int, heavy: bool | None = None) -> None:
        """Injects up to `most` faults, then checks that everything is restored; `heavy` is random by default."""
        heavy = self._chance.random() < HEAVY if heavy is None else heavy
        self._seen.update(engines())
        await self._user.reaction()  # the first one of a new screen sets it up
        before = await self._user.reaction()
        self._app.told.clear()
        logged = len(self._app.state.log)
        struck = await self._strikes(most, heavy)
        self._round = "; ".join(map(str, struck))
        await self._answers(before)
        unsaved, kept = self._user.unsaved, self._kept()
        start = time.perf_counter()
        self.lift()
        recovery = await self._settle()
        self._fact("s until well", time.perf_counter() - start)
        if recovery is not None:
            self._in_time(recovery)
        self._intact(struck, unsaved, kept)
        await self._says(struck, logged)
        await self._nobody_left()
        if self._chance.random() < 0.7:
            await self._user.go_back()
        self.outcomes.update(fault.kind for fault in struck)

    async def _strikes(self, most: int, heavy: bool) -> list[Struck]:
        """Steps with the faults injected during them; at least one."""
        struck: list[Struck] = []
        kinds = [kind for kind in self._kinds if heavy or kind != "closed pipe"] or self._kinds
        wanted = min(most, self._chance.randint(1, MANY if heavy else FEW))
        while len(struck) < wanted:
            step = "typing" if self._user.typing else self._chance.choice(list(self._user.steps))
            if step in self._user.steps:
                await self._user.steps[step]()
            else:
                await self._user.press(*"x y")
            await asyncio.sleep(self._chance.choice((0.0, 0.02, 0.1, 0.3)) * self._chance.random())
            kind = self._chance.choice(kinds)
            if (fault := strike(kind, self._app, self._victims(heavy), self._chance, step)) is not None:
                struck.append(fault)
                self._on.append(fault)
        return struck

    def _victims(self, heavy: bool) -> list[Process]:
        """One process of each role: there is one engine, but there may be many helpers."""
        processes = [process for process in engines() if not process.zombie]
        self._seen.update(processes)
        roles = sorted({process.role for process in processes if heavy or process.role not in DEAR})
        return [self._chance.choice([each for each in processes if each.role == role]) for role in roles]

    # ---- checks --------------------------------------------------------------------------------------------------

    async def _answers(self, before: Reaction) -> None:
        """The screen responds in time during the faults."""
        try:
            found = [await self._user.reaction() for _ in range(3)]
        except TimeoutError:
            return self._fault("dead", "the screen does not answer a key")
        for reaction in found:
            self._fact("ms to answer", reaction.own * 1000)
            self._fact("ms to answer, the machine's delay included", reaction.whole * 1000)
            if reaction.own > LATE > before.own:
                self._fault("late", f"{reaction.own * 1000:.0f} ms, before the fault {before.own * 1000:.0f} ms")

    def _kept(self) -> tuple[Any, Any]:
        workspace = self._app.workspace
        return workspace.recipe, [(steps, edit.title) for steps, edit in workspace.all_edits]

    def _intact(self, struck: list[Struck], unsaved: tuple[str, str], kept: tuple[Any, Any]) -> None:
        """The recipe, the history and the typed text are intact; on disk too, except for what a full disk rejected."""
        if (found := self._user.unsaved) != unsaved:
            self._fault("lost", f"typed {unsaved}, now {found}")
        if not any(fault.kind in PASSES for fault in struck) and self._kept() != kept:
            self._fault("lost", "the recipe or the history is another")
        if any(fault.kind == "disk of the workbench" for fault in struck):
            return
        workspace = Workspace(self._app.workspace.source, (), self._store, plugins=self._app.workspace.plugins)
        workspace.load(self._app.workspace._preset)
        workspace.show_graph(self._app.workspace.graph)
        if workspace.recipe != self._app.workspace.recipe:
            self._fault("lost", "the recipe on disk is another than that on the screen")

    async def _says(self, struck: list[Struck], logged: int) -> None:
        """The screen, or the log from entry `logged` on, reports what happened."""
        # Faults that may have no effect: a broken pass that is undone, half a frame to a worker without further
        # requests.
        silent = {"memory", "disk", "disk of the workbench", *PASSES}
        latent = {(f"half a frame {way}", role) for way in ("to", "from") for role in ("host", "compiler")}
        told_of = [each for each in struck if each.kind not in silent and (each.kind, each.role) not in latent]
        needed = [fault for fault in told_of if fault.role != "helper"]
        end = time.monotonic() + NEWS
        while needed and not any(map(_SAID.search, told := [*self._app.told, *map(str, self._app.state.log[logged:])])):
            if time.monotonic() > end:
                return self._fault("unsaid", " | ".join(told)[-600:])
            await asyncio.sleep(0.05)

    async def _nobody_left(self) -> None:
        """Processes that are no longer part of the session have exited, and no zombie is left."""
        end = time.monotonic() + GONE
        while left := survivors(self._seen, engines()):
            if time.monotonic() > end:
                return self._fault("left", "; ".join(f"{each.pid} {each.role} {' '.join(each.words)}" for each in left))
            await asyncio.sleep(0.05)
        self._seen.clear()

    async def _settle(self) -> Recovery | None:
        """Does what the screen suggests until a run succeeds; `None` if that takes too long."""
        recovery = Recovery(self._app, self._start)
        well = await recovery.until_well()
        if not well:
            self._fault("dead", f"not well after {recovery.bound:.0f} s:\n{recovery.told}")
        elif (report := self._app.state.report) is None or not report.ok:
            self._fault("wrong", f"the run after it is not right: {report and report.outputs}")
        return recovery if well else None

    def _in_time(self, recovery: Recovery) -> None:
        """An engine or worker was back within the session's own start time."""
        for away in recovery.absence.found:
            self._fact("s until an engine or worker is back", away.own)
            self._fact("s until an engine or worker is back, the machine's delay included", away.whole)
            if away.own > SLOW * self._own_start + SLOW_BY:
                self._fault("slow", f"back after {away.own:.1f} s, at first {self._own_start:.1f} s:\n{recovery.told}")

    # ---- measurements --------------------------------------------------------------------------------------------

    def _fact(self, name: str, value: float) -> None:
        self.facts.setdefault(name, []).append(round(value, 4))

    def _fault(self, outcome: str, why: str) -> None:
        self.faults.append(Fault(outcome, why, self._round))


async def drill(seed: int, cases: int, kinds: tuple[str, ...] = KINDS, place: RemoteHost | None = None) -> Tried:
    """One session with `cases` faults of these kinds, with a local engine or one at `place`."""
    chance = random.Random(f"drill {seed}")
    with tempfile.TemporaryDirectory(prefix="drill-") as folder:
        async with _opened(Path(folder), chance, kinds, place) as session:
            while session.outcomes.total() < cases and not any(fault.outcome == "dead" for fault in session.faults):
                await session.round(min(MANY, cases - session.outcomes.total()))
        end = time.monotonic() + GONE
        while (left := survivors(session._seen, ())) and time.monotonic() < end:
            await asyncio.sleep(0.05)
        if left:
            session._fault("left", f"after the workbench was closed: {left}")
    return Tried(dict(session.outcomes), tuple(session.faults), session.facts)


async def drill_each(seed: int, kinds: tuple[str, ...] = KINDS) -> Tried:
    """One session in which each of these faults is injected once, alone.

    Processes that are expensive to restart get only the faults that are specific to them.
    """
    chance = random.Random(f"each {seed}")
    with tempfile.TemporaryDirectory(prefix="drill-") as folder:
        async with _opened(Path(folder), chance, kinds) as session:
            for kind in kinds:
                session.only(kind)
                await session.round(1, heavy=kind in ("stop", "closed pipe", "half a frame, then kill"))
    return Tried(dict(session.outcomes), tuple(session.faults), session.facts)


@asynccontextmanager
async def _opened(
    folder: Path, chance: random.Random, kinds: tuple[str, ...], place: RemoteHost | None = None
) -> AsyncIterator[Session]:
    source = SAMPLES / chance.choice(PROGRAMS)
    app = Drilled(
        str(source),
        engine=place,
        store=folder / "kept",
        settings=Settings(),
        directory=str(folder),
        plugins=(PluginFile(str(PLUGIN)),),
    )
    async with app.run_test(size=(120, 40)):
        session = Session(app, User(app, folder, chance), chance, kinds, folder / "kept")
        try:
            await session.begin()
            # As in a terminal: objects from the start are not scanned repeatedly.
            gc.collect()
            gc.freeze()
            yield session
            session._seen.update(engines())
        finally:
            gc.unfreeze()
            session.lift()


@contextmanager
def environment() -> Iterator[None]:
    """A memory limit that a pass reaches soon, and one thread: the speed of torch is not measured."""
    with tempfile.TemporaryDirectory(prefix="drill-cache-") as cache:
        cache = os.environ.get("BUDDY_CACHE", cache)
        with patch.dict(os.environ, {"BUDDY_MEMORY": MEMORY, "OMP_NUM_THREADS": "1", "BUDDY_CACHE": cache}):
            yield


@contextmanager
def _trial() -> Iterator[Attempt]:
    with environment():
        yield lambda seed, cases: asyncio.run(drill(seed, cases))


CAMPAIGN = Campaign(
    name="drills",
    summary="faults strike a session of the workbench",
    count=COUNT,
    batch=BATCH,
    trial=_trial,
)
