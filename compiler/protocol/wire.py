"""Encodes frames as bytes, and resumes a byte stream after a lost connection.

Each side keeps the bytes that it has written until the other side confirms them. A connection begins with a line of
text in each direction, which may follow output of a login shell: `buddy-link 1 COUNT` gives the number of bytes
received so far, `buddy-link 1 gone REASON` ends the stream. Records follow: `D`, a 4-byte little-endian length and
bytes of the stream; or `A` and an 8-byte count of received bytes, the heartbeat that is sent every `BEAT` seconds.
"""

from __future__ import annotations

from typing import Any

import msgspec

from buddy.compiler.protocol import MAX_FRAME

LINK_VERSION = 1
BEAT = 3.0
# Five heartbeats: tolerates occasional packet loss, and detects a dead connection before users notice it.
SILENCE = 15.0
# The exit code of the remote process if the connection works but the engine does not respond (`EX_TEMPFAIL`).
UNANSWERED = 75

_MARK = b"buddy-link "
_MAX_NOISE = 1 << 16
_PIECE = 1 << 16
_DATA, _COUNT = b"D"[0], b"A"[0]


class StreamError(Exception):
    """The received data is not from the expected peer; the text describes it."""


class GoneError(Exception):
    """The other side no longer has the data that this side needs to resume."""


def greeting(received: int) -> bytes:
    """Returns the first line over a connection from a side that has `received` bytes of the other's stream."""
    return b"%s%d %d\n" % (_MARK, LINK_VERSION, received)


def refusal(reason: str) -> bytes:
    """Returns the first line from a side that cannot resume, with the reason."""
    return b"%s%d gone %s\n" % (_MARK, LINK_VERSION, " ".join(reason.split()).encode())


class Greeted:
    """Finds the other side's greeting in the received bytes."""

    def __init__(self) -> None:
        self._bytes = b""

    @property
    def noise(self) -> str:
        """The bytes received before the greeting."""
        return self._bytes.decode(errors="replace").strip()

    def feed(self, data: bytes) -> tuple[int, bytes] | None:
        """Returns how much the other side has received, and the bytes after its greeting; `None` if incomplete.

        Raises `StreamError` if no greeting comes within the number of bytes that a shell may print, or if its version
        differs, and `GoneError` if the other side cannot resume.
        """
        self._bytes += data
        place = self._bytes.find(_MARK)
        end = self._bytes.find(b"\n", place)
        if place < 0 or end < 0:
            if len(self._bytes) > _MAX_NOISE:
                raise StreamError(f"the data from the other side is not from an engine: {self.noise[:60]!r}…")
            return None
        return _greeting(self._bytes[place + len(_MARK) : end].decode(errors="replace")), self._bytes[end + 1 :]


def _greeting(line: str) -> int:
    version, _, rest = line.partition(" ")
    if version != str(LINK_VERSION):
        raise StreamError(f"the other side speaks version {version[:20]} of the protocol, this side {LINK_VERSION}")
    if rest.startswith("gone "):
        raise GoneError(rest[len("gone ") :])
    if not rest.isascii() or not rest.isdigit():
        raise StreamError(f"this is not a greeting: {line[:60]!r}")
    return int(rest)


class ResumableStream:
    """One side of the stream. `received` counts the other side's bytes over all connections."""

    def __init__(self) -> None:
        self.received = 0
        self._told = 0
        self._kept = bytearray()
        self._first = 0
        self._incoming = bytearray()

    @property
    def unconfirmed(self) -> int:
        """The number of bytes that the other side has not confirmed."""
        return len(self._kept)

    def write(self, data: bytes) -> bytes:
        """Returns `data` as a record to send over the connection, and keeps it until the other side confirms it."""
        self._kept += data
        return _records(data)

    def count(self) -> bytes:
        """Returns the record with the number of received bytes."""
        self._told = self.received
        return b"A" + self.received.to_bytes(8, "little")

    @property
    def owes_count(self) -> bool:
        """Whether enough has arrived since the last count that it should be confirmed now."""
        return self.received - self._told >= _PIECE

    def feed(self, data: bytes) -> bytes:
        """Returns the bytes of the other side's stream in `data`.

        Raises `StreamError` if `data` is not a record. If valid records come first, it raises only at the next call:
        those records count as received, so they must not be lost.
        """
        self._incoming += data
        found = bytearray()
        try:
            while (record := self._next_record()) is not None:
                found += record
        except StreamError:
            if not found:
                raise
        return bytes(found)

    def resume(self, theirs: int) -> bytes:
        """Resumes over a new connection with a side that has `theirs` bytes of this stream; returns what to send first.

        Raises `GoneError` if the missing bytes are no longer kept, or never were.
        """
        if not self._first <= theirs <= self._first + len(self._kept):
            raise GoneError(f"the stream is at another position there ({theirs:,}) than here ({self._first:,})")
        self._incoming.clear()
        self._confirm(theirs)
        return _records(bytes(self._kept))

    def _confirm(self, theirs: int) -> None:
        del self._kept[: theirs - self._first]
        self._first = theirs

    def _next_record(self) -> bytes | None:
        kind = self._incoming[0] if self._incoming else _DATA
        if kind not in (_DATA, _COUNT):
            raise StreamError(f"this is not a record: {bytes(self._incoming[:60])!r}")
        head = 5 if kind == _DATA else 9
        if len(self._incoming) < head:
            return None
        number = int.from_bytes(self._incoming[1:head], "little")
        return self._data(number) if kind == _DATA else self._take_count(number)

    def _data(self, length: int) -> bytes | None:
        if not 0 < length <= _PIECE:
            raise StreamError(f"a record of {length:,} bytes, of at most {_PIECE:,}")
        if len(self._incoming) < 5 + length:
            return None
        data = bytes(memoryview(self._incoming)[5 : 5 + length])
        del self._incoming[: 5 + length]
        self.received += length
        return data

    def _take_count(self, theirs: int) -> bytes:
        if not self._first <= theirs <= self._first + len(self._kept):
            raise StreamError(f"{theirs:,} bytes confirmed, of {self._first + len(self._kept):,} written")
        del self._incoming[:9]
        self._confirm(theirs)
        return b""


def _records(data: bytes) -> bytes:
    pieces = (data[k : k + _PIECE] for k in range(0, len(data), _PIECE))
    return b"".join(b"D" + len(piece).to_bytes(4, "little") + piece for piece in pieces)


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
    """Returns whether `byte` starts a MessagePack map: without this check, a login banner reads as a huge length."""
    return 0x80 <= byte <= 0x8F or byte in (0xDE, 0xDF)


def _excerpt(data: bytearray) -> str:
    return repr(bytes(data[:60]))[1:] + ("…" if len(data) > 60 else "")
