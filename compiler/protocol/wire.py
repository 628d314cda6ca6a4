"""Encodes frames as bytes: a 4-byte little-endian length, then a MessagePack map. Imports neither torch nor MLIR.

There are two kinds of errors: a stream that is not a sequence of frames (`WireError`, the rest of the stream is
unusable), and a complete frame that this side does not understand (`FrameError`, the next frame is valid).
"""

from __future__ import annotations

from typing import Any

import msgspec

from buddy.compiler.protocol import MAX_FRAME

HEADER = 4
_encoder = msgspec.msgpack.Encoder()


class WireError(Exception):
    """The stream does not consist of frames, or ends inside one."""


class FrameError(Exception):
    """A complete frame that this side cannot decode."""


def encode(message: Any) -> bytes:
    """Returns the encoded frame.

    Raises `FrameError` if it is longer than a frame may be.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME:
        raise FrameError(f"a frame of {len(body):,} bytes exceeds the limit of {MAX_FRAME:,} that a frame may have")
    return len(body).to_bytes(HEADER, "little") + body


class FrameDecoder:
    """Decodes the body of a frame to one of the given message types."""

    def __init__(self, types: Any) -> None:
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
        """Returns the bodies that are complete now.

        Raises `WireError` if the bytes cannot be the beginning of a frame.
        """
        self._bytes += data
        bodies = []
        while (end := self._end_of_first()) is not None:
            bodies.append(bytes(memoryview(self._bytes)[HEADER:end]))
            del self._bytes[:end]
        return bodies

    def finish(self) -> None:
        """Ends the stream. Raises `WireError` if it ends inside a frame."""
        if not self._bytes:
            return
        wanted = f"{self._length():,}" if len(self._bytes) >= HEADER else "unknown"
        got = max(0, len(self._bytes) - HEADER)
        raise WireError(f"the stream ended inside a frame: {got:,} of {wanted} bytes had come")

    def _length(self) -> int:
        return int.from_bytes(self._bytes[:HEADER], "little")

    def _end_of_first(self) -> int | None:
        if len(self._bytes) < HEADER:
            return None
        length = self._length()
        if not 0 < length <= MAX_FRAME or (len(self._bytes) > HEADER and not _starts_a_map(self._bytes[HEADER])):
            raise WireError(f"this is not a frame: {_excerpt(self._bytes)}")
        return HEADER + length if len(self._bytes) >= HEADER + length else None


def _starts_a_map(byte: int) -> bool:
    """Whether `byte` starts a MessagePack map: without this check, a login banner reads as a huge length."""
    return 0x80 <= byte <= 0x8F or byte in (0xDE, 0xDF)


def _excerpt(data: bytearray) -> str:
    return repr(bytes(data[:60]))[1:] + ("…" if len(data) > 60 else "")
