"""The base of frames, the frames of the connection (greetings, cancelling, progress, failures), and frames as bytes.

On the wire, a frame is a 4-byte little-endian length and a MessagePack map (see `buddy.compiler.protocol`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Generic, Literal, TypeVar, get_args

import msgspec

from buddy.compiler.protocol.errors import BuddyError, Diagnostic
from buddy.compiler.protocol.plain_values import Stage

PROTOCOL_VERSION = 8
MAX_FRAME = 1 << 30  # bytes


class Frame(msgspec.Struct, frozen=True, tag_field="type", tag=True, omit_defaults=True):
    """Base of all frames."""


Answer_co = TypeVar("Answer_co", covariant=True)


class Request(Frame, Generic[Answer_co], frozen=True):
    """Base of requests. One frame ends a request: an `Answer_co`, or a `Failed`.

    `request` is the number that the client assigns when it sends the request, 0 until then. All answers repeat it.
    """

    request: int


@cache
def answer_type(request: type[Request[object]]) -> type[Frame]:
    """Returns the type of the frame that answers requests of type `request`.

    A request names it as a string, `Request["Pong"]`, because the frame is defined later or in another module.
    """
    (answer,) = get_args(request.__orig_bases__[0])  # type: ignore[attr-defined]
    (answer_frame,) = (frame for frame in subclasses(Frame) if frame.__name__ == answer.__forward_arg__)
    return answer_frame


_T = TypeVar("_T")


def subclasses(base: type[_T]) -> Iterator[type[_T]]:
    """Yields all direct and indirect subclasses of `base`."""
    for subclass in base.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


LogLevel = Literal["debug", "info", "warning", "error"]
# The states of a worker, and the situations in which a worker exits; `WorkerState` explains them.
WorkerStatus = Literal["starting", "ready", "busy", "stopped", "dead"]
WorkerEnd = Literal["", "asked", "request", "idle", "start"]


class Hello(Frame, frozen=True, omit_defaults=False):
    """The client's greeting. Fields with their defaults are sent too (`omit_defaults`), so that it has its `version`.

    `log` is the minimum level of the engine's log messages.

    With `reopens`, the client opens a program next. The host worker starts only when the graphs of an earlier session,
    if any, have been sent, so that its start does not delay them.
    """

    version: int = PROTOCOL_VERSION
    client: str = "buddy-tui"
    log: LogLevel = "info"
    reopens: bool = False


class PeerVersion(msgspec.Struct):
    """The fields that the greetings of both sides, `Hello` and `Welcome`, have in every version of the protocol."""

    type: str = ""
    version: int = 0


def version_of_peer(body: bytes, greeting: str) -> int:
    """Returns the protocol version of the peer whose first frame is `body`; 0 if that is not a frame `greeting`.

    Everything else in a greeting of another version may be different, so it is decoded after this check.
    """
    try:
        peer = msgspec.msgpack.decode(body, type=PeerVersion)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0
    return peer.version if peer.type == greeting else 0


class Cancel(Frame, frozen=True):
    """Cancel request number `target`; 0 cancels all. The request ends with `Failed(cancelled=True)`."""

    target: int = 0


class Ping(Request["Pong"], frozen=True):
    """Check that the engine responds: it answers with `Pong` before it handles later frames."""


class Shutdown(Frame, frozen=True):
    """End the engine and its workers."""


class Welcome(Frame, frozen=True):
    """The engine's greeting. `target` describes its CPU, `packages` are versions by package name."""

    version: int
    engine: str
    pid: int
    target: str = ""
    packages: dict[str, str] = msgspec.field(default_factory=dict)
    cores: int = 1


class Pong(Frame, frozen=True):
    """The engine's event loop is running."""

    request: int


# The parts of opening, compiling and running a program, in order.
Part = Literal["torch", "script", "capture", "compile", "run"]


class Progress(Frame, frozen=True):
    """The current `activity` of a request; `done` is the completed fraction, -1 if unknown.

    `part` is the part that the activity belongs to; "" means that it is the same as before.
    """

    request: int
    activity: str
    done: float = -1.0
    part: Part | Literal[""] = ""


class Printout(Frame, frozen=True):
    """Output of the user's program."""

    text: str
    stream: Literal["stdout", "stderr"] = "stdout"


class Failed(Frame, frozen=True):
    """The request failed. Stages that were sent before stay valid; `stages` may add the IR at the failure."""

    request: int
    diagnostic: Diagnostic
    cancelled: bool = False
    stages: tuple[Stage, ...] = ()


class WorkerState(Frame, frozen=True):
    """A worker, such as `host`, `compiler` or `runner`, changed state; `reason` tells the user why.

    The state `stopped` means stopped by a signal, such as SIGSTOP or a debugger's; the worker can be continued. `end`
    says when a `dead` worker exited: on request of the engine (`asked`), during a `request`, which fails, while `idle`,
    or at its `start`; in the last two cases no `Failed` is sent. `again` means that the worker is being restarted.
    """

    worker: str
    state: WorkerStatus
    reason: str = ""
    end: WorkerEnd = ""
    again: bool = False


class WatchFiles(Request["FilesChanged"], frozen=True):
    """Wait until the content of one of `files` (relative to `directory`) differs from when the program was last opened.

    Answered by `FilesChanged`; another `WatchFiles` waits for the next change.
    """

    files: tuple[str, ...]
    directory: str = ""


class FilesChanged(Frame, frozen=True):
    """The names of the files that have changed, and of those missing for longer than an atomic save takes."""

    request: int
    changed: tuple[str, ...]
    deleted: tuple[str, ...] = ()


# ---- frames as bytes -------------------------------------------------------------------------------------------------


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
