"""The cost of a step of the cursor with and without the source pane, in a real pseudo-terminal on the real engine.

    python benchmarks/source_link.py [--steps 40] [--rounds 5] [--tiny] [--columns 160] [--rows 50]

Holds an arrow key in the graph, in the IR, in assembly and in the source pane of `samples/bert.py`. Rounds with the
pane and without it are interleaved, and step over the same rows. `cpu` is the processor time of the workbench for a
step while a key is held at 30 per second: on an idle machine, the time until it can answer the next key. `wall` is the
time from a single key to the last byte of its answer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from support import printing
from support.terminal import Terminal, environment

# The maximum of the median processor time of a step.
BUDGET_MS = 16.0
# What ends the answer to a key; the panes follow a cursor that stays longer than this.
QUIET = 0.05
KEYS_PER_SECOND = 30
SINGLE_KEYS = 5
# The places where keys are held: the keys that go there from the graph pane, and back to it.
PLACES = {
    "graph": ("", ""),
    "toplevel IR": ("3\t\t", "\x1b[Z\x1b[Z"),
    "assembly": ("0\t\t", "\x1b[Z\x1b[Z"),
    "source": ("\t\t\t", "\x1b[Z\x1b[Z\x1b[Z"),
}
DOWN, UP = "\x1b[B", "\x1b[A"


def cpu_seconds(pid: int) -> float:
    """Returns the processor time of all threads of a process, in seconds."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def hold(terminal: Terminal, key: str, steps: int) -> float:
    """Returns the milliseconds of processor time for each of `steps` keys, sent at the rate of a held key."""
    before = cpu_seconds(terminal.process.pid)
    for _ in range(steps):
        os.write(terminal.master, key.encode())
        terminal.wait(1 / KEYS_PER_SECOND)
    terminal.settle()
    return (cpu_seconds(terminal.process.pid) - before) * 1e3 / steps


def measure(terminal: Terminal, options: argparse.Namespace, place: str) -> dict[str, dict[str, float]]:
    """Steps at one place, with the pane and, except in the pane itself, without it."""
    there, back = PLACES[place]
    sides = ("with",) if place == "source" else ("with", "without")
    walls: dict[str, list[float]] = {side: [] for side in sides}
    costs: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(options.rounds):
        ordered = sides if number % 2 == 0 else sides[::-1]
        for turn, side in enumerate(ordered):
            if side == "with":
                terminal.key("gP", 0.5)
            terminal.key(there, 0.5)
            key = (DOWN, UP)[turn if len(sides) > 1 else number % 2]
            costs[side].append(hold(terminal, key, options.steps))
            walls[side] += [terminal.key(key, QUIET)[0] for _ in range(SINGLE_KEYS)]
            terminal.settle()
            terminal.key(back, 0.5)
            if side == "with":
                terminal.key("gP", 0.5)
    return {
        side: {
            "wall_median_ms": round(statistics.median(walls[side]), 2),
            "wall_worst_ms": round(max(walls[side]), 2),
            "cpu_median_ms": round(statistics.median(costs[side]), 2),
            "cpu_worst_ms": round(max(costs[side]), 2),
        }
        for side in sides
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="the keys of a round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tiny", action="store_true", help="two narrow layers")
    parser.add_argument("--columns", type=int, default=160)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--timeout", type=float, default=400.0, help="seconds for the compilation")
    options = parser.parse_args()
    command = [sys.executable, "-m", "buddy.app.cli", "--no-mouse", "samples/bert.py", *(["--tiny"] * options.tiny)]
    with tempfile.TemporaryDirectory() as folder:
        terminal = Terminal(command, options.columns, options.rows, environment("truecolor", Path(folder)))
        try:
            terminal.until_compiled(options.timeout)
            terminal.settle(1.0)
            # The files of the graph are opened when the pane is shown first.
            terminal.key("gP", 2.0)
            terminal.key("gP", 1.0)
            found = {place: measure(terminal, options, place) for place in PLACES}
        finally:
            terminal.end()
    names = ("wall_median_ms", "wall_worst_ms", "cpu_median_ms", "cpu_worst_ms")
    rows = [
        (place, side, *(f"{figures[name]:.1f}" for name in names), "ok" if figures[names[2]] <= BUDGET_MS else "OVER")
        for place, sides in found.items()
        for side, figures in sides.items()
    ]
    given = {**vars(options), "machine": printing.machine(), "budget_ms": BUDGET_MS}
    printing.tell({**given, "found": found}, ("place", "pane", *names, ""), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
