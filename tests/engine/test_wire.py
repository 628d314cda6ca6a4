"""Frames over a stream that arrives in any pieces, or is not a stream of frames."""

from __future__ import annotations

from typing import get_args

import pytest

from buddy.compiler.protocol import (
    MAX_FRAME,
    ClientFrame,
    EngineFrame,
    FetchLines,
    Hello,
    Open,
    Request,
    answer_type,
    connection,
)
from buddy.compiler.protocol.connection import (
    FrameBuffer,
    FrameDecoder,
    FrameError,
    WireError,
    encode,
)
from buddy.compiler.protocol.resumable_stream import GreetingReader, ResumableStream, StreamError, encode_greeting

FRAMES = [Hello(), Open(1, "a.py", ("--tiny",)), FetchLines(2, "text", 0, 50)]


@pytest.mark.parametrize("step", [1, 3, 7, 10_000])
def test_frames_survive_being_cut_anywhere(step: int) -> None:
    stream = b"".join(map(encode, FRAMES))
    buffer, decoder, found = FrameBuffer(), FrameDecoder(ClientFrame), []
    for start in range(0, len(stream), step):
        found += [decoder.decode(body) for body in buffer.feed(stream[start : start + step])]
    buffer.finish()
    assert found == FRAMES


def test_the_greeting_names_its_version_on_the_wire() -> None:
    assert b"version" in encode(Hello())


def test_a_stream_that_ends_inside_a_frame_says_how_much_is_missing() -> None:
    buffer = FrameBuffer()
    buffer.feed(encode(FRAMES[1])[:10])
    with pytest.raises(WireError, match=r"ended inside a frame: 6 of \d+ bytes"):
        buffer.finish()


@pytest.mark.parametrize(
    "garbage",
    [b"Last login: Mon Nov 16\r\n", b"    four spaces first", (MAX_FRAME + 1).to_bytes(4, "little"), bytes(8)],
)
def test_what_is_no_frame_is_told_at_once(garbage: bytes) -> None:
    with pytest.raises(WireError, match="not a frame"):
        FrameBuffer().feed(garbage)


def test_a_frame_may_have_the_largest_length_and_begins_with_a_map() -> None:
    """The length is checked before the body is there, so that nobody makes this side keep more than one frame."""
    for length in (1, MAX_FRAME):
        assert FrameBuffer().feed(length.to_bytes(4, "little")) == []
    maps = {*range(0x80, 0x90), 0xDE, 0xDF}  # fixmap, map 16 and map 32 of MessagePack
    for first in range(256):
        buffer = FrameBuffer()
        if first in maps:
            assert buffer.feed(b"\2\0\0\0" + bytes([first])) == []
        else:
            with pytest.raises(WireError, match="not a frame"):
                buffer.feed(b"\2\0\0\0" + bytes([first]))


def test_a_frame_that_the_other_side_would_refuse_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(encode(FRAMES[1])) - 4
    monkeypatch.setattr(connection, "MAX_FRAME", size)
    assert len(encode(FRAMES[1])) == size + 4
    monkeypatch.setattr(connection, "MAX_FRAME", size - 1)
    with pytest.raises(FrameError, match=f"a frame of {size} bytes exceeds the limit of {size - 1} bytes"):
        encode(FRAMES[1])


def test_a_record_has_at_most_64_kib() -> None:
    here, there = ResumableStream(), ResumableStream()
    records = here.write(b"x" * (1 << 16) + b"y")
    assert records.count(b"D") == 2
    assert there.feed(records) == b"x" * (1 << 16) + b"y"
    for length in (0, (1 << 16) + 1):
        with pytest.raises(StreamError, match=f"a record of {length:,} bytes is not valid"):
            ResumableStream().feed(b"D" + length.to_bytes(4, "little"))
    assert ResumableStream().feed(b"D" + (1 << 16).to_bytes(4, "little")) == b""


def test_a_shell_may_print_64_kib_before_the_greeting() -> None:
    noise = b"n" * (1 << 16)
    reader = GreetingReader()
    assert reader.feed(noise) is None
    with pytest.raises(StreamError, match="not from an engine"):
        reader.feed(b"n")
    assert GreetingReader().feed(noise + encode_greeting(7) + b"rest") == (7, b"rest")


@pytest.mark.parametrize("message", [{"type": "Dance"}, {"type": "Open", "request": "one"}, {"no": "type"}])
def test_a_whole_frame_of_another_kind_is_an_error_of_that_frame_alone(message: dict[str, str]) -> None:
    buffer, decoder = FrameBuffer(), FrameDecoder(ClientFrame)
    strange, known = buffer.feed(encode(message) + encode(Hello()))
    with pytest.raises(FrameError, match="does not understand"):
        decoder.decode(strange)
    assert decoder.decode(known) == Hello()


def test_every_request_names_the_frame_that_ends_it() -> None:
    requests = [frame for frame in get_args(ClientFrame) if issubclass(frame, Request)]
    assert {frame.__name__ for frame in get_args(ClientFrame)} - {frame.__name__ for frame in requests} == {
        "Hello",
        "Cancel",
        "Shutdown",
    }
    assert all(answer_type(request) in get_args(EngineFrame) for request in requests)
    assert answer_type(FetchLines).__name__ == "Lines"
