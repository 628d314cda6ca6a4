"""A share of the fault drills: one session with faults at random, and one in which each kind of fault strikes alone."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator

import pytest

from buddy.compiler.wire import FrameBuffer, WireError
from tests.reliability.campaign import Tried
from tests.reliability.drills import LATE, drill, drill_each, environment
from tests.reliability.faults import KINDS, LONG_FRAME, NO_FRAME

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="faults are struck through /proc")]


@pytest.fixture(autouse=True)
def capped() -> Iterator[None]:
    with environment():
        yield


async def test_nothing_is_lost_by_faults_at_random_moments() -> None:
    tried = await drill(seed=1, cases=12)
    assert sum(tried.outcomes.values()) >= 12
    _is_well(tried)


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


def _is_well(tried: Tried) -> None:
    """Single times are the campaign's to judge: on a machine at work the median of reactions says enough."""
    assert [fault for fault in tried.faults if fault.outcome not in ("late", "slow")] == []
    assert statistics.median(tried.facts["ms to answer"]) < LATE * 1000
