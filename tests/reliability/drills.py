"""Fault drills: faults strike a session at random moments, and nothing of the user's may be lost by them.

A batch is one session of the real workbench on the real engine. In each of its rounds the user does something, one or
more faults strike meanwhile, and while they are on the screen has to answer. Then the user does what the screen says
(`R`, `ctrl+c`, undo a broken pass) and runs the program again, which has to come out right.
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

from buddy.app.session.ssh import Remote
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
# GiB that a process of the engine may take: torch and MLIR need one, a pass that devours memory is soon done.
MEMORY = "2"
# The share of rounds in which faults strike what takes seconds to start again too, then many of them: while it dies,
# while it starts, and one after the other. Else a few strike the rest.
HEAVY, MANY, FEW = 0.25, 12, 3
DEAR = ("engine", "host", "link")
# Seconds in which a key is answered, the machine's own delay apart.
LATE = 0.2
# An engine or worker is back within this many times the session's own start, and so many seconds for what comes first:
# the kind end of an engine that another one is wanted for, up to 3 s, and a kill. Both times are without the waits for
# a processor; what they still have in them of the machine (caches, memory, the disk) is less than another start.
SLOW, SLOW_BY = 2.0, 4.0
GONE = 60.0
# Seconds in which what happened is said: a worker that is busy reads garbage, of which it dies, when it is done.
NEWS = 20.0
_SAID = re.compile(
    "ended|exited|died|stopped|answer|gone|crashed|could not|SIG|not done|failed|not a valid frame|lost|memory|wrong"
)


class Session:
    """One session under attack. `outcomes`, `faults` and `facts` are what came of it."""

    def __init__(self, app: Drilled, user: User, chance: random.Random, kinds: tuple[str, ...], store: Path) -> None:
        self._app, self._user, self._chance, self._kinds, self._store = app, user, chance, kinds, store
        self.outcomes: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self.facts: dict[str, list[float]] = {}
        self._seen: set[Process] = set()
        self._round = ""
        self._on: list[Struck] = []
        # Until it is known, so long that nobody loses patience with the first start on a machine that has much to do.
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
        """Take back what would stay: caps on memory and on files, those of this process too."""
        while self._on:
            self._on.pop().lift()

    def only(self, kind: str) -> None:
        """Strike with faults of this kind from now on."""
        self._kinds = (kind,)

    async def round(self, most: int, heavy: bool | None = None) -> None:
        """Up to `most` faults, and whether everything is as it was afterwards; `heavy` as chance has it, or as said."""
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
        """Steps and the faults that strike in them; at least one."""
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
        """One process of each role that is there: the engine has one, its helpers may be many."""
        processes = [process for process in engines() if not process.zombie]
        self._seen.update(processes)
        roles = sorted({process.role for process in processes if heavy or process.role not in DEAR})
        return [self._chance.choice([each for each in processes if each.role == role]) for role in roles]

    # ---- what has to hold ----------------------------------------------------------------------------------------

    async def _answers(self, before: Reaction) -> None:
        """The screen answers at once, whatever is on."""
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
        return workspace.recipe, [(steps, edit.title) for steps, edit in workspace.journal]

    def _intact(self, struck: list[Struck], unsaved: tuple[str, str], kept: tuple[Any, Any]) -> None:
        """The recipe, the history and what is typed are there; on disk too, but for what a full disk refused."""
        if (found := self._user.unsaved) != unsaved:
            self._fault("lost", f"typed {unsaved}, now {found}")
        if not any(fault.kind in PASSES for fault in struck) and self._kept() != kept:
            self._fault("lost", "the recipe or the history is another")
        if any(fault.kind == "disk of the workbench" for fault in struck):
            return
        workspace = Workspace(self._app.workspace.source, (), self._store, plugins=self._app.workspace.plugins)
        workspace.begin(self._app.workspace._preset)
        workspace.show(self._app.workspace.graph)
        if workspace.recipe != self._app.workspace.recipe:
            self._fault("lost", "the recipe on disk is another than that on the screen")

    async def _says(self, struck: list[Struck], logged: int) -> None:
        """Somebody who looked at the screen, or at the log from entry `logged` on, could read what happened."""
        # What may have come to nothing yet: a broken pass that is taken back, half a frame in the pipe of a worker that
        # nobody has asked anything since.
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
        """What was there before and is no part of the session any more is gone, zombies too."""
        end = time.monotonic() + GONE
        while left := survivors(self._seen, engines()):
            if time.monotonic() > end:
                return self._fault("left", "; ".join(f"{each.pid} {each.role} {' '.join(each.words)}" for each in left))
            await asyncio.sleep(0.05)
        self._seen.clear()

    async def _settle(self) -> Recovery | None:
        """Do what the screen says until a run has come out right; `None` where that takes too long."""
        recovery = Recovery(self._app, self._start)
        well = await recovery.until_well()
        if not well:
            self._fault("dead", f"not well after {recovery.bound:.0f} s:\n{recovery.told}")
        elif (report := self._app.state.report) is None or not report.ok:
            self._fault("wrong", f"the run after it is not right: {report and report.outputs}")
        return recovery if well else None

    def _in_time(self, recovery: Recovery) -> None:
        """An engine or worker that was away is back in the time that the session's own took to start."""
        for away in recovery.absence.found:
            self._fact("s until an engine or worker is back", away.own)
            self._fact("s until an engine or worker is back, the machine's delay included", away.whole)
            if away.own > SLOW * self._own_start + SLOW_BY:
                self._fault("slow", f"back after {away.own:.1f} s, at first {self._own_start:.1f} s:\n{recovery.told}")

    # ---- counts --------------------------------------------------------------------------------------------------

    def _fact(self, name: str, value: float) -> None:
        self.facts.setdefault(name, []).append(round(value, 4))

    def _fault(self, outcome: str, why: str) -> None:
        self.faults.append(Fault(outcome, why, self._round))


async def drill(seed: int, cases: int, kinds: tuple[str, ...] = KINDS, place: Remote | None = None) -> Tried:
    """One session with `cases` faults of these kinds, with an engine here or at `place`."""
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
    """One session in which each of these faults strikes once, alone; what is dear to start again is struck by those
    that only it can meet, or that look different there."""
    chance = random.Random(f"each {seed}")
    with tempfile.TemporaryDirectory(prefix="drill-") as folder:
        async with _opened(Path(folder), chance, kinds) as session:
            for kind in kinds:
                session.only(kind)
                await session.round(1, heavy=kind in ("stop", "closed pipe", "half a frame, then kill"))
    return Tried(dict(session.outcomes), tuple(session.faults), session.facts)


@asynccontextmanager
async def _opened(
    folder: Path, chance: random.Random, kinds: tuple[str, ...], place: Remote | None = None
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
            # As in a terminal: what the start has made is not looked through again and again.
            gc.collect()
            gc.freeze()
            yield session
            session._seen.update(engines())
        finally:
            gc.unfreeze()
            session.lift()


@contextmanager
def environment() -> Iterator[None]:
    """A cap on memory that a pass soon meets, and one thread: what is measured is not how fast torch is."""
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
