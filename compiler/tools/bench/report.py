"""Computes medians, quartiles and ratios of a benchmark, and writes its results as Markdown tables and as a plot."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from buddy.compiler.protocol.run_report import ONNX_RUNTIME, OPENVINO
from buddy.compiler.tools.bench.plan import (
    CPP_WRAPPER,
    DECODE_GROUP,
    EAGER,
    FREEZING,
    INDUCTOR,
    IREE,
    MAX_AUTOTUNE,
    OURS,
    OURS_FROZEN,
    TABLES,
    TORCHSCRIPT,
    ZENTORCH,
)

# The number of resamples of a bootstrap: with 2000, an end of the interval varies little from seed to seed.
_RESAMPLES = 2000


def median_and_quartiles(values: Sequence[float], digits: int = 4) -> dict[str, float]:
    """Returns the median and quartiles of the values, rounded to `digits` significant digits, and their number."""
    at_least_two = values if len(values) > 1 else list(values) * 2
    low, median, high = statistics.quantiles(at_least_two, n=4, method="inclusive")
    quartiles = {"median": median, "low": low, "high": high}
    rounded = {name: float(f"{value:.{digits}g}") for name, value in quartiles.items()}
    return {**rounded, "runs": len(values)}


def summarize_ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Returns the median and quartiles of `above / below`, taken pair by pair."""
    return median_and_quartiles([a / b for a, b in zip(above, below, strict=True)])


def bootstrap_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Returns the confidence interval of the median at level `level`, by a percentile bootstrap with a fixed seed.

    B. Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979.
    """
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    cut = int((1 - level) / 2 * _RESAMPLES)
    return medians[cut], medians[-1 - cut]


def geometric_mean(values: Iterable[float]) -> float:
    """Returns the geometric mean of positive values, NaN of no values."""
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


# ---- tables ----------------------------------------------------------------------------------------------------------

# The colours of the sides in a plot.
_COLOURS = {
    OURS: "#2166ac", OURS_FROZEN: "#92c5de", EAGER: "#b2182b", INDUCTOR: "#ef8a62", FREEZING: "#fddbc7",
    IREE: "#999999", MAX_AUTOTUNE: "#d6604d", CPP_WRAPPER: "#b35806", TORCHSCRIPT: "#fdb863", ZENTORCH: "#542788",
    ONNX_RUNTIME: "#1b7837", OPENVINO: "#7fbf7b",
}  # fmt: skip


def format_markdown(results: dict[str, Any]) -> str:
    """Returns the results of a benchmark as Markdown: for each number of threads, the tables of `plan.TABLES`.

    Times are medians in ms, with the error against float32 eager in brackets: the norm of the difference of an output,
    divided by its norm; in training also the spread of that output in eager (`bench.errors`). Ratios are medians over
    rounds; compile times run from the ATen graph to a callable. The first ratio is the speedup of this compiler over
    the fastest other side that reads weights in place, the second that of this compiler with frozen weights over the
    fastest of all other sides, each in the same precision.
    """
    parts = []
    for threads in results["limits"]:
        subjects = _subjects_on(results, threads)
        for table, title in TABLES.items():
            if rows := [subject for subject in subjects if table_of(subject) == table]:
                means = results["summary"][threads].get(table, {})
                parts.append(
                    _format_table(
                        f"{title}, {_thread_count(threads)}", rows, _machine_rates(results, threads), means, table
                    )
                )
    return "\n".join(parts)


def table_of(subject: dict[str, Any]) -> str:
    """Returns the key in `TABLES` of the table of a result; results of earlier versions are in float32."""
    return str(subject.get("table", "f32"))


def _thread_count(count: str) -> str:
    return f"{count} thread{'s' * (count != '1')}"


def _machine_rates(results: dict[str, Any], threads: str) -> dict[str, Any]:
    """Returns the name of the machine, and its peak rates on a number of threads."""
    return {"name": results.get("machine", "unknown CPU"), **results["limits"][threads]}


def _format_table(
    title: str, subjects: Sequence[dict[str, Any]], machine: dict[str, Any], means: dict[str, Any], table: str
) -> str:
    """Returns one table of the report, with its title, notes and failures; `means` are its geometric means."""
    sides = list(dict.fromkeys(side for subject in subjects for side in subject["sides"]))
    # A side without any time has no column; the reasons are below the table.
    sides = [side for side in sides if any("seconds" in subject["sides"].get(side, {}) for subject in subjects)]
    precisions = list(dict.fromkeys(subject.get("precision", "f32") for subject in subjects))
    with_precision, with_peak = len(precisions) > 1 or table == DECODE_GROUP, precisions == ["f32"]
    head = ["", "precision"] if with_precision else [""]
    head += [*sides, "fastest in place", "ratio (95 %)", "fastest other", "frozen: ratio (95 %)"]
    head += ["of FMA peak", "compile: cold / warm / inductor, s"] if with_peak else []
    rows = []
    for subject in subjects:
        row = [subject["name"], subject.get("precision", "f32")] if with_precision else [subject["name"]]
        row += [_time_cell(subject["sides"].get(side, {})) for side in sides]
        row += [*_ratio_cells(subject), *_ratio_cells(subject.get("frozen") or {})]
        row += _peak_and_compile_cells(subject, machine) if with_peak else []
        rows.append(row)
    lines = [
        f"### {title}",
        "",
        f"{machine['name']}: {machine['gflops']:.0f} GFLOP/s in float32, {machine['gbytes']:.1f} GB/s. "
        f"{_clock_text(subjects)} in ms, in brackets the error relative to float32 eager{_weights_text(subjects)}."
        f"{_load_text(subjects)}",
        "",
    ]
    lines += ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    mean_texts = list(_mean_texts(means))
    lines += ["", f"Geometric means: {'; '.join(mean_texts)}."] if mean_texts else []
    notes = _lines_by_text(subjects, "note")
    lines += ["", "Notes on the sides:", "", *notes] if notes else []
    failures = _lines_by_text(subjects, "error")
    return "\n".join([*lines, *(["", "Not timed:", "", *failures] if failures else []), ""])


def _mean_texts(means: dict[str, Any]) -> Iterator[str]:
    """Yields the geometric means that are known, in words."""
    if means.get("geometric_mean"):
        count = means["models"]
        yield f"{means['geometric_mean']:.2f} × the fastest other side, weights read in place ({count} models)"
    if means.get("frozen_geometric_mean"):
        count = means.get("frozen_models", means["models"])
        yield f"{means['frozen_geometric_mean']:.2f} × the fastest of all others, weights frozen ({count} models)"


def _clock_text(subjects: Sequence[dict[str, Any]]) -> str:
    by_cpu = any(subject.get("clock") == "cpu" for subject in subjects)
    return "CPU times, without waits for a core," if by_cpu else "Times"


def _weights_text(subjects: Sequence[dict[str, Any]]) -> str:
    has_rounded = any("error_of_weights" in side for subject in subjects for side in subject["sides"].values())
    return ", before it that relative to eager with the side's own rounded weights" if has_rounded else ""


def _load_text(subjects: Sequence[dict[str, Any]]) -> str:
    loads = [subject["load"] for subject in subjects if "load" in subject]
    return f" Load of the machine before each was timed: {min(loads):.1f} to {max(loads):.1f}." if loads else ""


def _lines_by_text(subjects: Sequence[dict[str, Any]], field: str) -> list[str]:
    """Returns a line for each side and each text of the side in `field`, with the subjects that have this text."""
    subjects_of_text: dict[tuple[str, str], list[str]] = {}
    for subject in subjects:
        for side, result in subject["sides"].items():
            if text := result.get(field):
                subjects_of_text.setdefault((side, text), []).append(_subject_title(subject))
    return [f"- {side}, {', '.join(subject_names)}: {text}" for (side, text), subject_names in subjects_of_text.items()]


def _subject_title(subject: dict[str, Any]) -> str:
    precision = subject.get("precision", "f32")
    return str(subject["name"]) if precision == "f32" else f"{subject['name']} in {precision}"


def _subjects_on(results: dict[str, Any], threads: str) -> list[dict[str, Any]]:
    return [subject for subject in results["subjects"] if str(subject["threads"]) == threads]


def _peak_and_compile_cells(subject: dict[str, Any], machine: dict[str, Any]) -> list[str]:
    """Returns two cells: the fraction of the machine's peak rate of multiply-adds, and compile times."""
    sides = subject["sides"]
    ours, inductor = sides.get(OURS, {}), sides.get(INDUCTOR, {})
    peak_share = "–"
    # The peak rate was measured by durations, so it is not comparable with CPU times.
    if "seconds" in ours and subject["flops"] and subject.get("clock") != "cpu":
        peak_share = f"{subject['flops'] / ours['seconds']['median'] / machine['gflops'] / 1e9:.0%}"
    compilations = ((ours, "aten_seconds"), (ours, "warm_aten_seconds"), (inductor, "aten_seconds"))
    return [peak_share, " / ".join(f"{side[name]:.2f}" if name in side else "–" for side, name in compilations)]


def _ratio_cells(comparison: dict[str, Any]) -> tuple[str, str]:
    """Returns two cells: the name of the fastest other side, and the speedup over it with its confidence interval."""
    if not comparison.get("ratio"):
        return "–", "–"
    low, high = comparison["interval"]
    return comparison["fastest"], f"{comparison['ratio']:.2f} ({low:.2f}–{high:.2f})"


def _time_cell(side: dict[str, Any]) -> str:
    """Returns the time of a side in ms, with its error, and the spread of eager's own gradients in training.

    The error of rounded weights is first that against eager with the same weights.
    """
    if "seconds" not in side:
        return "–"
    spread = f", spread {side['spread']:.0e}" if "spread" in side else ""
    weights_error = f"{side['error_of_weights']:.0e}, float32 " if "error_of_weights" in side else ""
    error = f" ({weights_error}{side['relative_error']:.0e}{spread})" if "relative_error" in side else ""
    return f"{side['seconds']['median'] * 1e3:.3g}{error}"


# ---- plot ------------------------------------------------------------------------------------------------------------


def write_plot(results: dict[str, Any], path: Path) -> None:
    """Writes a bar chart of speeds relative to eager to `path` (SVG or PNG), one panel per number of threads.

    Raises `ImportError` without matplotlib.
    """
    from matplotlib.figure import Figure

    panels = list(results["limits"])
    max_subjects = max((len(_subjects_on(results, threads)) for threads in panels), default=1)
    figure = Figure(figsize=(max(8.0, 1.1 * max_subjects), 4.0 * len(panels)), layout="constrained")
    for axes, threads in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        _draw_panel(axes, _subjects_on(results, threads))
        axes.set_title(_thread_count(threads), loc="left")
    figure.savefig(path)


def _draw_panel(axes: Any, subjects: Sequence[dict[str, Any]]) -> None:
    """Draws the bars of all sides for each subject; `axes` are matplotlib's."""
    sides = list(dict.fromkeys(side for subject in subjects for side in subject["sides"]))
    width = 0.8 / max(1, len(sides))
    for number, side in enumerate(sides):
        positions = [i + number * width for i in range(len(subjects))]
        axes.bar(
            positions, [_speed(subject, side) for subject in subjects], width, label=side, color=_COLOURS.get(side)
        )
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks([i + 0.4 - width / 2 for i in range(len(subjects))])
    axes.set_xticklabels([_subject_title(subject) for subject in subjects], rotation=30, ha="right")
    axes.set_ylabel("speed, eager = 1")
    axes.legend(ncols=len(sides) or 1, frameon=False)


def _speed(subject: dict[str, Any], side: str) -> float:
    """Returns eager's median time divided by the side's; 0 if one of them was not timed."""
    sides = subject["sides"]
    if "seconds" not in sides.get(side, {}) or "seconds" not in sides.get(EAGER, {}):
        return 0.0
    return float(sides[EAGER]["seconds"]["median"] / sides[side]["seconds"]["median"])
