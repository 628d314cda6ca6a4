"""The output of a benchmark: a readable table on stderr, one JSON object on stdout."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from buddy.app.reports.formatting import table
from buddy.compiler.support.target import cores, host


def parser(summary: str | None, repeats: int, what: str) -> argparse.ArgumentParser:
    """Returns the common options of benchmarks: `--repeats` (of `what`) and `--tiny`."""
    found = argparse.ArgumentParser(description=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--repeats", type=int, default=repeats, metavar="N", help=f"{what} ({repeats})")
    found.add_argument("--tiny", action="store_true", help="small sizes, to see that the benchmark works")
    return found


def machine() -> dict[str, object]:
    """Returns the machine, and its load at the start."""
    load = os.getloadavg()[0]
    return {"cpu": _cpu(), "vectors": host().name, "cores": cores(), "load": round(load, 2), "os": platform.platform()}


def tell(found: Mapping[str, Any], heading: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints the rows to stderr and all results to stdout."""
    print(table(heading, rows, frozenset(heading[:1])), file=sys.stderr)
    print(json.dumps(found, indent=2, allow_nan=False))


def between(figures: Mapping[str, float], unit: str = "", scale: float = 1.0) -> str:
    """Returns a spread as text: `0.83 (0.81 to 0.86)`."""
    median, low, high = (f"{figures[name] * scale:.3g}" for name in ("median", "low", "high"))
    return f"{median}{unit} ({low} to {high})"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
