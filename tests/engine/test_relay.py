"""A relay between a client and an engine: the folder of the sockets, bytes both ways, silence, ends, leftovers."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from buddy.compiler.engine.relay import _ENGINE as ENGINE
from buddy.compiler.engine.relay import (
    _LATER_BEAT_SECONDS,
    RelayError,
    _exit_reason,
    end_engine,
    engines_folder,
    run_relay,
)
from buddy.compiler.protocol.resumable_stream import (
    EXIT_UNANSWERED,
    HEARTBEAT_SECONDS,
    SILENCE_SECONDS,
    encode_rejection,
)

REFUSAL = "is accessible to other users: remove it, or set TMPDIR to another folder"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folder will be looked for."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"buddy-tui-{os.getuid()}"


def test_a_new_folder_is_the_users_alone(place: Path) -> None:
    before = os.umask(0)
    try:
        assert engines_folder() == place
    finally:
        os.umask(before)
    assert (place.stat().st_mode & 0o777, place.stat().st_uid) == (0o700, os.getuid())
    assert engines_folder() == place, "an engine was there before"


@pytest.mark.parametrize("bit", [1 << number for number in range(6)], ids="{:03o}".format)
def test_a_folder_that_others_can_open_is_refused(place: Path, bit: int) -> None:
    place.mkdir()
    place.chmod(0o700 | bit)
    with pytest.raises(RelayError, match=REFUSAL):
        engines_folder()


def test_a_folder_of_another_user_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever may write to the folder for temporary files could make it first, and answer in an engine's place."""
    other = os.getuid() + 1
    theirs = place.with_name(f"buddy-tui-{other}")
    theirs.mkdir(mode=0o700)
    monkeypatch.setattr("os.getuid", lambda: other)
    with pytest.raises(RelayError, match=REFUSAL):
        engines_folder()
    assert (run_relay("some-engine", 1.0, start=False), end_engine("some-engine")) == (1, 1)
    assert REFUSAL in capfd.readouterr().out


def _linked_to_a_folder(place: Path) -> None:
    own = place.with_name("elsewhere")
    own.mkdir(mode=0o700)
    place.symlink_to(own)


def _linked_to_nothing(place: Path) -> None:
    place.symlink_to(place.with_name("nothing"))


def _a_file(place: Path) -> None:
    place.touch(mode=0o600)


@pytest.mark.parametrize(
    ("make", "reason"),
    [(_linked_to_a_folder, REFUSAL), (_linked_to_nothing, "File exists"), (_a_file, "File exists")],
    ids=["a link to a folder", "a link to nothing", "a file"],
)
def test_what_is_no_folder_is_refused(place: Path, make: Callable[[Path], None], reason: str) -> None:
    make(place)
    text = f"{place} {reason}" if reason is REFUSAL else f"{place}: {reason}"
    with pytest.raises(RelayError, match=f"^{re.escape(text)}$"):
        engines_folder()


def test_a_link_is_refused_where_links_have_modes_of_their_own(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Linux all may use any link; on macOS a link has the mode that the umask leaves."""
    _linked_to_a_folder(place)
    status = list(place.lstat())
    status[stat.ST_MODE] = stat.S_IFLNK | 0o700
    monkeypatch.setattr(Path, "lstat", lambda path: os.stat_result(status))
    with pytest.raises(RelayError, match=REFUSAL):
        engines_folder()


def test_a_place_with_too_long_a_name_for_a_socket_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A path of a socket has at most some 100 bytes."""
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    assert (run_relay("some-engine", 1.0, start=False), end_engine("some-engine")) == (1, 1)
    assert capfd.readouterr().out.encode() == encode_rejection("AF_UNIX path too long")


def test_a_missing_heartbeat_is_reported_before_the_client_gives_up() -> None:
    assert HEARTBEAT_SECONDS < _LATER_BEAT_SECONDS < SILENCE_SECONDS


def test_the_log_of_an_engine_says_why_it_ended_even_if_its_socket_is_gone(tmp_path: Path) -> None:
    (tmp_path / "peer.log").write_text("first\nout of memory\n")
    assert _exit_reason(tmp_path / "peer") == "it ended: out of memory"
    assert not list(tmp_path.iterdir())


# ---- relaying, with a peer in the place of an engine -----------------------------------------------------------------

# Runs a relay or ends an engine in a process of its own, with other time limits.
CHILD = """
import sys
from buddy.compiler.engine import relay
relay._FIRST_BEAT_SECONDS, relay._LATER_BEAT_SECONDS, relay._EXIT_SECONDS = map(float, sys.argv[2:5])
what = sys.argv[1]
sys.exit(relay.end_engine("peer") if what == "end" else relay.run_relay("peer", 0.1, start=what == "start"))
"""
LONG = 60.0


class Relay:
    """A relay in a process, and the folder in which it looks for the engine `peer`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700)
        self.path = folder / "peer"
        self.log = folder / "peer.log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def listen(self, backlog: int = 4) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen(backlog)
        listener.settimeout(LONG)
        return listener

    def start(
        self, what: str = "attach", first: float = LONG, later: float = LONG, last: float = LONG
    ) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", CHILD, what, str(first), str(later), str(last)]
        environment = os.environ | {"TMPDIR": str(self.folder.parent)}
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._processes.append(process)
        return process

    def attach(self, first: float = LONG, later: float = LONG) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """A relay that is connected, and the engine's end of its connection."""
        with self.listen() as listener:
            process = self.start("attach", first, later)
            engine, _ = listener.accept()
        engine.settimeout(LONG)
        return process, engine

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            with process:  # closes the pipes
                pass


def ended(process: subprocess.Popen[bytes]) -> tuple[bytes, int]:
    """What a process writes before it ends by itself, with its input still open, and its exit code."""
    assert process.stdout is not None
    return process.stdout.read(), process.wait(LONG)


@pytest.fixture
def relay(place: Path) -> Iterator[Relay]:
    found = Relay(place)
    yield found
    found.end()


def received(engine: socket.socket, size: int) -> bytes:
    """The next `size` bytes."""
    data = b""
    while len(data) < size:
        more = engine.recv(size - len(data))
        assert more, f"the connection ended after {len(data)} bytes"
        data += more
    return data


def test_bytes_go_both_ways_until_the_client_ends(relay: Relay) -> None:
    """More bytes than a pipe or a socket holds; what the engine still sends after the client's end arrives as well."""
    process, engine = relay.attach()
    assert process.stdin is not None
    assert process.stdout is not None
    sent = os.urandom(1 << 20)
    with engine, ThreadPoolExecutor(1) as pool:
        writing = pool.submit(process.stdin.write, sent)
        assert received(engine, len(sent)) == sent
        writing.result(LONG)
        engine.sendall(b"one")
        assert process.stdout.read(3) == b"one"
        process.stdin.close()
        assert engine.recv(1) == b"", "the end of the client is passed on"
        reading = pool.submit(process.stdout.read)
        engine.shutdown(socket.SHUT_WR)
        assert (reading.result(LONG), process.wait(LONG)) == (b"", 0)


def test_an_engine_that_never_closes_after_the_clients_end_has_not_answered(relay: Relay) -> None:
    with relay.listen() as listener:
        process = relay.start(last=0.3)
        engine, _ = listener.accept()
        with engine:
            assert process.communicate(timeout=LONG)[0] == b""
            assert process.returncode == EXIT_UNANSWERED


@pytest.mark.parametrize(("log", "reason"), [
    (b"", "another process killed it, perhaps because memory ran out"),
    (b"Traceback\nMemoryError: no more\n", "it ended: MemoryError: no more"),
    (b"x" * 5000, "it ended: " + "x" * 2000),
    (None, "it had no connection for too long, or the machine was restarted"),
], ids=["nothing", "an error", "a long line", "no log"])  # fmt: skip
def test_an_engine_that_ends_without_a_word_is_refused_with_the_end_of_its_log(
    relay: Relay, log: bytes | None, reason: str
) -> None:
    if log is not None:
        relay.log.write_bytes(log)
    process, engine = relay.attach()
    engine.close()
    assert ended(process) == (encode_rejection(reason if reason.startswith("it ") else f"it ended: {reason}"), 1)
    assert not relay.log.exists()
    assert relay.path.exists() is (log is None), "with the log, the socket is removed"


def test_an_engine_that_has_sent_something_may_end(relay: Relay) -> None:
    process, engine = relay.attach()
    with engine:
        engine.sendall(b"bye")
    assert ended(process) == (b"bye", 0)


@pytest.mark.parametrize("is_left", [False, True], ids=["no socket", "a socket without a listener"])
def test_without_an_engine_the_reason_is_given(relay: Relay, is_left: bool) -> None:
    if is_left:
        relay.listen().close()
    process = relay.start()
    assert ended(process) == (
        encode_rejection("it had no connection for too long, or the machine was restarted"), 1
    )  # fmt: skip
    ending = relay.start("end")
    assert ending.wait(LONG) == 0, "there is nothing to end"


def test_an_engine_that_accepts_no_connection_has_not_answered(relay: Relay) -> None:
    with relay.listen(0), socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(str(relay.path))
        assert relay.start().wait(LONG) == EXIT_UNANSWERED


def test_an_engine_may_be_silent_before_the_client_speaks_and_not_after(relay: Relay) -> None:
    process, engine = relay.attach(first=0.3)
    assert process.stdin is not None
    with engine:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3.0)
        process.stdin.write(b"hello")
        process.stdin.flush()
        assert received(engine, 5) == b"hello"
        assert process.wait(LONG) == EXIT_UNANSWERED


def test_an_engine_that_was_heard_may_be_silent_for_another_time(relay: Relay) -> None:
    process, engine = relay.attach(first=LONG, later=0.3)
    assert process.stdout is not None
    with engine:
        engine.sendall(b"beat")
        assert process.stdout.read(4) == b"beat"
        assert process.wait(LONG) == EXIT_UNANSWERED


# ---- ending an engine, and what killed ones leave --------------------------------------------------------------------

# A process that listens at a path, and at the end of its first connection exits or goes on.
LISTENER = """
import socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[2])
listener.listen(4)
print("ready", flush=True)
connection, _ = listener.accept()
if sys.argv[3] == "stay":
    time.sleep(600)
"""


@pytest.fixture
def listener(relay: Relay) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    processes = []

    def start(name: str, how: str, path: Path = relay.path) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", LISTENER, name, str(path), how]
        folder = relay.path.parent
        processes.append(subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True, cwd=folder))
        assert processes[-1].stdout.readline() == b"ready\n"
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="the process of a socket's peer is only known on Linux")
def test_an_engine_that_does_not_end_is_killed_with_its_files(
    relay: Relay, listener: Callable[..., subprocess.Popen[bytes]]
) -> None:
    engine = listener(ENGINE, "stay")
    relay.log.write_text("something")
    assert relay.start("end", last=0.3).wait(LONG) == 0
    assert engine.wait(LONG) == -signal.SIGKILL
    assert not relay.log.exists()
    assert not relay.path.exists()


def test_an_engine_that_ends_in_time_is_not_killed(
    relay: Relay, listener: Callable[..., subprocess.Popen[bytes]]
) -> None:
    engine = listener(ENGINE, "exit")
    assert relay.start("end").wait(LONG) == 0
    assert engine.wait(LONG) == 0


def test_another_process_at_that_place_is_left_alone(
    relay: Relay, listener: Callable[..., subprocess.Popen[bytes]]
) -> None:
    other = listener("another.program", "stay")
    assert relay.start("end", last=0.3).wait(LONG) == 0
    assert other.poll() is None


def test_an_engine_that_was_started_for_another_place_is_left_alone(
    relay: Relay, listener: Callable[..., subprocess.Popen[bytes]]
) -> None:
    other = listener(ENGINE, "stay", Path(relay.path.name))
    assert relay.start("end", last=0.3).wait(LONG) == 0
    assert other.poll() is None


@pytest.mark.slow
def test_a_started_engine_has_a_log_of_its_own_and_leftovers_are_removed(relay: Relay) -> None:
    yesterday = time.time() - 25 * 3600
    left = [relay.folder / name for name in ("a", "a.log", "b", "b.log")]
    for path in left:
        path.touch()
        os.utime(path, (yesterday, yesterday))
    young = [relay.folder / name for name in ("c", "c.log", "d")]
    for path in young:
        path.touch()
    old_engine = socket.socket(socket.AF_UNIX)
    with old_engine:
        old_engine.bind(str(relay.folder / "e"))
        old_engine.listen(4)
        alive = [relay.folder / "e", relay.folder / "e.log"]
        alive[1].touch()
        for path in alive:
            os.utime(path, (yesterday, yesterday))
        before = os.umask(0)
        try:
            process = relay.start("start")
        finally:
            os.umask(before)
        assert process.stdin is not None
        end = time.monotonic() + LONG
        while not relay.log.exists() or left[0].exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        process.stdin.close()
        assert process.wait(LONG) == 0
    assert [path.exists() for path in (*left, *young, *alive)] == [False] * 4 + [True] * 5
    assert not relay.log.exists() or relay.log.stat().st_mode & 0o777 == 0o600
