"""Random bytes for every reader: a share of the campaign of `inputs.py`, and that the campaign sees faults."""

from __future__ import annotations

import time

import pytest

from tests.fuzzing import inputs
from tests.fuzzing.inputs import READERS, Reader, campaign, fault_of, made

SHARE = 100


@pytest.mark.parametrize("name", READERS)
def test_random_bytes_are_read_or_refused(name: str) -> None:
    assert campaign([name], range(SHARE))["faults"] == []


@pytest.mark.parametrize("name", READERS)
def test_seeds_are_taken(name: str) -> None:
    """Else the campaign would only try what is refused at the first byte."""
    READERS[name].read(READERS[name].seeds[0])


def test_inputs_of_a_number_are_always_the_same() -> None:
    reader = READERS["recipe"]
    assert [made(reader, number) for number in range(20)] == [made(reader, number) for number in range(20)]


def test_a_reader_that_fails_or_never_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(data: bytes) -> None:
        raise KeyError(len(data))

    assert fault_of(Reader(fails, (ValueError,), (b"x",)), b"xyz") == "KeyError: 3"
    assert fault_of(Reader(fails, (KeyError,), (b"x",)), b"xyz") == ""
    monkeypatch.setattr(inputs, "PATIENCE", 0.2)
    monkeypatch.setitem(READERS, "never", Reader(lambda _data: time.sleep(30), (), (b"x",)))
    (fault,) = campaign(["never"], [7])["faults"]
    assert (fault["reader"], fault["number"]) == ("never", 7)
    assert "not done" in fault["said"]
