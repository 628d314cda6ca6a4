"""A part of the fault drills: one session with random faults, and one with each kind of fault alone."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from buddy.app.session.state import State
from buddy.compiler.protocol import WorkerState
from buddy.compiler.protocol.connection import FrameBuffer, WireError
from tests.reliability import recovery
from tests.reliability.campaign import Tried
from tests.reliability.drills import LATE, drill, drill_each, environment
from tests.reliability.faults import KINDS, LONG_FRAME, NO_FRAME
from tests.reliability.processes import Process

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="faults are struck through /proc")]


# Engines as users start them: recovery times are judged by start times.
@pytest.fixture(autouse=True)
def capped(cold_engines: None) -> Iterator[None]:
    with environment():
        yield


@pytest.mark.full("a campaign of faults in miniature")
async def test_nothing_is_lost_by_faults_at_random_moments() -> None:
    tried = await drill(seed=1, cases=12)
    assert sum(tried.outcomes.values()) >= 12
    _is_well(tried)


@pytest.mark.full("a campaign of faults in miniature")
async def test_nothing_is_lost_by_a_fault_of_any_kind() -> None:
    tried = await drill_each(seed=3)
    assert len(tried.outcomes) >= len(KINDS), tried.outcomes
    _is_well(tried)


@pytest.mark.parametrize("halves", [0, 1, 2])
def test_garbage_comes_to_something_where_half_a_frame_waits(halves: int) -> None:
    buffer = FrameBuffer()
    assert buffer.feed(LONG_FRAME * halves) == []
    with pytest.raises(WireError):
        buffer.feed(NO_FRAME)


@pytest.mark.parametrize(
    ("waits", "own"),
    [
        ({"compiler": 30.0}, 10.0),
        ({"engine": 2.0, "host": 20.0, "compiler": 25.0}, 13.0),
        ({"runner": 30.0, "host": 0.5}, 39.5),
    ],
)
def test_what_a_start_is_kept_waiting_for_a_processor_is_not_its_own(
    waits: dict[str, float], own: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each worker that is started, also a compiler alone."""
    now, pids = [100.0, 0.0], {role: pid for pid, role in enumerate(("engine", "host", "compiler", "runner"))}
    roles = list(pids)
    monkeypatch.setattr(recovery, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(recovery, "engines", lambda: [Process(pid, "1", role, (role,)) for role, pid in pids.items()])
    monkeypatch.setattr(recovery, "waited", lambda pid: 7.0 + now[1] * waits.get(roles[pid], 0.0))
    state, absence = State(), recovery.Absence()
    state.engine = "ready"
    for standing in ("dead", "starting", "ready"):
        state.workers["compiler"], state.workers["host"] = (
            WorkerState("compiler", standing),
            WorkerState("host", "busy"),
        )
        absence.look(state)
        now[:] = 140.0, 1.0
    assert absence.found == [recovery.Away(40.0, own)]


def _is_well(tried: Tried) -> None:
    """Single times are judged by the campaign: on a loaded machine the median of reactions is significant."""
    assert [fault for fault in tried.faults if fault.outcome not in ("late", "slow")] == []
    assert statistics.median(tried.facts["ms to answer"]) < LATE * 1000
