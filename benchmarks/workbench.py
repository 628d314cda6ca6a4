"""The workbench's budgets, measured in a real pseudo-terminal on the real engine; prints one JSON object.

    python benchmarks/workbench.py [--blocks 226] [--columns 160] [--rows 50] [--colors truecolor|256]
    python benchmarks/workbench.py --lines 1000000
    python benchmarks/workbench.py --source samples/bert.py

`--blocks` sets the length of the program: 226 feed-forward blocks give an LLVM-dialect stage of about 200,000 lines.
`--lines` has a plug-in's pass add a function of that many lines to a short program, another one change a line in 100 of
it, and a third take it away; `--source` opens a script as it is. Times are from the key to the last byte of its answer.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import msgspec

from buddy.app.workspace import Workspace
from buddy.compiler.presets import default_recipe
from buddy.compiler.recipe import PassStep
from buddy.compiler.text.diff import difference

PROGRAM = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x + self.down(nn.functional.gelu(self.up(x))))


model = nn.Sequential(*(Block(64) for _ in range({blocks}))).eval()
example_inputs = torch.randn(32, 64)
"""
PLUGIN = Path(__file__).parent / "programs" / "grow.py"
BUDGETS = {
    "first_paint_ms": 500,
    "page_ms": 50,
    "page_bytes_truecolor": 45_000,
    "page_bytes_256": 30_000,
    "idle_bytes_per_s": 0,
    "rss_mb": 150,
    "structural_diff_of_50k_lines_s": 1.5,
    "diff_page_ms": 50,
}
QUIET = 0.08
DIFFED_LINES = 50_000
LOOK_BACK = 12
# The terminal itself says what it can and how large it is; Textual would believe these instead.
_NOT_OURS = ("COLORTERM", "NO_COLOR", "COLUMNS", "LINES")
ESCAPE = re.compile(rb"\x1b\[[0-9;?>]*\$?[a-zA-Z]|\x1b[=>]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


class Terminal:
    """A program in a pseudo-terminal; everything it writes is read at once and can be waited for."""

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
        """Take what has been written, waiting at most `timeout` seconds; returns how many bytes."""
        if not select.select([self.master], [], [], timeout)[0]:
            return 0
        data = os.read(self.master, 1 << 16)
        self.last = time.monotonic()
        self.seen += data
        return len(data)

    @property
    def text(self) -> str:
        """What has been written since the last `forget`, without escape sequences."""
        return ESCAPE.sub(b"", bytes(self.seen)).decode(errors="replace")

    def until(self, text: str, timeout: float) -> float:
        """Seconds until `text` has been written since the last `forget`."""
        start = time.monotonic()
        while text not in self.text:
            if time.monotonic() - start > timeout:
                raise TimeoutError(f"waited {timeout} s for {text!r}; there was {bytes(self.seen[-2000:])!r}")
            self.read(0.05)
        return self.last - start

    def forget(self) -> None:
        self.seen.clear()

    def wait(self, seconds: float) -> None:
        """Read for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read(0.05)

    def settle(self) -> None:
        """Read until nothing has come for a while."""
        while self.read(0.4):
            pass

    def key(self, keys: str) -> tuple[float, int]:
        """Send keys; the milliseconds to the last byte of the answer, and the answer's bytes."""
        start, size = time.monotonic(), 0
        os.write(self.master, keys.encode())
        while got := self.read(QUIET if size else 1.0):
            size += got
        return (self.last - start) * 1e3 if size else 0.0, size

    def resize(self, columns: int, rows: int) -> None:
        """Tell the program that the terminal has another size."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.killpg(self.process.pid, signal.SIGWINCH)
        self.read(0.01)

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()


def environment(colors: str, state: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    kept |= {"BUDDY_TUI_STATE": str(state), "BUDDY_TUI_CONFIG": str(state / "none.toml")}
    truecolor = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    return kept | (truecolor if colors == "truecolor" else {"TERM": "tmux-256color"})


def prepare(options: argparse.Namespace, folder: Path) -> list[str]:
    """What to open: a script as it is, or a program with a recipe of its own and perhaps a plug-in."""
    if options.source:
        return options.source
    source = folder / "program.py"
    source.write_text(PROGRAM.format(blocks=1 if options.lines else options.blocks))
    workspace = Workspace(str(source), (), folder)
    workspace.begin(default_recipe())
    if not options.lines:
        # One function, so that no block is shared.
        workspace.edit(msgspec.structs.replace(workspace.recipe, partition="whole"), "whole")
        return [str(source)]
    steps = list(workspace.recipe.steps)
    place = next(k for k, step in enumerate(steps) if step.level != "graph")
    phase = steps[place].phase
    names = (("grow", (("lines", options.lines),)), ("touch", ()), ("shorten", ()))
    steps[place:place] = [PassStep(name, options=given, phase=phase) for name, given in names]
    workspace.edit(msgspec.structs.replace(workspace.recipe, steps=tuple(steps)), "grown")
    return ["--plugin", str(PLUGIN), str(source)]


def memory(pid: int) -> float:
    """Resident memory of a process in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024  # type: ignore[union-attr]


def spread(figures: list[float]) -> dict[str, float]:
    ordered = sorted(figures) or [0.0]
    return {
        "median": round(statistics.median(ordered), 1),
        "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 1),
        "max": round(ordered[-1], 1),
        "runs": len(ordered),
    }


def during_compile(terminal: Terminal, timeout: float) -> dict[str, float]:
    """Move between two lines of a stage that is there already until the compilation is whole: times to the answer."""
    waits: list[float] = []
    end = time.monotonic() + timeout
    while "compiled in" not in terminal.text:
        if time.monotonic() > end or "[!]" in terminal.text:
            raise TimeoutError(f"not compiled in {timeout} s, or not at all; there was {terminal.text[-2000:]!r}")
        down = len(waits) % 2 == 0
        terminal.forget()
        os.write(terminal.master, b"j" if down else b"k")
        waits.append(terminal.until(f"line {2 if down else 1} of", 10) * 1e3)
        time.sleep(0.05)
        terminal.read(0)
    return spread(waits)


def pages(terminal: Terminal, count: int) -> tuple[dict[str, float], dict[str, float]]:
    """Times and bytes of a page down."""
    answers = [terminal.key("\x06") for _ in range(count)]
    return spread([took for took, _ in answers]), spread([float(size) for _, size in answers])


def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    command = [sys.executable, "-m", "buddy.app.cli", "--no-mouse", *prepare(options, folder)]
    terminal = Terminal(command, options.columns, options.rows, environment(options.colors, folder))
    try:
        found: dict[str, object] = {"first_paint_ms": round(terminal.until("engine starting", 20) * 1e3)}
        found["captured_s"] = round(terminal.until("[x]", 120), 2)
        terminal.key("\t\t")
        terminal.key("1")
        terminal.until("line 1 of", 30)
        terminal.wait(1.0)
        found["key_during_compile_ms"] = during_compile(terminal, options.timeout)
        terminal.settle()
        found["stage_lines"] = go_to_grown(terminal) if options.lines else go_to_longest(terminal)
        found["page_ms"], found["page_bytes"] = pages(terminal, 30)
        found["to_the_end_ms"] = round(terminal.key("G")[0], 1)
        found |= diff_in_terminal(terminal, options.timeout)
        found["rss_mb"] = round(memory(terminal.process.pid), 1)
        terminal.settle()
        terminal.forget()
        terminal.wait(3)
        found["idle_bytes_per_s"] = round(len(terminal.seen) / 3, 1)
        return found
    finally:
        terminal.end()


def diff_in_terminal(terminal: Terminal, timeout: float) -> dict[str, object]:
    """Seconds from the key to each kind of diff of the longest stage from the one before it, and pages of the last."""
    found: dict[str, object] = {}
    for how in ("line", "structural"):
        terminal.settle()
        terminal.forget()
        os.write(terminal.master, b"d")
        found[f"{how}_diff_of_longest_s"] = round(terminal.until("place", timeout), 2)
    terminal.settle()
    terminal.key("\x1b[H")
    found["diff_page_ms"], found["diff_page_bytes"] = pages(terminal, 30)
    return found


def structural_diff() -> float:
    """Seconds that a structural diff of two texts of 50,000 lines takes, all of them renumbered, one in 100 new."""
    line = "    %{} = vector.fma %{}, %{}, %{} {{fast = 1 : i32, width = {} : i64}} : vector<16xf32>"
    one = [line.format(k, max(k - 1, 0), k // 2, k // 3, k % 7) for k in range(DIFFED_LINES)]
    other = [line.format(k + 9, max(k - 1, 0) + 9, k // 2 + 9, k // 3 + 9, k % 7) for k in range(DIFFED_LINES)]
    for place in range(DIFFED_LINES - 100, 0, -100):
        other[place] = f"    %{place + 9} = vector.broadcast %{place // 2 + 9} : f32 to vector<16xf32>"
    start = time.perf_counter()
    found = difference("\n".join(one), "\n".join(other), "structural")
    assert len(found.hunks) == DIFFED_LINES // 100 - 1
    return round(time.perf_counter() - start, 2)


def go_to_longest(terminal: Terminal) -> int:
    """Go back from the LLVM dialect to the longest of the last few snapshots; returns its number of lines."""
    terminal.key("8")
    lengths = []
    for _ in range(LOOK_BACK):
        terminal.forget()
        terminal.key("[")
        lengths.append(stage_lines(terminal))
    for _ in range(LOOK_BACK - 1 - lengths.index(max(lengths))):
        terminal.key("]")
    terminal.settle()
    return max(lengths)


def go_to_grown(terminal: Terminal) -> int:
    """Go to the stage in which one line in 100 of the long function has changed; returns its number of lines."""
    for keys in ("g", "f", "@grown", "\r"):
        terminal.key(keys)
    terminal.settle()
    terminal.forget()
    terminal.key("]")
    lines = stage_lines(terminal)
    terminal.key("\x1b[H")
    return lines


def stage_lines(terminal: Terminal) -> int:
    """The length of the stage on the screen, as its header gives it."""
    terminal.settle()
    told = re.findall(r"line [\d,]+ of ([\d,]+)", terminal.text)
    return int(told[-1].replace(",", "")) if told else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=226)
    parser.add_argument("--lines", type=int, default=0, help="a stage of so many lines, made by a pass of a plug-in")
    parser.add_argument("--source", nargs=argparse.REMAINDER, default=[], help="a script and its arguments, as it is")
    parser.add_argument("--columns", type=int, default=160)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--colors", choices=("truecolor", "256"), default="truecolor")
    parser.add_argument("--timeout", type=float, default=400.0, help="seconds for the compilation")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {"structural_diff_of_50k_lines_s": structural_diff(), **measure(options, Path(folder))}
    print(json.dumps({**vars(options), **found, "budgets": BUDGETS}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
