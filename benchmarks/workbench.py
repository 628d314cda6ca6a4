"""The workbench's budgets, measured in a real pseudo-terminal on the real engine: a table on stderr, JSON on stdout.

    python benchmarks/workbench.py [--blocks 226] [--columns 160] [--rows 50] [--colors truecolor|256]
    python benchmarks/workbench.py --lines 1000000
    python benchmarks/workbench.py --source samples/bert.py
    python benchmarks/workbench.py --delay 0.05 --source samples/bert.py

`--blocks` sets the length of the program: 226 feed-forward blocks give an LLVM-dialect stage of about 200,000 lines.
With `--lines`, a plug-in's pass adds a function of that many lines to a short program, another one changes a line in
100 of it, and a third removes it; `--source` opens a script. `--delay` connects to the engine over a link with so many
seconds of latency in each direction. Times are from the key to the last byte of its answer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from support import printing
from support.terminal import COMPILED, Terminal, environment

from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import PassStep
from buddy.compiler.protocol.text.diff import difference

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
ROOT = Path(__file__).resolve().parent.parent
PLUGIN = ROOT / "benchmarks" / "programs" / "grow.py"
FAR = ROOT / "benchmarks" / "support" / "far.py"
# The maximum of each measurement; for a spread, of its median.
BUDGETS = {
    "first_paint_ms": 500,
    "reopened_ms": 1500,
    "reopened_cpu_s": 1.5,
    "key_during_compile_ms": 50,
    "page_ms": 50,
    "page_bytes_truecolor": 45_000,
    "page_bytes_256": 30_000,
    "idle_bytes_per_s": 0,
    "rss_mb": 150,
    "structural_diff_of_50k_lines_s": 1.5,
    "diff_page_ms": 50,
    "first_page_of_a_stage_ms": 400,
    "scroll_key_ms": 50,
}
STARTS = 5
STEPS = 12
SCROLLED = 200
DIFFED_LINES = 50_000
LOOK_BACK = 12
Found = dict[str, object]


def prepare(options: argparse.Namespace, folder: Path) -> list[str]:
    """Returns the arguments to open a script, or a generated program with a recipe and perhaps a plug-in."""
    if options.source:
        return options.source
    source = folder / "program.py"
    source.write_text(PROGRAM.format(blocks=1 if options.lines else options.blocks))
    workspace = Workspace(str(source), (), folder)
    workspace.load(default_recipe())
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


# The counts of a diff, or that there is no difference, in the title of the pane.
DIFFED = r"in [\d,]+ changes?|no (\w+ )?change"


def memory(pid: int) -> float:
    """Returns the resident memory of a process in MB."""
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
    """Moves between two lines of a finished stage until the compilation ends; returns the response times."""
    waits: list[float] = []
    end = time.monotonic() + timeout
    while not re.search(COMPILED, terminal.text):
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
    """Times and bytes of page-down keys."""
    answers = [terminal.key("\x06") for _ in range(count)]
    return spread([took for took, _ in answers]), spread([float(size) for _, size in answers])


def first_paint(command: list[str], options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Milliseconds from the start of the process to the first frame.

    A first start, which fills caches, does not count.
    """
    found = []
    for _ in range(1 + STARTS):
        terminal = Terminal(command, options.columns, options.rows, environment(options.colors, folder))
        try:
            terminal.until("engine starting", 20)
            found.append((terminal.last - terminal.started) * 1e3)
        finally:
            terminal.end()
    return spread(found[1:])


def reopened(command: list[str], options: argparse.Namespace, folder: Path) -> Found:
    """Measures the start of the workbench until it shows the graph and the IR of a program that was opened before.

    Returns milliseconds, and seconds of CPU of the workbench and its engine, which depend less on the load of the
    machine. Those of the processes that the engine starts meanwhile do not count.
    """
    found, used = [], []
    for _ in range(STARTS):
        terminal = Terminal(command, options.columns, options.rows, environment(options.colors, folder))
        try:
            terminal.until("last session", 30)
            terminal.match(rf"line [\d,]+ of|{DIFFED}", 30)  # the session has saved the diff, too
            found.append((terminal.last - terminal.started) * 1e3)
            used.append(sum(map(cpu_seconds, [terminal.process.pid, *children(terminal.process.pid)])))
        finally:
            terminal.end()
    return {"reopened_ms": spread(found), "reopened_cpu_s": round(statistics.median(used), 2)}


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process so far, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(options: argparse.Namespace, folder: Path) -> Found:
    command = [sys.executable, "-m", "buddy.app.cli", "--no-mouse", *prepare(options, folder)]
    found: Found = {"first_paint_ms": first_paint(command, options, folder)}
    terminal = Terminal(command, options.columns, options.rows, environment(options.colors, folder))
    try:
        terminal.until("[x]", 120)
        found["captured_s"] = round(terminal.last - terminal.started, 2)
        terminal.key("\t\t")
        terminal.key("1")
        terminal.until("line 1 of", 30)
        terminal.wait(1.0)
        found["key_during_compile_ms"] = during_compile(terminal, options.timeout)
        terminal.settle()
        found["stage_lines"] = go_to_grown(terminal, options) if options.lines else go_to_longest(terminal)
        found["page_ms"], found[f"page_bytes_{options.colors}"] = pages(terminal, 30)
        found["to_the_end_ms"] = round(terminal.key("G")[0], 1)
        found |= diff_in_terminal(terminal, options.timeout)
        found |= at_rest(terminal)
    finally:
        terminal.end()
    if options.source:
        # Generated programs are too long to be saved.
        found |= reopened(command, options, folder)
    return found


def at_rest(terminal: Terminal) -> Found:
    """Returns the memory of the idle workbench, and its output."""
    used = round(memory(terminal.process.pid), 1)
    terminal.settle()
    terminal.forget()
    terminal.wait(3)
    return {"rss_mb": used, "idle_bytes_per_s": round(len(terminal.seen) / 3, 1)}


# ---- over a slow connection ------------------------------------------------------------------------------------------


def measure_remote(options: argparse.Namespace, folder: Path) -> Found:
    """Measures the bytes over the connection, with times, until all is compiled, and while stepping and scrolling."""
    # The path of a socket has at most 107 bytes, so the folder's name is short.
    link = Path(tempfile.mkdtemp(prefix="far"))
    program = link / "buddy-tui"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m buddy.app.cli "$@"\n')
    program.chmod(0o700)
    words = ["--remote", "far", "--ssh", f"{sys.executable} {FAR} {link} {options.delay}"]
    words += ["--remote-program", str(program), "--remote-folder", os.getcwd(), *options.source]
    command = [sys.executable, "-m", "buddy.app.cli", "--no-mouse", *words]
    terminal = Terminal(command, options.columns, options.rows, environment(options.colors, folder))
    try:
        terminal.until_compiled(options.timeout)
        found: Found = {"until_compiled_kb": moved(link)}
        terminal.settle(1.0)
        terminal.key("\t\t", 1.0)
        terminal.key("8", 1.0)
        return found | step_over_link(terminal, link) | scroll_over_link(terminal, link) | at_rest(terminal)
    finally:
        terminal.end()


def moved(link: Path) -> int:
    """Kilobytes received over the connection so far."""
    time.sleep(0.1)
    return sum(json.loads(file.read_text())["back"] for file in link.glob("*.json")) // 1000


def step_over_link(terminal: Terminal, link: Path) -> Found:
    """Milliseconds from the key to the first page of each stage, the bytes for each, and its length."""
    waits, sizes, lengths = [], [], []
    for _ in range(STEPS):
        before = moved(link)
        terminal.forget()
        waits.append(terminal.key("[", 1.0)[0])
        sizes.append(float(moved(link) - before))
        lengths.append(float(stage_lines(terminal)))
    for _ in range(STEPS - 1 - lengths.index(max(lengths))):
        terminal.key("]", 1.0)
    return {"first_page_of_a_stage_ms": spread(waits), "moved_for_it_kb": spread(sizes), "stage_lines": spread(lengths)}


def scroll_over_link(terminal: Terminal, link: Path) -> Found:
    """Scrolls down at the rate of a held key, and by pages: the times until the screen shows the lines."""
    before = moved(link)
    waits = [terminal.key("j", 1 / 30)[0] for _ in range(SCROLLED)]
    paged = [terminal.key("\x06", 0.5)[0] for _ in range(20)]
    return {"scroll_key_ms": spread(waits), "page_ms": spread(paged), "moved_by_scrolling_kb": moved(link) - before}


# ---- diffs and stages ------------------------------------------------------------------------------------------------


def diff_in_terminal(terminal: Terminal, timeout: float) -> dict[str, object]:
    """Seconds from the key to each kind of diff of the longest stage with the previous one, and pages of the last."""
    found: dict[str, object] = {}
    for how in ("line", "structural"):
        terminal.settle()
        terminal.forget()
        os.write(terminal.master, b"d")
        start = time.monotonic()
        terminal.match(rf"{how} diff[^\n]*({DIFFED})", timeout)
        found[f"{how}_diff_of_longest_s"] = round(terminal.last - start, 2)
    terminal.settle()
    terminal.key("\x1b[H")
    found["diff_page_ms"], found["diff_page_bytes"] = pages(terminal, 30)
    return found


def structural_diff() -> float:
    """Seconds for a structural diff of two texts of 50,000 lines, all renumbered, with one in 100 new."""
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
    """Goes back from the LLVM dialect to the longest of the last few snapshots; returns its number of lines."""
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


def go_to_grown(terminal: Terminal, options: argparse.Namespace) -> int:
    """Goes to the stage in which one line in 100 of the long function has changed; returns its number of lines."""
    terminal.forget()
    for keys in ("g", "f", "@grown", "\r"):
        terminal.key(keys)
    # The pass that removes the function comes after a search of every stage: the header shows the stage's length.
    long = rf"of ([\d,]{{{len(f'{options.lines:,}')},}})"
    terminal.match(long, options.timeout)
    terminal.settle()
    terminal.forget()
    terminal.key("]")
    lines = int(terminal.match(long, options.timeout)[1].replace(",", ""))
    terminal.settle()
    terminal.key("\x1b[H")
    return lines


def stage_lines(terminal: Terminal) -> int:
    """Returns the length of the stage on the screen, from its header."""
    terminal.settle()
    told = re.findall(r"line [\d,]+ of ([\d,]+)", terminal.text)
    return int(told[-1].replace(",", "")) if told else 0


def rows(found: Found) -> list[tuple[object, ...]]:
    """Returns each measurement with its limit, as text."""
    told: list[tuple[object, ...]] = []
    for name, value in found.items():
        figure = value["median"] if isinstance(value, dict) else value
        more = f"{value['p95']:,} / {value['max']:,}" if isinstance(value, dict) else ""
        budget = BUDGETS.get(name)
        verdict = "" if budget is None or not isinstance(figure, int | float) else "ok" if figure <= budget else "OVER"
        told.append((name, f"{figure:,}", more, "" if budget is None else f"{budget:,}", verdict))
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=226)
    parser.add_argument("--lines", type=int, default=0, help="a stage of so many lines, made by a pass of a plug-in")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds each way to the engine; needs --source")
    parser.add_argument("--columns", type=int, default=160)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--colors", choices=("truecolor", "256"), default="truecolor")
    parser.add_argument("--timeout", type=float, default=400.0, help="seconds for the compilation")
    parser.add_argument("--source", nargs=argparse.REMAINDER, default=[], help="a script and its arguments")
    options = parser.parse_args()
    if options.delay and not options.source:
        parser.error("--delay needs --source: only a script can be opened over a slow link")
    with tempfile.TemporaryDirectory() as folder:
        if options.delay:
            found = measure_remote(options, Path(folder))
        else:
            found = {"structural_diff_of_50k_lines_s": structural_diff(), **measure(options, Path(folder))}
    given = {**vars(options), "machine": printing.machine()}
    heading = ("figure", "found", "p95 / max", "budget", "")
    printing.tell({**given, **found, "budgets": BUDGETS}, heading, rows(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
