"""Starts processes of this project as forks of one that has torch, MLIR and the compiler loaded.

    with warm_processes() as command:
        subprocess.run([*command, "-m", "buddy.app.cli", "passes"])

Importing torch and MLIR takes seconds, and an engine needs both three times. A fork of a process that has them loaded
takes milliseconds and is an ordinary process: it runs the same module with its own arguments, environment, folder and
streams, and may be killed. Only its interpreter is not a new one, so tests of how processes start, of what they load
and of signals to their very first process use real ones.

`command` runs a small program that asks the warm process for a fork, passes its streams, and exits like the fork; the
fork is killed if that program is. A forked engine forks its workers from itself.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from setproctitle import getproctitle, setproctitle

CONNECT = Path(__file__).with_name("warm_connect.py")
ENGINE = "buddy.compiler.engine"
# Workers with a separate interpreter, which the engine's state does not disturb.
WORKERS = (f"{ENGINE}.host", f"{ENGINE}.compiler")
# Other imports of samples and verbs; missing extras are skipped.
LOADED = (
    "buddy.app.cli.headless", "buddy.app.workbench.app", "buddy.compiler.engine.server",
    "buddy.compiler.importers.sources",
    "buddy.compiler.frontend", "buddy.compiler.runtime", *WORKERS, "transformers.models.bert.modeling_bert",
)  # fmt: skip
_MOST = 1 << 20
# Without the folder in which this module was started.
PATH = sys.path[1:]


@dataclass(frozen=True)
class Job:
    """What a fork runs, and where: the arguments after `python`, `-m MODULE …`, perhaps after `-P`, or `FILE …`."""

    words: list[str]
    environment: dict[str, str]
    folder: str


@contextlib.contextmanager
def warm_processes() -> Iterator[list[str]]:
    """Starts the warm process; the value is a command that replaces `sys.executable`."""
    with tempfile.TemporaryDirectory(prefix="buddy-warm-") as folder:
        address = os.path.join(folder, "socket")
        line, ours = socket.socketpair()
        root = Path(__file__).resolve().parent.parent.parent
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.warm_processes", address, str(line.fileno())],
            pass_fds=(line.fileno(),), cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        line.close()
        try:
            ours.recv(1)  # it listens, or has failed and closed its end
            yield connecting(address)
        finally:
            ours.close()
            server.wait()


def connecting(address: str) -> list[str]:
    """Returns the command that asks the warm process at `address` for a fork."""
    return [sys.executable, "-I", "-S", str(CONNECT), address]


class Server:
    """Forks on request; exits when the other end of `line` is closed."""

    def __init__(self, address: str, line: socket.socket) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(address)
        self._listening.listen(64)
        self._line = line
        # Forks with the connections that requested them, by the file descriptors of both: connection and pidfd.
        self._forks: dict[int, tuple[socket.socket, int, int]] = {}

    def serve(self) -> Job | None:
        """Returns the job of a fork, in the fork; `None` at the end, in this process."""
        self._line.send(b"+")
        while True:
            told = select.select([self._line, self._listening, *self._forks], [], [])[0]
            if self._line in told:
                for _, pid, _ in self._forks.values():
                    _kill(pid)
                return None
            for fd in told:
                if isinstance(fd, int):
                    self._ended_or_left(fd)
            if self._listening in told and (job := self._fork(self._listening.accept()[0])) is not None:
                return job

    def _fork(self, link: socket.socket) -> Job | None:
        asked, fds, _, _ = socket.recv_fds(link, _MOST, 3)
        while not asked.endswith(b"\n"):
            asked += link.recv(_MOST)
        words, environment, folder = json.loads(asked)
        if pid := os.fork():
            for fd in fds:
                os.close(fd)
            pidfd = os.pidfd_open(pid)
            self._forks[pidfd] = self._forks[link.fileno()] = (link, pid, pidfd)
            link.send(array.array("i", [pid]).tobytes())
            return None
        os.setsid()
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        _close_others()
        return Job(words, environment, folder)

    def _ended_or_left(self, fd: int) -> None:
        """If a fork has exited, notifies its client; if the client has exited, kills the fork."""
        if fd not in self._forks:
            return
        link, pid, pidfd = self._forks[fd]
        if fd != pidfd:
            _kill(pid)
        status = os.waitpid(pid, 0)[1]
        with contextlib.suppress(OSError):
            link.send(array.array("i", [os.waitstatus_to_exitcode(status)]).tobytes())
        del self._forks[pidfd], self._forks[link.fileno()]
        os.close(pidfd)
        link.close()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def run(job: Job) -> NoReturn:
    """Acts as the process of `python` with these arguments, to its end."""
    code = 1
    try:
        _begin(job)
        code = 0
    except SystemExit as end:
        code = _exit_code(end)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        _end(code)


def _begin(job: Job) -> None:
    atexit._clear()
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False
    os.environ.clear()
    os.environ.update(job.environment)
    tempfile.tempdir = None
    with contextlib.suppress(OSError):
        os.chdir(job.folder)
    _fresh_streams()
    safe, words = job.words[:1] == ["-P"], list(job.words)
    words = words[1:] if safe else words
    setproctitle(" ".join([sys.executable, *job.words]))  # for those who search the process table
    if words[0] != "-m":
        sys.argv, sys.path[:] = words, [os.path.dirname(os.path.abspath(words[0])), *PATH]
        runpy.run_path(words[0], run_name="__main__")
        return
    sys.path[:] = PATH if safe else [os.getcwd(), *PATH]
    if words[1] == ENGINE:
        _fork_workers()
    for name in (words[1], "__mp_main__"):  # the module is run again, as the main one
        sys.modules.pop(name, None)
    sys.argv = words[1:]
    runpy.run_module(words[1], run_name="__main__", alter_sys=True)


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _end(code: int) -> NoReturn:
    """Exits without finalizing all that is loaded, which takes seconds."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)


def _fresh_streams() -> None:
    """Recreates the standard streams like a new interpreter."""
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def _fork_workers() -> None:
    """Makes `subprocess` fork this process for a worker; without such a hook in Python, workers start as usual."""
    start: Callable[..., int] | None = getattr(subprocess, "_fork_exec", None)
    if start is None:
        return

    def fork_or_exec(words: Sequence[Any], executables: Any, close: bool, keep: Sequence[int], *rest: Any) -> int:
        told = [os.fsdecode(word) for word in words]
        if not (told[0] == sys.executable and any(worker in told for worker in WORKERS)):
            return start(words, executables, close, keep, *rest)
        return _forked(told[1:], keep, *rest)

    subprocess._fork_exec = fork_or_exec  # type: ignore[attr-defined]


def _forked(
    words: list[str], keep: Sequence[int], folder: Any, environment: Any, stdin: int, _in: int, _out: int,
    stdout: int, _err: int, stderr: int, _pipe_in: int, pipe_out: int, _signals: bool, session: bool, _group: int,
    _gid: Any, _gids: Any, _uid: Any, _umask: int, before: Callable[[], None] | None, _vfork: bool,
) -> int:  # fmt: skip
    """Calls `_posixsubprocess.fork_exec` with the arguments that workers use.

    Forks and runs a module instead of a program.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        gc.freeze()  # the engine's objects must not be finalized here: their file descriptors are other ones
        _forget_imports_of_other_threads()
        if session:
            os.setsid()
        for target, fd in enumerate((stdin, stdout, stderr)):
            os.dup2(fd, target)
        if before is not None:
            before()
        _close_others({*keep} - {pipe_out})
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        run(Job(words, dict(os.environ), os.getcwd()))
    finally:
        os._exit(1)


def _forget_imports_of_other_threads() -> None:
    """Threads of the parent that were importing modules do not exist here, so their locks are released."""
    for name, module in list(sys.modules.items()):
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            del sys.modules[name]
    importlib._bootstrap._module_locks.clear()  # type: ignore[attr-defined]
    importlib._bootstrap._blocking_on.clear()  # type: ignore[attr-defined]


def _close_others(keep: Collection[int] = ()) -> None:
    """Closes all file descriptors except for the standard streams and `keep`."""
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd > 2 and fd not in keep:
            with contextlib.suppress(OSError):
                os.close(fd)


def _load() -> None:
    """Imports what processes of this project import; no import may start a thread that a fork would need."""
    import torch

    torch.set_num_threads(1)
    for module in LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    from buddy.compiler.engine import compiler, host
    from buddy.compiler.ops import op_table
    from buddy.compiler.passes.catalogue import catalogue

    host._warm_up()
    host._capture_small_program()
    compiler._warm_up()
    op_table()
    catalogue()


def main() -> None:
    getproctitle()  # finds the position of the title, which is impossible once the environment has moved
    _load()
    address, line = sys.argv[1:]
    from buddy.app.session import client

    client.default_command = lambda: [*connecting(address), "-P", "-m", ENGINE]
    job = Server(address, socket.socket(fileno=int(line))).serve()
    if job is not None:
        run(job)


if __name__ == "__main__":
    main()
