"""Progress and output of headless verbs on a terminal and on a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from buddy.app.cli.console import Console

Write = Callable[[Console], None]


@contextmanager
def written_to(monkeypatch: pytest.MonkeyPatch, master: int, slave: int) -> Iterator[list[str]]:
    """stdout and stderr on `slave`; afterwards, the list has what `master` read."""
    found: list[str] = []
    with open(slave, "w", encoding="utf-8") as out, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", out)
        yield found
    found.append(b"".join(iter(lambda: read_rest(master), b"")).decode())
    os.close(master)


def read_rest(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # a terminal whose other end is closed
        return b""


def on_terminal(monkeypatch: pytest.MonkeyPatch, write: Write, columns: int = 80) -> str:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with written_to(monkeypatch, master, slave) as found:
        write(Console())
    return found[0]


def on_pipe(monkeypatch: pytest.MonkeyPatch, write: Write) -> str:
    with written_to(monkeypatch, *os.pipe()) as found:
        write(Console())
    return found[0]


def print_unfinished_line(console: Console) -> None:
    console.progress("capture")
    console.print_output("RESULT ")
    console.print_output("42")
    console.progress("pass 1/58 slice-parts")
    console.clear_progress()


def test_progress_does_not_erase_an_unfinished_line_of_output(monkeypatch: pytest.MonkeyPatch) -> None:
    text = on_terminal(monkeypatch, print_unfinished_line)
    assert text == "\r\x1b[Kcapture\r\x1b[KRESULT 42\r\n\r\x1b[Kpass 1/58 slice-parts\r\x1b[K"


def test_progress_does_not_continue_an_unfinished_line_of_output(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_pipe(monkeypatch, print_unfinished_line) == "capture\nRESULT 42\npass 1/58 slice-parts\n"


@pytest.mark.parametrize(("columns", "shown"), [(40, 39), (200, 100)])
def test_progress_fits_on_a_line_of_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, shown: int) -> None:
    text = on_terminal(monkeypatch, lambda console: console.progress("x" * 300), columns)
    assert text == f"\r\x1b[K{'x' * shown}"


def test_messages_do_not_repeat_progress_on_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(console: Console) -> None:
        console.progress("pass 1/9 a")
        console.print_output("out\n")
        console.progress("pass 2/9 b")
        console.note("note")
        console.progress("pass 3/9 c")
        console.clear_progress()
        console.progress("pass 1/9 a")

    assert on_pipe(monkeypatch, write) == "pass 1/9 a\nout\nnote\npass 1/9 a\n"
