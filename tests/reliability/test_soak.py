"""A short soak, and the report of a leak."""

from __future__ import annotations

import math
import sys

import pytest
from msgspec.structs import replace

from tests.reliability import soak
from tests.reliability.holdings import ROLES, Holding, Sample, growth, growths, leaks, risen_kinds, watched
from tests.reliability.watched.in_use import in_use

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads what processes hold in /proc")
ACTIONS = 40


def _samples(count: int, rate: float = 0.0, files: int = 0, zombies: int = 0) -> list[Sample]:
    """Processes that warm up in 20 samples and then grow by `rate` per sample."""
    found = []
    for number in range(count):
        size = 50_000 * (1 - math.exp(-number / 5)) * (1 + rate * number) + (number % 3) * 50
        held = Holding(int(size) + 50_000, 0, 10 + files * number // 10, 3, 1000, {"Strip": number, "dict": 5})
        found.append(Sample(number * 100, {"engine": held}, {"engine": 1}, zombies * (number == 70)))
    return found


def test_what_grows_is_told_and_what_warms_up_is_not() -> None:
    assert leaks(_samples(100)) == []
    assert 0.05 < growths(_samples(100, rate=0.002))["engine"] < 0.2
    (memory, everything) = leaks(_samples(100, rate=0.002))
    assert "memory of engine grew by" in memory
    assert "memory of all grew by" in everything
    assert len(leaks(_samples(32, rate=0.01))) == 2
    assert leaks(_samples(31, rate=0.01)) == []
    assert leaks(_samples(100, files=1)) == ["files of engine rose from 15 to 18"]
    assert leaks(_samples(100, zombies=1)) == ["1 zombies after 7000 actions"]
    assert growth([100.0, 101.0, 102.0]) == pytest.approx(2 / 101)
    assert risen_kinds(_samples(100), "engine")[0] == ("Strip", 59)


def test_a_process_is_judged_by_what_it_has_in_use_and_all_by_their_pages() -> None:
    def used(sizes: list[int]) -> list[Sample]:
        pages = _samples(100, rate=0.0005)
        return [
            replace(each, held={role: replace(held, in_use=size) for role, held in each.held.items()})
            for each, size in zip(pages, sizes, strict=True)
        ]

    (everything,) = leaks(used([40_000] * 100))
    assert "memory of all grew by" in everything
    assert leaks(used([40_000 + 5 * number for number in range(100)])) == [everything]
    (engine, _) = leaks(used([40_000 + 10 * number for number in range(100)]))
    assert "memory of engine grew by 1.4" in engine


@pytest.mark.skipif(not in_use(), reason="glibc before 2.33 does not tell")
def test_what_is_given_back_is_not_in_use() -> None:
    for kept in ([bytes(100) for _ in range(100_000)], [bytes(100_000) for _ in range(100)]):
        with_them = in_use()
        kept.clear()
        assert 8_000 < with_them - in_use() < 16_000


@pytest.mark.full("a soak in miniature")
@pytest.mark.usefixtures("cold_engines")
async def test_a_short_soak_leaves_no_file_thread_or_process_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory only shows after thousands of actions. Code that a process loads at its start reports its measurements."""
    monkeypatch.setattr(soak, "EVERY", ACTIONS // 5)
    samples: list[Sample] = []
    with soak.environment(), watched() as watch:
        tried = await soak.soak(1, ACTIONS, watch, samples.append, fill=False)
    assert sum(tried.outcomes[name] for name in ("toggle", "run", "page", "any action")) > ACTIONS // 2
    assert [sample.actions for sample in samples] == list(range(0, ACTIONS + 1, ACTIONS // 5))
    assert all(set(sample.held) == set(ROLES) for sample in samples)
    assert all(bool(in_use()) <= held.in_use < 2 * held.own for sample in samples for held in sample.held.values())
    # Text typed without a prompt would extract nodes, each time into one more graph.
    assert tried.facts["graphs"] == [4]
    assert [said for said in leaks(samples, most=math.inf) if "threads" not in said] == []
