"""Batches by seed, shards, resuming from a file, and the exit status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from buddy.compiler.support import files
from tests.reliability import __main__ as command_line
from tests.reliability.campaign import (
    Attempt,
    Batch,
    Campaign,
    Fault,
    Plan,
    Tried,
    carried_out,
    faults,
    known,
    run,
    told,
    words,
)  # fmt: skip


def _campaign(tried: list[int], conditions: str = "") -> Campaign:
    """Every case is right except for one of batch 3."""

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
    assert faults(batches.values()) == 1
    assert told(_campaign(tried), Plan(60), batches).startswith("5 of 6 batches, 50 cases: ")
    assert words(batches.values()) == "50 cases: 49 right, 1 wrong · 1 faults · s 2 / 4 / 4"
    assert any("seed 3: wrong: three\nx = 3" in line for line in said)
    assert len(carried_out(_campaign(tried), Plan(50), path, said.append)) == 5
    assert len(tried) == 5, "what is known is not tried again"
    carried_out(_campaign(tried, "another"), Plan(10), path, said.append)
    assert tried[5:] == [0], "under other conditions it is"


def test_a_campaign_tries_so_many_cases_as_it_says() -> None:
    (batch,) = run(_campaign([]), Plan(4))
    assert batch.tried.outcomes == {"right": 4, "wrong": 0}
    assert [batch.cases for batch in run(_campaign([]), Plan(24, seed=7))] == [10, 10, 4]


def test_a_batch_of_fewer_cases_is_no_whole_one(tmp_path: Path) -> None:
    path, tried = tmp_path / "found.jsonl", list[int]()
    carried_out(_campaign(tried), Plan(14), path, str)
    assert carried_out(_campaign(tried), Plan(20), path, str)[1].cases == 10
    assert tried == [0, 1, 1]
    files.append_json_line(path, Batch("some", 2, "", Tried({"right": 10}), 1.0))
    assert list(known(_campaign(tried), Plan(30), path)) == [0, 1, 2], "a line without a number is of a whole batch"


def test_batches_with_faults_are_tried_again_where_that_is_asked_for(tmp_path: Path) -> None:
    path, tried = tmp_path / "found.jsonl", list[int]()
    carried_out(_campaign(tried), Plan(50), path, str)
    carried_out(_campaign(tried), Plan(50), path, str, again=True)
    assert tried == [0, 1, 2, 3, 4, 3]


def test_a_batch_that_nothing_was_measured_in_is_told() -> None:
    batch = Batch("some", 0, "", Tried({}, (Fault("not opened", "", ""),), {"seconds": []}), 1.0)
    assert words([batch]) == "0 cases:  · 1 faults"


def test_a_batch_that_breaks_off_is_a_fault_and_the_next_begins_anew() -> None:
    begun = list[int]()

    @contextmanager
    def trial() -> Iterator[Attempt]:
        begun.append(len(begun))

        def attempt(seed: int, cases: int) -> Tried:
            if seed == 1:
                raise RuntimeError("the process of torch ended")
            return Tried({"right": cases})

        yield attempt

    batches = list(run(Campaign("some", "something", 30, 10, trial), Plan(30)))
    assert [batch.tried.outcomes for batch in batches] == [{"right": 10}, {}, {"right": 10}]
    (fault,) = batches[1].tried.faults
    assert (fault.outcome, fault.why) == ("broken off", "RuntimeError: the process of torch ended")
    assert "in attempt" in fault.what
    assert len(begun) == 2


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def some(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds tried by `inputs`, which is replaced by another campaign here."""
    tried = list[int]()
    monkeypatch.setattr(command_line, "campaign", lambda _name: _campaign(tried))
    return tried


@pytest.mark.parametrize(("words", "status"), [([], 1), (["--part", "0.3"], 0), (["--count", "31"], 1)])
def test_the_exit_status_tells_faults(
    words: list[str], status: int, some: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(["inputs", *words]) == status
    assert f"{len(some)} of {len(some)} batches, " in capsys.readouterr().out.splitlines()[-1]
    assert some == list(range({"--part": 3, "--count": 4}.get("".join(words[:1]), 10)))


@pytest.mark.parametrize(
    "words", [["--count", "0"], ["--count", "x"], ["--part", "0"], ["--part", "2"], ["--part", "1", "--count", "1"]]
)
def test_words_that_mean_nothing_are_refused(words: list[str], some: list[int]) -> None:
    with pytest.raises(SystemExit) as end:
        command_line.main(["inputs", *words])
    assert end.value.code == 2
    assert some == []


def test_a_shard_that_is_none_is_told(some: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["inputs", "--shard", "3/2"]) == 2
    assert "a shard is I/N" in capsys.readouterr().err
    assert some == []
