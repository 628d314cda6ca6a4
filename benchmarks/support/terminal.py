"""Runs a program in a pseudo-terminal of any size: sends keys, times and counts its output, and reads its screen."""

from __future__ import annotations

import codecs
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
from typing import NamedTuple

from rich.cells import get_character_cell_size

from buddy.app.workspace.session_file import record_first_script

QUIET = 0.08
# The terminal itself reports its capabilities and size; Textual would prefer these variables. Without bytecode, each
# start would compile every module, which an installed program never does.
_NOT_OURS = ("COLORTERM", "NO_COLOR", "COLUMNS", "LINES", "PYTHONDONTWRITEBYTECODE")
# A control sequence with its parameters and its final byte, a string such as a title, another escape, a control
# character, or text.
_TOKENS = re.compile(
    r"\x1b\[([0-9;:<=>?]*)[ -/]*([@-~])|\x1b[\]P_^X].*?(?:\x07|\x1b\\)|\x1b[ -/]*[0-OQ-WYZ`-~\\]|[\x00-\x1a\x1c-\x1f]"
    r"|[^\x00-\x1f]+",
    re.DOTALL,
)
# The attributes that an SGR parameter switches off.
_OFF = {22: {1, 2}, 23: {3}, 24: {4}, 25: {5, 6}, 27: {7}, 28: {8}, 29: {9}}
# The attributes that show on a space: underline, blink, reverse, strike, and a line above the text.
_ON_SPACES = frozenset((4, 5, 6, 7, 9, 21, 53))


class Pen(NamedTuple):
    """The look of a cell: SGR attributes, and the parameters of both colours."""

    attributes: frozenset[int] = frozenset()
    foreground: tuple[int, ...] = ()
    background: tuple[int, ...] = ()

    def after(self, parameters: list[int]) -> Pen:
        """Returns the pen after an SGR sequence."""
        pen, rest = self, list(parameters or [0])
        while rest:
            code = rest.pop(0)
            if code in (38, 48):
                count = 4 if rest[:1] == [2] else 2
                color, rest = (code, *rest[:count]), rest[count:]
                pen = pen._replace(foreground=color) if code == 38 else pen._replace(background=color)
            elif code == 0:
                pen = Pen()
            elif code < 10:
                pen = pen._replace(attributes=pen.attributes | {code})
            elif code in _OFF:
                pen = pen._replace(attributes=pen.attributes - _OFF[code])
            elif 30 <= code < 40 or 90 <= code < 98:
                pen = pen._replace(foreground=() if code == 39 else (code,))
            elif 40 <= code < 50 or 100 <= code < 108:
                pen = pen._replace(background=() if code == 49 else (code,))
        return pen


# What the status line says of a compiled program.
COMPILED = "compiled (in|before)"


class TerminalScreen:
    """The cells that a terminal shows after some output. Lines that scroll off the top are kept.

    Like the terminal itself, it has two screens: the workbench uses the alternate one, and messages in the shell the
    other. It understands what Textual and the workbench write.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""
        self._shell: list[list[tuple[str, Pen]]] | None = None
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        """Changes the size. What was shown is lost: programs draw everything again."""
        self._columns, self._rows = columns, rows
        self._cells: list[list[tuple[str, Pen]]] = []
        self._row = self._column = 0
        self._pen = Pen()

    @property
    def cells(self) -> list[list[tuple[str, Pen]]]:
        """The lines, each with the text and the look of its cells. The cell after a wide character has no text."""
        return self._cells

    @property
    def visible(self) -> list[list[tuple[str, object]]]:
        """What a user sees of each cell: of a space, neither the colour of text nor whether it is bold or dim."""
        return [
            [(text, pen.background if text == " " and not pen.attributes & _ON_SPACES else pen) for text, pen in line]
            for line in self._cells
        ]

    @property
    def text(self) -> str:
        return "\n".join("".join(text for text, _ in line).rstrip() for line in self._cells)

    def feed(self, data: bytes) -> None:
        """Processes output. A sequence or a character that is incomplete waits for the rest."""
        text, end = self._rest + self._decode(data), 0
        for token in _TOKENS.finditer(text):
            if token.start() != end:
                break
            end = token.end()
            self._take(token)
        self._rest = text[end:]

    def _take(self, token: re.Match[str]) -> None:
        parameters, final = token.groups()
        if final is not None:
            self._control(parameters, final)
        elif token[0] == "\r":
            self._column = 0
        elif token[0] == "\n":
            self._row += 1
        elif token[0] >= " ":
            for character in token[0]:
                self._put(character)

    def _control(self, parameters: str, final: str) -> None:
        if parameters.startswith("?"):
            if parameters == "?1049" and final in "hl":
                self._cells, self._shell = ([], self._cells) if final == "h" else (self._shell or [], None)
                self._row, self._column = len(self._cells), 0
            return
        numbers = [int(number or 0) for number in parameters.split(";")] if re.fullmatch(r"[\d;]*", parameters) else []
        if final == "H":
            row, column = (*numbers, 1, 1)[:2] if numbers != [0] else (1, 1)
            self._row, self._column = max(row, 1) - 1, max(column, 1) - 1
        elif final == "m":
            self._pen = self._pen.after(numbers)
        elif final in "JK" and numbers in ([2], [0]):
            self._cells = [] if final == "J" and numbers == [2] else self._cells

    def _put(self, character: str) -> None:
        width = get_character_cell_size(character)
        while len(self._cells) <= self._row:
            self._cells.append([])
        line = self._cells[self._row]
        line += [(" ", Pen())] * (self._column + width - len(line))
        if not width and self._column:
            line[self._column - 1] = (line[self._column - 1][0] + character, self._pen)
            return
        line[self._column : self._column + width] = [(character, self._pen), *[("", self._pen)] * (width - 1)]
        self._column += width


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
        self.screen = TerminalScreen(columns, rows)
        # The time and the number of bytes of each read.
        self.reads: list[tuple[float, int]] = []
        self.last = self.started

    def read(self, timeout: float) -> int:
        """Reads the available output, waiting at most `timeout` seconds; returns the number of bytes."""
        if not select.select([self.master], [], [], timeout)[0]:
            return 0
        data = os.read(self.master, 1 << 16)
        self.last = time.monotonic()
        self.seen += data
        self.screen.feed(data)
        self.reads.append((self.last, len(data)))
        return len(data)

    @property
    def text(self) -> str:
        """The lines on the screen. The output has no whole texts, because only cells that change are written."""
        return self.screen.text

    def until_compiled(self, timeout: float) -> float:
        """Seconds until the program is compiled; an earlier session may have compiled it."""
        start = time.monotonic()
        self.match(COMPILED, timeout)
        return self.last - start

    def until(self, text: str, timeout: float) -> float:
        """Seconds until `text` is on the screen."""
        start = time.monotonic()
        self.match(re.escape(text), timeout)
        return self.last - start

    def match(self, pattern: str, timeout: float) -> re.Match[str]:
        """Waits until `pattern` matches the text on the screen; returns the last match."""
        start = time.monotonic()
        while not (found := list(re.finditer(pattern, self.text))):
            if time.monotonic() - start > timeout:
                raise TimeoutError(f"waited {timeout} s for {pattern!r}; there was {self.text[-2000:]!r}")
            self.read(0.05)
        return found[-1]

    def forget(self) -> None:
        """Discards the output, not what is on the screen."""
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
        self.screen.resize(columns, rows)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.killpg(self.process.pid, signal.SIGWINCH)
        self.read(0.01)

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()


def skip_tour(state: Path) -> None:
    """Makes a workbench with its state in this folder start as after its first script, without the tour."""
    record_first_script("any.py", state)


def environment(colors: str, state: Path) -> dict[str, str]:
    """Returns the environment of a workbench with its state in `state`; `colors` is `truecolor` or `256`."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    skip_tour(state)
    kept |= {"BUDDY_TUI_STATE": str(state), "BUDDY_TUI_CONFIG": str(state / "none.toml")}
    truecolor = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    return kept | (truecolor if colors == "truecolor" else {"TERM": "tmux-256color"})
