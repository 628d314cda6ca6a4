"""Runs a program in a pseudo-terminal of any size: sends keys, and times, counts and reads its output."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

QUIET = 0.08
# The terminal itself reports its capabilities and size; Textual would prefer these variables. Without bytecode, each
# start would compile every module, which an installed program never does.
_NOT_OURS = ("COLORTERM", "NO_COLOR", "COLUMNS", "LINES", "PYTHONDONTWRITEBYTECODE")
ESCAPE = re.compile(rb"\x1b\[[0-9;?>]*\$?[a-zA-Z]|\x1b[=>]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


class Terminal:
    """A program in a pseudo-terminal; its output is read immediately and can be waited for."""

    def __init__(self, command: list[str], columns: int, rows: int, environment: dict[str, str]) -> None:
        self.started = time.monotonic()
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.master = master
        self.seen = bytearray()
        self.last = self.started

    def read(self, timeout: float) -> int:
        """Reads the available output, waiting at most `timeout` seconds; returns the number of bytes."""
        if not select.select([self.master], [], [], timeout)[0]:
            return 0
        data = os.read(self.master, 1 << 16)
        self.last = time.monotonic()
        self.seen += data
        return len(data)

    @property
    def text(self) -> str:
        """The output since the last `forget`, without escape sequences."""
        return ESCAPE.sub(b"", bytes(self.seen)).decode(errors="replace")

    def until(self, text: str, timeout: float) -> float:
        """Seconds until `text` appears in the output since the last `forget`."""
        start = time.monotonic()
        self.match(re.escape(text), timeout)
        return self.last - start

    def match(self, pattern: str, timeout: float) -> re.Match[str]:
        """Waits until `pattern` matches the output since the last `forget`; returns the last match."""
        start = time.monotonic()
        while not (found := list(re.finditer(pattern, self.text))):
            if time.monotonic() - start > timeout:
                raise TimeoutError(f"waited {timeout} s for {pattern!r}; there was {self.text[-2000:]!r}")
            self.read(0.05)
        return found[-1]

    def forget(self) -> None:
        self.seen.clear()

    def wait(self, seconds: float) -> None:
        """Reads for a while."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.read(min(left, 0.05))

    def settle(self, quiet: float = 0.4) -> None:
        """Reads until there is no output for a while."""
        while self.read(quiet):
            pass

    def key(self, keys: str, quiet: float = QUIET) -> tuple[float, int]:
        """Sends keys.

        Returns the milliseconds to the last byte of the answer, which ends after `quiet` seconds without output, and
        the number of bytes.
        """
        start, size = time.monotonic(), 0
        os.write(self.master, keys.encode())
        while got := self.read(quiet if size else max(1.0, quiet)):
            size += got
        return (self.last - start) * 1e3 if size else 0.0, size

    def resize(self, columns: int, rows: int) -> None:
        """Changes the size of the terminal."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.killpg(self.process.pid, signal.SIGWINCH)
        self.read(0.01)

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()


def environment(colors: str, state: Path) -> dict[str, str]:
    """The environment of a workbench in a terminal with these `colors`, `truecolor` or `256`, with its state in
    `state`.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    kept |= {"BUDDY_TUI_STATE": str(state), "BUDDY_TUI_CONFIG": str(state / "none.toml")}
    truecolor = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    return kept | (truecolor if colors == "truecolor" else {"TERM": "tmux-256color"})
