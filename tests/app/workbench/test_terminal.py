"""The workbench in a pseudo-terminal: its output, and its processes and files after exit."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from buddy.app.panes.jobs import MESSAGE_SECONDS
from buddy.app.workspace.session_file import SavedSession, read_session

ROOT = Path(__file__).resolve().parent.parent.parent.parent
# Seconds that anything may take, on a loaded machine too.
PATIENCE = 180
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="there are no pseudo-terminals")]


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    """The module with which the benchmark opens terminals."""
    spec = importlib.util.spec_from_file_location("terminals", ROOT / "benchmarks" / "support" / "terminal.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def terminal(benchmark: ModuleType, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    opened: list[Any] = []

    def open_terminal(
        *arguments: str,
        colors: str = "256",
        columns: int = 80,
        rows: int = 24,
        plain: bool = False,
        source: Path = ROOT / "samples" / "arith_add.py",
    ) -> Any:
        command = [sys.executable, "-m", "buddy.app.cli", *arguments, str(source)]
        environment = benchmark.environment(colors, tmp_path) | (
            {"NO_COLOR": "1", "PYTHONIOENCODING": "latin-1:replace"} if plain else {}
        )
        opened.append(benchmark.Terminal(command, columns, rows, environment))
        return opened[-1]

    yield open_terminal
    for one in opened:
        if one.process.poll() is None:
            one.end()


def ends(one: Any) -> int:
    """Quit; `y` answers the question that is asked while a job runs. Returns the exit code."""
    os.write(one.master, b"qy")
    with contextlib.suppress(OSError):  # The terminal is closed. Until then it is read: one that is full is waited for.
        one.wait(PATIENCE)
    return int(one.process.wait(PATIENCE))


def test_the_workbench_works_at_80_by_24_with_256_colours_without_a_mouse(terminal: Callable[..., Any]) -> None:
    one = terminal("--no-mouse")
    one.until("[x]", PATIENCE)
    one.until_compiled(PATIENCE)
    one.key("\t\t")
    one.until("func.func", PATIENCE)
    one.key("r")
    one.key("\t")
    one.until("eager's speed", PATIENCE)
    written = bytes(one.seen)
    assert b"38;2;" not in written, "a colour that 256 colours do not have"
    assert b"?1000h" not in written, "the mouse is the terminal's own"
    assert b"?1003h" not in written


def test_quitting_restores_the_terminal_with_exit_code_0(terminal: Callable[..., Any]) -> None:
    one = terminal("--no-mouse")
    one.until("engine", PATIENCE)
    one.wait(0.5)
    os.write(one.master, b"\x03")
    one.wait(0.5)
    assert one.process.poll() is None, "ctrl+c cancels, it does not leave"
    assert ends(one) == 0
    assert b"?1049l" in bytes(one.seen)


def test_runs_and_bookmarks_of_a_killed_workbench_are_restored(terminal: Callable[..., Any], tmp_path: Path) -> None:
    one = terminal("--no-mouse")
    one.until_compiled(PATIENCE)
    one.key("\t\t")
    one.until("func.func", PATIENCE)
    one.key("M")
    one.until("bookmark set", PATIENCE)
    one.key("r")
    end = time.monotonic() + PATIENCE
    while not any(kept.runs and kept.bookmarks for kept in kept_in(tmp_path)):
        assert time.monotonic() < end, "nothing is kept"
        one.wait(0.05)
    one.process.kill()
    one.process.wait()
    other = terminal("--no-mouse")
    other.until("func.func", PATIENCE)  # the compilation of the first one
    other.forget()
    other.key("'")
    other.until("Bookmarks", PATIENCE)
    other.key("\x03")
    other.forget()
    other.key("H")
    other.until("Runs", PATIENCE)


def kept_in(folder: Path) -> list[SavedSession]:
    return [read_session(path)[0] for path in folder.rglob("*.session")]


def test_in_ascii_mode_only_ascii_is_written(terminal: Callable[..., Any]) -> None:
    one = terminal("--no-mouse", "--ascii", columns=120, rows=40)
    one.until_compiled(PATIENCE)
    one.key("r")
    one.until("eager's speed", PATIENCE)
    assert {byte for byte in bytes(one.seen) if byte > 127} == set()


def test_in_16_colours_no_other_colour_is_written(terminal: Callable[..., Any]) -> None:
    one = terminal("--no-mouse", "--theme", "buddy-ansi", columns=120, rows=40)
    one.until_compiled(PATIENCE)
    one.key("\t\t")
    one.until("func.func", PATIENCE)
    written = bytes(one.seen)
    assert not re.findall(rb"[34]8;[25];", written), "a colour that is none of the sixteen"
    assert re.findall(rb"\x1b\[[0-9;]*3[0-7]", written), "but colours there are"


def test_without_colours_and_utf_8_marks_have_the_same_meaning(terminal: Callable[..., Any]) -> None:
    one = terminal("--no-mouse", plain=True, columns=120, rows=40)
    one.until_compiled(PATIENCE)
    one.key("\t\t")
    one.until("func.func", PATIENCE)
    assert "[x]" in one.text
    assert {byte for byte in bytes(one.seen) if byte > 127} == set(), "ASCII is drawn where there is no UTF-8"
    colours = set(re.findall(rb"[34]8;2;(\d+;\d+;\d+)", bytes(one.seen)))
    assert all(len(set(colour.split(b";"))) == 1 for colour in colours), "grey is all there is"


def test_the_workbench_survives_40_by_10_many_resizes_and_pasted_junk(terminal: Callable[..., Any]) -> None:
    one = terminal("--no-mouse", columns=40, rows=10)
    one.until_compiled(PATIENCE)
    for turn in range(60):
        one.resize(20 + turn * 37 % 180, 3 + turn * 13 % 60)
    one.resize(40, 10)
    one.wait(1)
    junk = "\x1b[200~" + "\x00\x1b[31m%s \u2028\ud7ff{}\n" * 100 + "\x1b[201~"
    one.key("\t\t/")
    one.key(junk)
    one.key("\x03")
    one.key(junk)
    one.wait(0.5)
    assert one.process.poll() is None
    one.forget()
    one.resize(120, 40)
    one.until("buddy", PATIENCE)
    one.key("1")
    one.until("line", PATIENCE)
    assert "Traceback" not in one.text
    assert ends(one) == 0


def test_a_burst_of_keys_goes_to_what_the_first_one_opens(terminal: Callable[..., Any]) -> None:
    one = terminal("--no-mouse", columns=120, rows=40)
    one.until_compiled(PATIENCE)
    one.settle()
    # By pane. Twice ctrl+c closes an editor with changes too, and else cancels nothing.
    for keys in (["/", "f", "w", "X", "\x13", "S", "t", "B", "I", "T", "p", "\x10", "gF", "gX"],
                 ["/", "i", "e", "P", "f"], ["/", ":", "g/", "gf", "w", "ge", "go"]):  # fmt: skip
        for number, key in enumerate(keys):
            text = "xqdzu" * 39 + f"{number:02}end"
            one.forget()
            os.write(one.master, f"{key}{text}".encode())
            one.until(text[-5:], PATIENCE)
            one.key("\x03\x03")
        one.key("\t")
    one.forget()
    one.key(f"\x1b[200~{'xdq' * 70}\x1b[201~")
    one.until("no input has focus", PATIENCE)
    one.key("U")
    assert "the first recipe" not in one.text, "no key has edited the recipe"
    assert "Traceback" not in one.text
    assert ends(one) == 0


def test_the_cells_that_were_written_add_up_to_the_screen(terminal: Callable[..., Any]) -> None:
    one = terminal("--no-mouse", colors="truecolor", columns=120, rows=40)
    one.until_compiled(PATIENCE)
    through_stages, dialogs = (
        ("\t\t", "1", "8", "\x06", "jjj", "G", "\x1b[H"),
        ("?", "\x06", "\x1b", "+", "+", "L", "q"),
    )
    for keys in (*through_stages, *dialogs, "\x10w", "\x03", "T", "\x1b[B", "\r"):
        one.key(keys, 0.3)
    one.wait(MESSAGE_SECONDS + 1)
    one.settle()
    shown = one.screen.visible
    one.forget()
    one.screen.resize(120, 40)
    one.key("\x0c", 0.5)
    assert len(one.screen.cells) == 40
    assert one.screen.visible == shown


def test_nothing_is_written_when_idle(terminal: Callable[..., Any]) -> None:
    one = terminal("--no-mouse")
    one.until_compiled(PATIENCE)
    # What is still on its way comes first: the catalogue of passes, messages that go after some seconds.
    for _ in range(PATIENCE // 3):
        one.forget()
        one.wait(3)
        if not one.seen:
            return
    raise AssertionError(f"it goes on to write: {bytes(one.seen)!r}")
