"""Hostile files for readers that use native code: PyTorch, MLIR, ONNX. Each in a process that may crash.

A library's process imports it once, makes valid files, and forks a child that reads one hostile file after another. A
child that crashes or hangs loses only the current file; another one continues. In a child, calls with effects outside
the process are audited: reading a file must not start a process, open a connection or change another file.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from buddy.compiler.support.processes.lifetime import describe_exit, die_with_parent
from tests.reliability.mutations import mutated

# A file takes milliseconds, the first use of a library seconds.
PATIENCE = 60.0
# Seconds for a library's process to remove its folder and exit.
_GRACE = 60.0
# The size fields of a file may ask for any amount of memory; it must not use up the machine's.
_MEMORY = 12 << 30
# Audit events with effects outside the process. Files are opened by every reader: for these the mode is checked.
_ACTS = frozenset({
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "subprocess.Popen", "pty.spawn",
    "os.remove", "os.rename", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.truncate", "shutil.rmtree",
    "socket.connect", "socket.bind", "webbrowser.open", "ctypes.dlopen",
})  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of hostile file: the `library` whose process reads it, and its share of all inputs.

    The product also reads a kind with `apart` in a separate process, which it kills after a time limit.
    """

    library: str
    form: str
    weight: int = 2
    longest: int = 60_000
    apart: bool = False


HOSTILE: dict[str, Kind] = {
    "weights (.pt)": Kind("torch", "zip", 4),
    "pickle": Kind("torch", "bytes", 4),
    "TorchScript": Kind("torch", "zip", 2),
    "exported program (.pt2)": Kind("torch", "zip", 1),
    "inputs (.npy)": Kind("torch", "bytes", 4),
    "inputs (.npz)": Kind("torch", "zip", 2),
    "ONNX model": Kind("onnx", "bytes", 2),
    "MLIR": Kind("mlir", "text", 2, apart=True),
    "MLIR bytecode": Kind("mlir", "bytes", 2, apart=True),
}
Result = tuple[str, str]


class HostileFiles:
    """The processes of all libraries, each started for its first file; leaving the context ends them."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> HostileFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()

    def tried(self, cases: Sequence[tuple[str, int]]) -> list[Result]:
        """The outcome of each case: "taken", "refused", "ended its process", "fault"; with the reason."""
        found: dict[tuple[str, int], Result] = {}
        for library in dict.fromkeys(HOSTILE[name].library for name, _ in cases):
            own = [case for case in cases if HOSTILE[case[0]].library == library]
            found |= dict(zip(own, self._asked(library, own), strict=True))
        return [found[case] for case in cases]

    def _asked(self, library: str, cases: Sequence[tuple[str, int]]) -> Iterator[Result]:
        process = self._processes.get(library) or self._started(library)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(list(cases)) + "\n")
        process.stdin.flush()
        for _ in cases:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the process of {library} ended with {describe_exit(process.wait())}")
            ended, why = json.loads(line)
            yield ended, why

    def _started(self, library: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "tests.reliability.hostile_files", str(os.getpid()), library]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self._processes[library] = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=environment)
        return self._processes[library]


# ---- worker process --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileReader:
    """Valid files of a kind, and their reader; it raises one of `refuses` for invalid ones."""

    seeds: tuple[bytes, ...]
    read: Callable[[bytes], Any]
    refuses: tuple[type[BaseException], ...]


def _serve(library: str) -> None:
    from tests.reliability.file_readers import LIBRARIES

    readers = LIBRARIES[library]()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    for line in sys.stdin:
        cases = [(name, number) for name, number in json.loads(line)]
        while cases:
            for result in _in_child(readers, tuple(cases)):
                answers.write(json.dumps(result) + "\n")
                cases.pop(0)
            answers.flush()


def _in_child(readers: dict[str, FileReader], cases: Sequence[tuple[str, int]]) -> Iterator[Result]:
    """Results of cases, one after another, until all are done or the child has crashed."""
    read_fd, write_fd = os.pipe()
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        os.close(read_fd)
        _child(parent, readers, cases, write_fd)
    os.close(write_fd)
    late, done, came = False, 0, b""
    while done < len(cases):
        if not select.select([read_fd], [], [], PATIENCE)[0]:
            late = True
            break
        data = os.read(read_fd, 1 << 16)
        if not data:
            break
        *lines, came = (came + data).split(b"\n")
        for line in lines:
            done += 1
            yield json.loads(line)
    os.close(read_fd)
    os.kill(pid, 9)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if done < len(cases):
        apart = HOSTILE[cases[done][0]].apart
        how = f"it was not done after {PATIENCE:g} s" if late else describe_exit(status)
        yield "fault" if late and not apart else "ended its process", how


def _child(parent: int, readers: dict[str, FileReader], cases: Sequence[tuple[str, int]], write_fd: int) -> None:
    try:
        die_with_parent(parent)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        acts: list[str] = []
        sys.addaudithook(lambda event, arguments: _watched(acts, event, arguments))
        for name, number in cases:
            os.write(write_fd, json.dumps(_result(readers[name], name, number, acts)).encode() + b"\n")
    finally:
        os._exit(0)


def _result(reader: FileReader, name: str, number: int, acts: list[str]) -> Result:
    kind = HOSTILE[name]
    data = mutated(reader.seeds, kind.form, Random(number), kind.longest)
    del acts[:]
    try:
        reader.read(data)
        ended, why = "taken", ""
    except reader.refuses:
        ended, why = "refused", ""
    except Exception as error:
        ended, why = "fault", f"{type(error).__name__}: {error}"[:300]
    return ("fault", f"reading it did {acts[0]}") if acts else (ended, why)


def _watched(acts: list[str], event: str, arguments: Sequence[Any]) -> None:
    if event in _ACTS or (event == "open" and _writes(arguments)):
        acts.append(f"{event} {arguments}"[:200])


def _writes(arguments: Sequence[Any]) -> bool:
    path, mode, flags = arguments
    ours = isinstance(path, int) or str(path).startswith(("/dev/", tempfile.gettempdir()))
    to_write = any(letter in (mode or "") for letter in "wax+") or bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))
    return to_write and not ours


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit())
    die_with_parent(int(sys.argv[1]))
    _serve(sys.argv[2])
