"""The results of a benchmark: medians, spreads and ratios, as a Markdown table and as a plot."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from buddy.compiler.tools.bench.plan import EAGER, OURS, OURS_FROZEN

_RESAMPLES = 2000


def spread(values: Sequence[float], digits: int = 4) -> dict[str, float]:
    """Returns the median and quartiles of the values, rounded to `digits` significant digits, and their number."""
    at_least_two = values if len(values) > 1 else list(values) * 2
    low, median, high = statistics.quantiles(at_least_two, n=4, method="inclusive")
    statistics_by_name = {"median": median, "low": low, "high": high}
    rounded = {name: float(f"{value:.{digits}g}") for name, value in statistics_by_name.items()}
    return {**rounded, "runs": len(values)}


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Returns the spread of `above / below`, taken pair by pair."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def interval(values: Sequence[float], share: float = 0.95) -> tuple[float, float]:
    """Returns the confidence interval of the median at level `share`, by a percentile bootstrap with a fixed seed.

    B. Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979.
    """
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    cut = int((1 - share) / 2 * _RESAMPLES)
    return medians[cut], medians[-1 - cut]


def geometric_mean(values: Iterable[float]) -> float:
    """Returns the geometric mean of positive values, NaN of no values."""
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


_COLOURS = {
    OURS: "#2166ac", OURS_FROZEN: "#92c5de", EAGER: "#b2182b", "inductor": "#ef8a62", "freezing": "#fddbc7",
    "iree": "#999999",
}  # fmt: skip


def markdown(results: dict[str, Any]) -> str:
    """Returns the results of a benchmark as Markdown, one table per number of threads.

    Times are medians in ms, ratios are medians over rounds; compile times run from the ATen graph to a callable. The
    first ratio is the speedup of this compiler over the fastest other side that reads weights in place, the second that
    of this compiler with frozen weights over the fastest of all other sides.
    """
    parts = [_section(results, threads) for threads in results["limits"]]
    return "\n".join(parts)


def _section(results: dict[str, Any], threads: str) -> str:
    limits, subjects = results["limits"][threads], _subjects_with(results, threads)
    sides = list(dict.fromkeys(side for subject in subjects for side in subject["sides"]))
    head = [
        "",
        *sides,
        "fastest in place",
        "ratio (95 %)",
        "fastest other",
        "frozen: ratio (95 %)",
        "of FMA peak",
        "compile: cold / warm / inductor, s",
    ]
    rows = [_row(subject, sides, limits) for subject in subjects]
    mean = results["summary"][threads]
    lines = [
        f"### {threads} thread{'s' * (threads != '1')}: {limits['gflops']:.0f} GFLOP/s, {limits['gbytes']:.1f} GB/s",
        "",
    ]
    lines += ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    if mean["geometric_mean"]:
        text = f"Geometric mean over {mean['models']} models: {mean['geometric_mean']:.2f} × the fastest other side"
        frozen = mean.get("frozen_geometric_mean")
        tail = f"; with frozen weights {frozen:.2f} × the fastest of all others" if frozen else ""
        lines += ["", f"{text}, weights read in place{tail}."]
    loads = [subject["load"] for subject in subjects if "load" in subject]
    if loads:
        lines += ["", f"Load of the machine before each was timed: {min(loads):.1f} to {max(loads):.1f}."]
    failures = [
        f"- {subject['name']}, {side}: {figures['error']}"
        for subject in subjects
        for side, figures in subject["sides"].items()
        if "error" in figures
    ]
    return "\n".join([*lines, *(["", "Not timed:", *failures] if failures else []), ""])


def _subjects_with(results: dict[str, Any], threads: str) -> list[dict[str, Any]]:
    return [subject for subject in results["subjects"] if str(subject["threads"]) == threads]


def _row(subject: dict[str, Any], sides: Sequence[str], limits: dict[str, float]) -> list[str]:
    figures = subject["sides"]
    times = [_milliseconds(figures.get(side, {})) for side in sides]
    ours, inductor = figures.get(OURS, {}), figures.get("inductor", {})
    share = "–"
    if "seconds" in ours and subject["flops"]:
        share = f"{subject['flops'] / ours['seconds']['median'] / limits['gflops'] / 1e9:.0%}"
    spans = ((ours, "aten_seconds"), (ours, "warm_aten_seconds"), (inductor, "aten_seconds"))
    compiling = " / ".join(f"{side[name]:.2f}" if name in side else "–" for side, name in spans)
    ratios = [*_ratio_cells(subject), *_ratio_cells(subject.get("frozen") or {})]
    return [subject["name"], *times, *ratios, share, compiling]


def _ratio_cells(comparison: dict[str, Any]) -> tuple[str, str]:
    """Returns two cells: the name of the fastest other side, and the speedup over it with its confidence interval."""
    if not comparison.get("ratio"):
        return "–", "–"
    low, high = comparison["interval"]
    return comparison["fastest"], f"{comparison['ratio']:.2f} ({low:.2f}–{high:.2f})"


def _milliseconds(side: dict[str, Any]) -> str:
    return f"{side['seconds']['median'] * 1e3:.3g}" if "seconds" in side else "–"


def plot(results: dict[str, Any], path: Path) -> None:
    """Writes a bar chart of speeds relative to eager to `path` (SVG or PNG), one panel per number of threads.

    Raises `ImportError` without matplotlib.
    """
    from matplotlib.figure import Figure

    panels = list(results["limits"])
    max_subjects = max((len(_subjects_with(results, threads)) for threads in panels), default=1)
    figure = Figure(figsize=(max(8.0, 1.1 * max_subjects), 4.0 * len(panels)), layout="constrained")
    for axes, threads in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        _panel(axes, _subjects_with(results, threads))
        axes.set_title(f"{threads} thread{'s' * (threads != '1')}", loc="left")
    figure.savefig(path)


def _panel(axes: Any, subjects: Sequence[dict[str, Any]]) -> None:
    sides = list(dict.fromkeys(side for subject in subjects for side in subject["sides"]))
    width = 0.8 / max(1, len(sides))
    for number, side in enumerate(sides):
        positions = [i + number * width for i in range(len(subjects))]
        axes.bar(
            positions, [_speed(subject, side) for subject in subjects], width, label=side, color=_COLOURS.get(side)
        )
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks([i + 0.4 - width / 2 for i in range(len(subjects))])
    axes.set_xticklabels([subject["name"] for subject in subjects], rotation=30, ha="right")
    axes.set_ylabel("speed, eager = 1")
    axes.legend(ncols=len(sides) or 1, frameon=False)


def _speed(subject: dict[str, Any], side: str) -> float:
    """Returns eager's median time divided by the side's; 0 if one of them was not timed."""
    sides = subject["sides"]
    if "seconds" not in sides.get(side, {}) or "seconds" not in sides.get(EAGER, {}):
        return 0.0
    return float(sides[EAGER]["seconds"]["median"] / sides[side]["seconds"]["median"])
