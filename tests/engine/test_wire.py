"""Frames over a stream that arrives in any pieces, or is not a stream of frames."""

from __future__ import annotations

from typing import get_args

import pytest

from buddy.compiler.protocol import MAX_FRAME, ClientFrame, EngineFrame, FetchLines, Hello, Open, Request, answer_type
from buddy.compiler.protocol.wire import FrameBuffer, FrameDecoder, FrameError, WireError, encode

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
