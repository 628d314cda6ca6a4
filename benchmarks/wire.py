"""The bytes that the workbench sends to its terminal from its start until a program is compiled, and in any one second.

    python benchmarks/wire.py [--columns 160] [--rows 50] [--colors truecolor|256] [--source samples/bert.py]

Over a slow ssh line, these bytes are the time that the screen lags behind. No start finds a saved session; the first
one has an empty object cache, so compiling takes longest, and the others share its cache, so stages follow each other
fastest. The end is the first second without output. Prints one JSON object; with `--save FILE`, the output of the last
start is written to FILE.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from support import printing
from support.engine import empty_object_cache
from support.terminal import Terminal, environment
from support.timing import median_and_quartiles

# Bytes, at 160 columns and 50 rows.
BUDGETS = {"total": 200_000, "worst_second": 60_000}
Found = dict[str, float]


def worst_second(reads: Sequence[tuple[float, int]]) -> int:
    """Returns the largest number of bytes in any second."""
    worst, size, first = 0, 0, 0
    for time, count in reads:
        size += count
        while reads[first][0] < time - 1.0:
            size -= reads[first][1]
            first += 1
        worst = max(worst, size)
    return worst


def measure_once(options: argparse.Namespace) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "buddy.app.cli", *options.source]
        terminal = Terminal(command, options.columns, options.rows, environment(options.colors, Path(folder)))
        try:
            terminal.until("nodes", options.timeout)
            opened = len(terminal.seen)
            terminal.until_compiled(options.timeout)
            compiled = terminal.last - terminal.started
            terminal.settle(1.0)
        finally:
            terminal.end()
        if options.save:
            options.save.write_bytes(terminal.seen)
        return {
            "compiled_s": compiled,
            "until_captured": opened,
            "total": len(terminal.seen),
            "worst_second": worst_second(terminal.reads),
            "writes": len(terminal.reads),
        }


def _between(figures: Found) -> str:
    return f"{figures['median']:,.0f} ({figures['low']:,.0f} to {figures['high']:,.0f})"


def main() -> int:
    parser = printing.parser(__doc__, 2, "starts after the first one")
    parser.add_argument("--columns", type=int, default=160)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--colors", choices=("truecolor", "256"), default="truecolor")
    parser.add_argument("--timeout", type=float, default=400.0, help="seconds for the compilation")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the output of the last repeat to FILE")
    parser.add_argument("--source", nargs=argparse.REMAINDER, default=["samples/bert.py"], help="a script, arguments")
    options = parser.parse_args()
    options.source += ["--tiny"] * options.tiny
    machine = printing.machine()
    with empty_object_cache():
        first, *others = [measure_once(options) for _ in range(1 + options.repeats)]
    found = {name: median_and_quartiles([run[name] for run in others]) for name in first}
    met = {name: max(first[name], found[name]["high"]) <= limit for name, limit in BUDGETS.items()}
    result = {"source": options.source, "screen": [options.columns, options.rows, options.colors], "machine": machine}
    rows = [(name, f"{first[name]:,.0f}", _between(found[name]), f"{BUDGETS.get(name, '')}") for name in first]
    figures = {"first": first, "cached": found, "budgets": BUDGETS, "met": met}
    printing.tell({**result, **figures}, ("figure", "first", "cached", "budget"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
