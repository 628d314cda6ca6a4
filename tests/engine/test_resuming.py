"""The stream that outlives its links: nothing is lost, doubled or out of order, wherever a link breaks."""

from __future__ import annotations

import random

import pytest

from buddy.compiler.protocol.resumable_stream import (
    GreetingReader,
    ResumableStream,
    ResumeError,
    StreamError,
    encode_greeting,
    encode_rejection,
)


def exchange(seed: int) -> None:
    """Two sides write at random over links that break at random places, in pieces of random sizes."""
    chance = random.Random(seed)
    sides = ResumableStream(), ResumableStream()
    sent, came = [bytearray(), bytearray()], [bytearray(), bytearray()]
    wires = [bytearray(), bytearray()]
    for _ in range(300):
        me = chance.randrange(2)
        act = chance.random()
        if act < 0.4:
            data = chance.randbytes(chance.choice((1, 5, 1000, 200_000)))
            sent[me] += data
            wires[me] += sides[me].write(data)
        elif act < 0.9:
            size = chance.choice((1, 7, 5000, 1 << 20))
            came[1 - me] += sides[1 - me].feed(bytes(wires[me][:size]))
            del wires[me][:size]
        elif act < 0.95:
            wires[me] += sides[me].confirmation()
        else:
            wires = [bytearray(sides[k].resume(sides[1 - k].received)) for k in (0, 1)]
    for me in (0, 1):
        came[1 - me] += sides[1 - me].feed(bytes(wires[me]))
        assert came[1 - me] == sent[me]
    for me in (0, 1):
        sides[me].feed(sides[1 - me].confirmation())
        assert sides[me].unconfirmed == 0


@pytest.mark.parametrize("seed", range(20))
def test_what_is_written_arrives_once_and_in_order(seed: int) -> None:
    exchange(seed)


def test_what_is_confirmed_is_no_longer_kept_and_what_is_not_is() -> None:
    here, there = ResumableStream(), ResumableStream()
    there.feed(here.write(b"first"))
    here.write(b"second")
    here.feed(there.confirmation())
    assert here.unconfirmed == len(b"second")
    assert there.feed(here.resume(there.received)) == b"second"


def test_a_side_that_cannot_go_on_says_so() -> None:
    here, there = ResumableStream(), ResumableStream()
    there.feed(here.write(b"first"))
    here.feed(there.confirmation())
    with pytest.raises(ResumeError):
        here.resume(0)
    with pytest.raises(ResumeError):
        here.resume(6)


@pytest.mark.parametrize(
    "junk", [b"X", b"D\0\0\0\0", b"D\xff\xff\xff\xff", b"A" + (9).to_bytes(8, "little"), b"HTTP/1.1 200 OK\r\n"]
)
def test_what_is_no_record_is_told_of(junk: bytes) -> None:
    stream = ResumableStream()
    stream.write(b"12345678")
    with pytest.raises(StreamError):
        stream.feed(junk)
    assert stream.unconfirmed == 8, "nothing that was not confirmed is dropped"


def test_a_count_confirms_up_to_all_that_was_written_and_no_more() -> None:
    for count in (3, 8):
        stream = ResumableStream()
        stream.write(b"12345678")
        stream.feed(b"A" + count.to_bytes(8, "little"))
        assert stream.unconfirmed == 8 - count
        with pytest.raises(StreamError, match="bytes confirmed, of 8 written"):
            stream.feed(b"A" + (9).to_bytes(8, "little"))
        with pytest.raises(ResumeError, match=f"this side can resume at {count} to 8$"):
            stream.resume(9)


def test_what_comes_before_junk_is_not_lost() -> None:
    here, there = ResumableStream(), ResumableStream()
    assert there.feed(here.write(b"first") + b"logout\n") == b"first"
    with pytest.raises(StreamError, match="logout"):
        there.feed(b"")
    there.resume(here.received)
    assert there.feed(here.resume(there.received) + here.write(b"second")) == b"second"


def test_a_link_that_is_refused_changes_nothing_of_the_one_there_is() -> None:
    here, there = ResumableStream(), ResumableStream()
    record = here.write(b"whole")
    assert there.feed(record[:4]) == b""
    with pytest.raises(ResumeError):
        there.resume(99)
    assert there.feed(record[4:]) == b"whole"


def test_a_greeting_is_found_behind_what_a_shell_prints() -> None:
    greeted = GreetingReader()
    stream = b"Welcome to Ubuntu\r\nbuddy is here\n" + encode_greeting(42) + b"Dxyz"
    for k in range(0, len(stream) - 4):
        assert greeted.feed(stream[k : k + 1]) is None or k == len(stream) - 5
    assert GreetingReader().feed(stream) == (42, b"Dxyz")


def test_greetings_that_lead_nowhere_say_why() -> None:
    with pytest.raises(ResumeError, match="it ended: out of memory"):
        GreetingReader().feed(encode_rejection("it ended:\nout of memory"))
    with pytest.raises(StreamError, match="version 7"):
        GreetingReader().feed(b"buddy-link 7 0\n")
    with pytest.raises(StreamError, match="is not a greeting"):
        GreetingReader().feed(b"buddy-link 1 -3\n")
    with pytest.raises(StreamError, match="not from an engine"):
        GreetingReader().feed(b"y\n" * (1 << 16))
