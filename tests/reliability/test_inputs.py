"""Hostile bytes for every reader: a part of the campaign of `inputs.py`, and a check that the campaign sees faults."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest

from tests.reliability import inputs
from tests.reliability.campaign import Batch
from tests.reliability.hostile_files import HOSTILE, HostileFiles
from tests.reliability.inputs import attempt, chosen, made, outcome_of, table
from tests.reliability.mutations import FORMS, mutated
from tests.reliability.readers import READERS, Reader, in_memory

SHARE = 150
FILES = 12


@pytest.mark.parametrize("name", READERS)
def test_hostile_bytes_are_read_or_refused(name: str) -> None:
    assert attempt(0, SHARE, only=name).faults == ()


@pytest.mark.parametrize("name", READERS)
def test_seeds_are_taken(name: str) -> None:
    """Otherwise the campaign would only try inputs that are rejected at the first byte."""
    reader = READERS[name]
    assert outcome_of(reader, reader.seeds[0])[0] == "taken"


@pytest.mark.full("a campaign of damaged files in miniature")
def test_hostile_files_are_read_or_refused_in_processes_that_may_die() -> None:
    cases = [(name, number) for name in HOSTILE for number in range(FILES)]
    with HostileFiles() as hostile:
        found = hostile.tried(cases)
        processes = [process.pid for process in hostile._processes.values()]
    left = {path.name.split("-")[2] for path in Path(in_memory()).parent.glob("buddy-inputs-*")}
    assert not left & set(map(str, processes)), "a folder outlives its process"
    assert [(case, result) for case, result in zip(cases, found, strict=True) if result[0] == "fault"] == []
    taken = {name for (name, _), (ended, _) in zip(cases, found, strict=True) if ended == "taken"}
    assert len(taken) >= len(HOSTILE) // 2, "some are close enough to valid files to be taken"


def test_inputs_of_a_number_are_always_the_same() -> None:
    reader = READERS["recipe"]
    assert [made(reader, number) for number in range(20)] == [made(reader, number) for number in range(20)]
    assert {chosen(number) for number in range(20_000)} == {*READERS, *HOSTILE}


@pytest.mark.parametrize("form", FORMS)
def test_changes_of_a_form_change_and_stay_short(form: str) -> None:
    seeds = next(reader.seeds for reader in READERS.values() if reader.form == form) if form != "zip" else (_archive(),)
    found = [mutated(seeds, form, Random(number), 5000) for number in range(300)]
    assert len(set(found)) > 200
    assert max(map(len, found)) <= 5000
    assert sum(each not in seeds for each in found) > 250


def _archive() -> bytes:
    import io
    import zipfile

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data/a.json", '{"a": [1, {"b": 2}]}')
        archive.writestr("data/code.py", "def f(x):\n    return x\n")
    return file.getvalue()


def test_a_reader_that_fails_or_never_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(data: bytes) -> None:
        raise KeyError(len(data))

    assert outcome_of(Reader(fails, (ValueError,), (b"x",)), b"xyz") == ("fault", "KeyError: 3")
    assert outcome_of(Reader(fails, (KeyError,), (b"x",)), b"xyz") == ("refused", "")
    monkeypatch.setattr(inputs, "PATIENCE", 0.2)
    monkeypatch.setitem(READERS, "never", Reader(lambda _data: time.sleep(30), (), (b"x",)))
    tried = attempt(7, 1, only="never")
    (fault,) = tried.faults
    assert "not done" in fault.why
    assert fault.what == "--only 'never' 70000"
    assert tried.outcomes == {"never: fault": 1}


def test_the_table_counts_what_became_of_the_inputs_of_each_reader() -> None:
    tried = attempt(3, 200, only="shape")
    lines = table([Batch("inputs", 3, "", tried, 1.0)])
    taken, refused = tried.outcomes["shape: taken"], tried.outcomes["shape: refused"]
    assert f"| shape | {taken} | {refused} | 0 | 0 |" in lines
    assert taken + refused == 200
