"""Batches by seed, shards, and a file that a campaign goes on from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.reliability.campaign import Attempt, Campaign, Fault, Plan, Tried, carried_out, faults, run, words


def _campaign(tried: list[int], conditions: str = "") -> Campaign:
    """Every case is right but one of the batch 3."""

    def attempt(seed: int, cases: int) -> Tried:
        tried.append(seed)
        wrong = (Fault("wrong", "three", "x = 3"),) if seed == 3 else ()
        return Tried({"right": cases - len(wrong), "wrong": len(wrong)}, wrong, {"s": [float(seed)]})

    @contextmanager
    def trial() -> Iterator[Attempt]:
        yield attempt

    return Campaign("some", "something", 100, 10, trial, conditions)


def test_shards_share_the_batches_out() -> None:
    whole = Plan(95, seed=7).seeds(10)
    assert whole == list(range(7, 17))
    parts = [Plan(95, 7, (part, 3)).seeds(10) for part in (1, 2, 3)]
    assert sorted(seed for part in parts for seed in part) == whole


def test_a_campaign_goes_on_from_its_file(tmp_path: Path) -> None:
    path, tried, said = tmp_path / "found.jsonl", list[int](), list[str]()
    carried_out(_campaign(tried), Plan(20), path, said.append)
    with path.open("a") as file:
        file.write('{"campaign": "some", "se')
    batches = carried_out(_campaign(tried), Plan(50), path, said.append)
    assert tried == [0, 1, 2, 3, 4]
    assert faults(batches) == 1
    assert words(batches) == "50 cases: 49 right, 1 wrong · 1 faults · s 2 / 4 / 4"
    assert any("seed 3: wrong: three\nx = 3" in line for line in said)
    assert len(carried_out(_campaign(tried), Plan(50), path, said.append)) == 5
    assert len(tried) == 5, "what is known is not tried again"
    carried_out(_campaign(tried, "another"), Plan(10), path, said.append)
    assert tried[5:] == [0], "under other conditions it is"


def test_a_campaign_smaller_than_a_batch_tries_so_many_cases() -> None:
    (batch,) = run(_campaign([]), Plan(4))
    assert batch.tried.outcomes == {"right": 4, "wrong": 0}
