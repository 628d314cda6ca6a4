"""A byte stream that resumes after a lost connection, for an engine on another machine.

Each side keeps the bytes that it has written until the other side confirms them. A connection begins with a greeting,
a line of text in each direction, which may follow output of a login shell: `buddy-link 1 COUNT` gives the number of
bytes received so far, `buddy-link 1 gone REASON` ends the stream. Records follow: `D`, a 4-byte little-endian length
and bytes of the stream; or `A` and an 8-byte little-endian count of received bytes, which confirms them and is also the
heartbeat that is sent every `HEARTBEAT_SECONDS`.
"""

from __future__ import annotations

from buddy.compiler.protocol.errors import BuddyError

LINK_VERSION = 1
# The time between two heartbeats, in seconds.
HEARTBEAT_SECONDS = 3.0
# The time in seconds after which a connection without data counts as lost. Five heartbeats tolerate occasional packet
# loss, and detect a dead connection before users notice it.
SILENCE_SECONDS = 15.0
# The exit code of the remote process if the connection works but the engine does not respond (`EX_TEMPFAIL`).
EXIT_UNANSWERED = 75

_GREETING_PREFIX = b"buddy-link "
_MAX_NOISE_BYTES = 1 << 16
_MAX_RECORD_BYTES = 1 << 16
_DATA_KIND, _COUNT_KIND = b"D"[0], b"A"[0]
# The bytes of a record before its data: the kind, and a length or a count.
_DATA_HEADER_BYTES, _COUNT_RECORD_BYTES = 1 + 4, 1 + 8


class StreamError(BuddyError):
    """The received data is not from the expected peer; the text describes it."""


class ResumeError(BuddyError):
    """The other side no longer has the data that this side needs to resume."""


def encode_greeting(received: int) -> bytes:
    """Encodes the greeting of a side that has received `received` bytes of the other side's stream."""
    return b"%s%d %d\n" % (_GREETING_PREFIX, LINK_VERSION, received)


def encode_rejection(reason: str) -> bytes:
    """Encodes the greeting of a side that cannot resume the stream, with the reason."""
    return b"%s%d gone %s\n" % (_GREETING_PREFIX, LINK_VERSION, " ".join(reason.split()).encode())


class GreetingReader:
    """Finds the other side's greeting in the received bytes."""

    def __init__(self) -> None:
        self._bytes = b""

    @property
    def noise(self) -> str:
        """The text received before a greeting, such as a shell's login message."""
        return self._bytes.decode(errors="replace").strip()

    def feed(self, data: bytes) -> tuple[int, bytes] | None:
        """Returns how many bytes the other side has received, and the bytes after its greeting.

        Returns `None` if the greeting is not complete. Raises `StreamError` if no greeting comes within the number of
        bytes that a shell may print, if the greeting is malformed or if its version differs, and `ResumeError` if the
        other side cannot resume.
        """
        self._bytes += data
        start = self._bytes.find(_GREETING_PREFIX)
        end = self._bytes.find(b"\n", start)
        if start < 0 or end < 0:
            if len(self._bytes) > _MAX_NOISE_BYTES:
                raise StreamError(f"the data from the other side is not from an engine: {self.noise[:60]!r}…")
            return None
        line = self._bytes[start + len(_GREETING_PREFIX) : end].decode(errors="replace")
        return _parse_greeting(line), self._bytes[end + 1 :]


def _parse_greeting(line: str) -> int:
    """Returns the count in a greeting without its prefix. Raises `StreamError` or `ResumeError`."""
    version, _, rest = line.partition(" ")
    if version != str(LINK_VERSION):
        raise StreamError(f"the other side speaks version {version[:20]} of the protocol, this side {LINK_VERSION}")
    if rest.startswith("gone "):
        raise ResumeError(rest[len("gone ") :])
    if not rest.isascii() or not rest.isdigit():
        raise StreamError(f"this is not a greeting: {line[:60]!r}")
    return int(rest)


class ResumableStream:
    """One side of the stream. `received` counts the other side's bytes over all connections."""

    def __init__(self) -> None:
        self.received = 0
        # The value of `received` in the last confirmation.
        self._last_count = 0
        # This side's bytes: those that the other side has not confirmed, after `_confirmed` bytes that it has.
        self._unconfirmed = bytearray()
        self._confirmed = 0
        # The received bytes of records that are not complete.
        self._incoming = bytearray()

    @property
    def unconfirmed(self) -> int:
        """The number of bytes that the other side has not confirmed."""
        return len(self._unconfirmed)

    def write(self, data: bytes) -> bytes:
        """Returns `data` as records to send over the connection, and keeps it until the other side confirms it."""
        self._unconfirmed += data
        return _records(data)

    def confirmation(self) -> bytes:
        """Returns the record that confirms all bytes received so far."""
        self._last_count = self.received
        return b"A" + self.received.to_bytes(8, "little")

    @property
    def should_confirm(self) -> bool:
        """Whether so many bytes have arrived since the last count that they should be confirmed now."""
        return self.received - self._last_count >= _MAX_RECORD_BYTES

    def feed(self, data: bytes) -> bytes:
        """Returns the bytes of the other side's stream in the records that are complete now.

        Raises `StreamError` if the received bytes are not records. If valid data records come before the error, returns
        their bytes, which count as received, and raises at the next call.
        """
        self._incoming += data
        stream_bytes = bytearray()
        try:
            while (record := self._next_record()) is not None:
                stream_bytes += record
        except StreamError:
            if not stream_bytes:
                raise
        return bytes(stream_bytes)

    def resume(self, received_count: int) -> bytes:
        """Returns the records to send first over a new connection to a side that has received `received_count` bytes.

        Raises `ResumeError` if this side no longer keeps all later bytes, or has not written so many bytes.
        """
        if not self._confirmed <= received_count <= self._confirmed + len(self._unconfirmed):
            sent = f"{self._confirmed:,} to {self._confirmed + len(self._unconfirmed):,}"
            raise ResumeError(
                f"the other side has {received_count:,} bytes of the stream; this side can resume at {sent}"
            )
        self._incoming.clear()
        self._confirm(received_count)
        return _records(bytes(self._unconfirmed))

    def _confirm(self, received_count: int) -> None:
        """Releases the bytes that the other side has received."""
        del self._unconfirmed[: received_count - self._confirmed]
        self._confirmed = received_count

    def _next_record(self) -> bytes | None:
        """Removes the next record from the incoming bytes, and returns its data, which is empty for a count.

        Returns `None` if no record is complete.
        """
        kind = self._incoming[0] if self._incoming else _DATA_KIND
        if kind not in (_DATA_KIND, _COUNT_KIND):
            raise StreamError(f"this is not a record: {bytes(self._incoming[:60])!r}")
        header_bytes = _DATA_HEADER_BYTES if kind == _DATA_KIND else _COUNT_RECORD_BYTES
        if len(self._incoming) < header_bytes:
            return None
        number = int.from_bytes(self._incoming[1:header_bytes], "little")
        return self._take_data(number) if kind == _DATA_KIND else self._take_count(number)

    def _take_data(self, length: int) -> bytes | None:
        """Returns the data of the record at the start of the incoming bytes, `None` if it is not complete."""
        if not 0 < length <= _MAX_RECORD_BYTES:
            raise StreamError(f"a record of {length:,} bytes is not valid: 1 to {_MAX_RECORD_BYTES:,} are")
        end = _DATA_HEADER_BYTES + length
        if len(self._incoming) < end:
            return None
        data = bytes(memoryview(self._incoming)[_DATA_HEADER_BYTES:end])
        del self._incoming[:end]
        self.received += length
        return data

    def _take_count(self, received_count: int) -> bytes:
        """Confirms the bytes that the other side has received; returns no data."""
        if not self._confirmed <= received_count <= self._confirmed + len(self._unconfirmed):
            raise StreamError(
                f"{received_count:,} bytes confirmed, of {self._confirmed + len(self._unconfirmed):,} written"
            )
        del self._incoming[:_COUNT_RECORD_BYTES]
        self._confirm(received_count)
        return b""


def _records(data: bytes) -> bytes:
    """Returns `data` as records of at most `_MAX_RECORD_BYTES` each."""
    pieces = (data[start : start + _MAX_RECORD_BYTES] for start in range(0, len(data), _MAX_RECORD_BYTES))
    return b"".join(b"D" + len(piece).to_bytes(4, "little") + piece for piece in pieces)
