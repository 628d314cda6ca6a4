"""The remote end of an ssh connection: relays bytes between stdin, stdout and an engine that outlives the link.

Engines listen on sockets in a folder of the user. A relay that finds no engine under its name starts one, detached from
the connection: in its own session and without the connection's streams.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import stat
import tempfile
import time
from pathlib import Path

from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.resumable_stream import (
    EXIT_UNANSWERED,
    HEARTBEAT_SECONDS,
    SILENCE_SECONDS,
    encode_rejection,
)
from buddy.compiler.support.processes.interpreters import start_detached
from buddy.compiler.support.processes.lifetime import kill_group, peer_pid

_ENGINE = "buddy.compiler.engine.resumable_connection"
_READ_BYTES = 1 << 16
_LOG_TAIL_BYTES = 2000
_DAY_SECONDS = 24 * 3600.0
# Time limits for the heartbeats of an engine, which sends one when a connection greets it, and then every
# `HEARTBEAT_SECONDS`. With these limits, the relay reports a missing heartbeat before the client considers the
# connection dead.
_FIRST_BEAT_SECONDS = 8.0
_LATER_BEAT_SECONDS = SILENCE_SECONDS - HEARTBEAT_SECONDS
# Time limit for an engine to notice the end of a connection, and to exit if that was requested, in seconds.
_EXIT_SECONDS = 1.5


class RelayError(BuddyError):
    """No engine can be started or reached; the text is the reason."""


def engines_folder() -> Path:
    """Returns the folder of the sockets, accessible to this user only. Raises `RelayError` if others have access.

    The folder is among the temporary files: a folder of the login session would disappear with the connection, and the
    home folder may be on a file system without sockets.
    """
    folder = Path(tempfile.gettempdir()) / f"buddy-tui-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise RelayError(f"{folder}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise RelayError(f"{folder} is accessible to other users: remove it, or set TMPDIR to another folder")
    return folder


def run_relay(name: str, patience: float, *, start: bool) -> int:
    """Relays until the connection or the engine ends; returns the exit code.

    If no engine is called `name`, `start` says whether to start one, which exits after `patience` seconds without a
    connection.
    """
    try:
        path = engines_folder() / name
        engine = _connect(path) or (_start_engine(path, patience) if start else None)
    except TimeoutError:
        return EXIT_UNANSWERED
    except (RelayError, OSError) as error:
        os.write(1, encode_rejection(str(error)))
        return 1
    if engine is None:
        os.write(1, encode_rejection(_exit_reason(path)))
        return 1
    try:
        with engine:
            # The client decides how long an engine may take to start.
            if not _relay(engine, math.inf if start else _FIRST_BEAT_SECONDS):
                os.write(1, encode_rejection(_exit_reason(path)))
                return 1
    except TimeoutError:
        return EXIT_UNANSWERED
    return 0


def end_engine(name: str) -> int:
    """Ends the engine called `name`, and kills it if it does not exit within `_EXIT_SECONDS`; returns the exit code.

    An engine that a signal has stopped can only be killed. Its process id is only known on Linux: on other systems it
    exits when it is continued and finds that its connection is closed.
    """
    try:
        path = engines_folder() / name
        engine = _connect(path)
    except (RelayError, OSError):
        return 1
    if engine is None:
        return 0
    with engine:
        pid, deadline = peer_pid(engine), time.monotonic() + _EXIT_SECONDS
        while _is_engine(pid, path) and time.monotonic() < deadline:
            time.sleep(0.02)
        if _is_engine(pid, path):
            kill_group(pid)
            _exit_reason(path)  # removes the files of the engine
    return 0


def _is_engine(pid: int, path: Path) -> bool:
    """Returns whether process `pid` is still the engine that listens at `path`."""
    with contextlib.suppress(OSError):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return os.fsencode(path) in arguments and _ENGINE.encode() in arguments
    return False


def _connect(path: Path) -> socket.socket | None:
    """Connects to the engine that listens at `path`; returns `None` if no engine does.

    Raises `TimeoutError` if the engine does not accept connections.
    """
    engine = socket.socket(socket.AF_UNIX)
    try:
        engine.setblocking(False)
        engine.connect(str(path))
    except BlockingIOError as error:
        # The queue of pending connections is full, so the engine has stopped accepting them.
        engine.close()
        raise TimeoutError from error
    except (FileNotFoundError, ConnectionRefusedError):
        engine.close()
        return None
    engine.setblocking(True)
    return engine


def _start_engine(path: Path, patience: float) -> socket.socket | None:
    """Starts an engine and connects to it. The engine inherits the listening socket, so no wait is needed."""
    _remove_leftovers(path.parent)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(4)
        with log_path(path).open("ab") as log:
            os.chmod(log.fileno(), 0o600)
            arguments = (str(listener.fileno()), str(path), f"{patience:g}")
            start_detached(f"{_ENGINE}:serve_socket", arguments, log, keep=(listener.fileno(),))
        return _connect(path)


def _remove_leftovers(folder: Path) -> None:
    """Removes the files that killed engines have left for a day: sockets without a listener, and their logs."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime < _DAY_SECONDS:
                continue
            engine = _connect(path.with_suffix(""))
            if engine is None:
                path.unlink()
            else:
                engine.close()


def log_path(path: Path) -> Path:
    """Returns the log of the engine that listens at `path`."""
    return path.with_suffix(".log")


def _exit_reason(path: Path) -> str:
    """Returns the reason why the engine has exited, from the end of its log; removes its log and socket."""
    with contextlib.suppress(OSError):
        tail = log_path(path).read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        log_path(path).unlink()
        path.unlink(missing_ok=True)
        last_line = tail.rpartition("\n")[2]
        return f"it ended: {last_line or 'another process killed it, perhaps because memory ran out'}"
    return "it had no connection for too long, or the machine was restarted"


def _relay(engine: socket.socket, first_beat_seconds: float) -> bool:
    """Relays bytes in both directions until either side ends. Returns false if the engine ended without sending any.

    Raises `TimeoutError` if the engine sends nothing for `first_beat_seconds` after the client's first bytes, or for
    `_LATER_BEAT_SECONDS` after its own bytes.
    """
    client_in, client_out = 0, 1  # stdin and stdout
    has_sent, limit = False, first_beat_seconds
    silent_since = math.inf  # until the client has sent something
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while True:
            ready, _, _ = select.select([client_in, engine.fileno()], [], [], 1.0)
            if client_in in ready:
                if not (from_client := os.read(client_in, _READ_BYTES)):
                    return _wait_until_closed(engine)
                _write(engine.fileno(), from_client)
            if engine.fileno() in ready:
                if not (from_engine := os.read(engine.fileno(), _READ_BYTES)):
                    return has_sent
                _write(client_out, from_engine)
                has_sent, limit = True, _LATER_BEAT_SECONDS
            if engine.fileno() in ready or (client_in in ready and silent_since == math.inf):
                silent_since = time.monotonic()
            if time.monotonic() - silent_since > limit:
                raise TimeoutError
    return has_sent


def _wait_until_closed(engine: socket.socket) -> bool:
    """Waits until the engine has read everything and closes the connection; returns true.

    If this side closed the connection first, an engine that is writing would stop reading. Raises `TimeoutError` if the
    engine does not close the connection.
    """
    with contextlib.suppress(OSError):
        engine.shutdown(socket.SHUT_WR)
    engine.settimeout(_EXIT_SECONDS)
    while engine.recv(_READ_BYTES):
        continue
    return True


def _write(target: int, data: bytes) -> None:
    """Writes all of `data` to a file descriptor."""
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[os.write(target, unwritten) :]
