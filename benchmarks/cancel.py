"""The time from ctrl+c to a settled screen, for each kind of job, in a real pseudo-terminal.

    python benchmarks/cancel.py [--source samples/bert.py] [--after 1.5]

Each job is cancelled after it has shown its progress for `--after` seconds. The time is until the header says `engine
ready` and the status line says `Cancelled`; also printed is what the status line says then. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support import printing
from support.engine import empty_object_cache
from support.terminal import Terminal, environment

CANCEL = "\x03"
BUDGET_SECONDS = 0.5
# A script that does not end by itself, for the cancelling of a capture.
# A program that compiles in moments, and whose runs take seconds.
SLOW = """
import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(12))).eval()
example_inputs = torch.randn(2048, 2048)
"""
ENDLESS = "import time\nimport torch\nwhile True:\n    time.sleep(0.01)\n"
_SETTLED = re.compile(r"engine ready[\s\S]*Cancelled[^\n]*")


@dataclass(frozen=True)
class Job:
    """How a job starts, and the text on the screen while it runs."""

    name: str
    keys: tuple[str, ...]
    shows: str


# Each from the panes of `SLOW`, with the graph pane focused.
JOBS = (
    Job("run", ("r",), "running"),
    Job("profile", ("gc",), "profiling"),
    Job("tune", ("\t", "f", "\r"), "tuning"),
    Job("export", ("gx", "\x15object\r", "\x15{folder}/exported\r"), "exporting"),
)


def cancelled(terminal: Terminal, timeout: float) -> tuple[float, str]:
    """Press ctrl+c. Returns the seconds until the screen is settled, and its status line."""
    start = time.monotonic()
    os.write(terminal.master, CANCEL.encode())
    terminal.match(_SETTLED.pattern, timeout)
    seconds = terminal.last - start
    terminal.settle(0.5)
    return seconds, next(line.strip() for line in terminal.text.splitlines()[::-1] if "Cancelled" in line)


@contextmanager
def opened(options: argparse.Namespace, folder: Path, source: str) -> Iterator[Terminal]:
    command = [sys.executable, "-m", "buddy.app.cli", "--no-mouse", *source.split()]
    terminal = Terminal(command, options.columns, options.rows, environment("truecolor", folder))
    try:
        yield terminal
    finally:
        terminal.end()


def measure(options: argparse.Namespace, folder: Path) -> dict[str, tuple[float, str]]:
    found: dict[str, tuple[float, str]] = {}
    for name, program in (("endless", ENDLESS), ("slow", SLOW)):
        (folder / f"{name}.py").write_text(program)
    with opened(options, folder, str(folder / "endless.py")) as terminal:
        terminal.until("ctrl+c", options.timeout)
        terminal.wait(options.after)
        found["capture"] = cancelled(terminal, options.timeout)
    with opened(options, folder, options.source) as terminal:
        terminal.match(r"pass \d+/\d+", options.timeout)
        terminal.wait(options.after)
        found["compile"] = cancelled(terminal, options.timeout)
    with opened(options, folder, str(folder / "slow.py")) as terminal:
        terminal.until_compiled(options.timeout)
        for job in JOBS:
            for keys in job.keys:
                terminal.key(keys.format(folder=folder), 0.3)
            terminal.until(job.shows, options.timeout)
            terminal.wait(options.after)
            found[job.name] = cancelled(terminal, options.timeout)
            # Until the message disappears, and back to the graph pane.
            terminal.wait(7.0)
            terminal.key("\t\t\t" if "\t" in job.keys else "")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="samples/bert.py", help="a script with its arguments")
    parser.add_argument("--after", type=float, default=1.5, help="seconds of a job before it is cancelled")
    parser.add_argument("--columns", type=int, default=160)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--timeout", type=float, default=400.0, help="seconds for anything")
    options = parser.parse_args()
    machine = printing.machine()
    with tempfile.TemporaryDirectory() as folder, empty_object_cache():
        found = measure(options, Path(folder))
    met = {name: seconds <= BUDGET_SECONDS for name, (seconds, _) in found.items()}
    figures = {name: {"seconds": seconds, "says": text} for name, (seconds, text) in found.items()}
    rows = [(name, f"{seconds:.2f}", text) for name, (seconds, text) in found.items()]
    result = {"source": options.source, "machine": machine, "cancel": figures, "budget": BUDGET_SECONDS, "met": met}
    printing.tell(result, ("job", "seconds", "says"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
