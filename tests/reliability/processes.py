"""The processes below the workbench, from Linux's process table: their roles, and leftover ones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "buddy.compiler.support.processes"
_KEPT = "buddy.compiler.engine.resumable_connection"
_MODULES = {
    "buddy.app.cli": "link",
    _KEPT: "engine",
    "buddy.compiler.engine": "engine",
    "buddy.compiler.engine.host": "host",
    "buddy.compiler.engine.compiler": "compiler",
}


@dataclass(frozen=True)
class Process:
    """One process: its role (`engine`, `host`, `compiler`, `runner`, `helper`, `link`), and its start time in clock
    ticks.

    `words` are its command line; the pid alone may be reused by another process.
    """

    pid: int
    began: str
    role: str = ""
    words: tuple[str, ...] = ()

    @property
    def zombie(self) -> bool:
        """Whether it had exited, and was not reaped, when it was examined."""
        return not self.words

    @property
    def lives(self) -> bool:
        """Whether it still exists, also as a zombie, which has to be reaped."""
        stat = _stat(self.pid)
        return stat is not None and stat[1] == self.began


def engines() -> list[Process]:
    """The engines that this process has started, and all below them, parents first.

    Also those that have outlived their connection, which are identified by the folder for temporary files.
    """
    children, began = _family()
    found = list(_walk(os.getpid(), "", children, began))
    for pid in children.get(1, ()) if "TMPDIR" in os.environ else ():
        words = _words(pid)
        if _KEPT in words and any(word.startswith(os.environ["TMPDIR"]) for word in words):
            found += [Process(pid, began[pid], "engine", words), *_walk(pid, "engine", children, began)]
    return [process for process in found if process.role]


def below(pid: int) -> Iterator[int]:
    """All descendants of a process, parents first."""
    children, _ = _family()
    waiting = list(children.get(pid, ()))
    while waiting:
        yield (found := waiting.pop(0))
        waiting += children.get(found, ())


def _family() -> tuple[dict[int, list[int]], dict[int, str]]:
    """The children of every process, and the start time of each process."""
    children: dict[int, list[int]] = {}
    began = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _stat(int(name))) is not None:
            children.setdefault(stat[0], []).append(int(name))
            began[int(name)] = stat[1]
    return children, began


def _walk(parent: int, role: str, children: dict[int, list[int]], began: dict[int, str]) -> Iterator[Process]:
    for pid in children.get(parent, ()):
        words = _words(pid)
        yield (found := Process(pid, began[pid], _role(words, role), words))
        yield from _walk(pid, found.role, children, began)


def _role(words: tuple[str, ...], parent: str) -> str:
    started = words[words.index("-m") + 1 :] if "-m" in words else ()
    # The program of workers is followed by the module that it runs.
    module = next((word for word in started[:2] if word != PROGRAM), "")
    role = _MODULES.get(module, "helper" if parent else "")
    # Forks of the host run and compile. They have the host's command line until they set their own.
    return role if role != parent else "runner" if role == "host" else "helper" if role else ""


def _stat(pid: int) -> tuple[int, str] | None:
    """The parent and the start time of a process, or `None`."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(words[1]), words[19]
    return None


def waited(task: int | str) -> float:
    """Seconds that the first thread of a process, or `"thread-self"`, was ready to run and had no processor.

    By the scheduler's statistics; 0 for a process that has exited.
    """
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{task}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _words(pid: int) -> tuple[str, ...]:
    with contextlib.suppress(OSError):
        return tuple(Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0"))
    return ()


def survivors(seen: Collection[Process], now: Collection[Process]) -> list[Process]:
    """The processes of `seen` that are alive and not in `now`, and the zombies among these."""
    expected = {(process.pid, process.began) for process in now}
    gone = [process for process in seen if (process.pid, process.began) not in expected and process.lives]
    return gone + [process for process in now if process.zombie]
