"""Encodes frames as bytes, and finds frames in a stream of bytes."""

from __future__ import annotations

from typing import Any

import msgspec

from buddy.compiler.protocol.connection import MAX_FRAME
from buddy.compiler.protocol.errors import BuddyError

_HEADER_BYTES = 4
_encoder = msgspec.msgpack.Encoder()


class WireError(BuddyError):
    """The stream does not consist of frames, or ends inside one."""


class FrameError(BuddyError):
    """A frame is longer than `MAX_FRAME`, or complete but not of a type that this side can decode."""


def encode(message: object) -> bytes:
    """Returns the encoded frame. Raises `FrameError` if it is longer than `MAX_FRAME`."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME:
        raise FrameError(f"a frame of {len(body):,} bytes exceeds the limit of {MAX_FRAME:,} bytes")
    return len(body).to_bytes(_HEADER_BYTES, "little") + body


class FrameDecoder:
    """Decodes the body of a frame to one of the given message types."""

    def __init__(self, types: object) -> None:
        # `types` is a frame class or a union of them, such as `EngineFrame`.
        self._decoder = msgspec.msgpack.Decoder(types)

    def decode(self, body: bytes) -> Any:
        """Returns the message in `body`. Raises `FrameError` with the reason."""
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"a frame that this version does not understand: {error}") from error


class FrameBuffer:
    """Splits a stream of bytes, in pieces of any size, into the bodies of frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Adds received bytes, and returns the bodies of the frames that are complete now.

        Raises `WireError` if the bytes cannot be the beginning of a frame.
        """
        self._bytes += data
        bodies = []
        while (end := self._end_of_first()) is not None:
            bodies.append(bytes(memoryview(self._bytes)[_HEADER_BYTES:end]))
            del self._bytes[:end]
        return bodies

    def finish(self) -> None:
        """Ends the stream. Raises `WireError` if it ends inside a frame."""
        if not self._bytes:
            return
        length = f"{self._length():,}" if len(self._bytes) >= _HEADER_BYTES else "unknown"
        received = max(0, len(self._bytes) - _HEADER_BYTES)
        raise WireError(f"the stream ended inside a frame: {received:,} of {length} bytes were received")

    def _length(self) -> int:
        """Returns the length of the first body, from its header."""
        return int.from_bytes(self._bytes[:_HEADER_BYTES], "little")

    def _end_of_first(self) -> int | None:
        """Returns the end of the first frame, `None` if it is not complete. Raises `WireError` if it is not a frame."""
        if len(self._bytes) < _HEADER_BYTES:
            return None
        length = self._length()
        # The first byte of the body, if it has arrived, shows early that the peer sends something else than frames.
        may_be_frame = len(self._bytes) == _HEADER_BYTES or _starts_map(self._bytes[_HEADER_BYTES])
        if not 0 < length <= MAX_FRAME or not may_be_frame:
            raise WireError(f"this is not a frame: {_excerpt(self._bytes)}")
        end = _HEADER_BYTES + length
        return end if len(self._bytes) >= end else None


def _starts_map(byte: int) -> bool:
    """Returns whether `byte` starts a MessagePack map, as in every body. A letter, as in a login banner, does not."""
    # The types fixmap, map 16 and map 32 of MessagePack.
    return 0x80 <= byte <= 0x8F or byte in (0xDE, 0xDF)


def _excerpt(data: bytearray) -> str:
    """Returns the start of the data for a message."""
    return repr(bytes(data[:60]))[1:] + ("…" if len(data) > 60 else "")
