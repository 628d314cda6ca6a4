"""Formats numbers, tables, texts of limited width and measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from buddy.compiler.protocol.run_report import ErrorCheck, MachineLoad, OutputReport, RunReport


@dataclass(frozen=True)
class Glyphs:
    """The symbols that the screen uses, as Unicode or as ASCII.

    `levels` are block characters from empty to full, `marks` the points of plots. `jump` are the parts of jump arrows:
    top and bottom corner, vertical line, branch, horizontal line, crossing. `to` stands between the ends of a range,
    `times` between factors.
    """

    minus: str = "−"
    arrow: str = "▸"
    dot: str = "·"
    ellipsis: str = "…"
    delta: str = "Δ"
    bar: str = "█"
    levels: str = " ▁▂▃▄▅▆▇█"
    line: str = "│"
    to: str = "…"
    times: str = "·"
    marks: str = "●×+◆■▲"
    jump: str = "╭╰│├─┼"
    ascending: str = "▲"
    descending: str = "▼"


# The symbols for terminals with and without Unicode.
UNICODE = Glyphs()
ASCII = Glyphs(
    minus="-", arrow=">", dot="-", ellipsis="~", delta="d", bar="#", levels=" .:-=+*#@", line="|", to="..", times="*",
    marks="ox+*#@", jump=",'|+-+", ascending="^", descending="v",
)  # fmt: skip


def milliseconds(value: float) -> str:
    """Formats a time in milliseconds, in seconds from 10 s on; empty if it is not positive."""
    if value <= 0:
        return ""
    if value < 1:
        return f"{value:.2f} ms"
    if value < 10:
        return f"{value:.1f} ms"
    return f"{value:.0f} ms" if value < 10_000 else f"{value / 1000:.1f} s"


def seconds(value: float) -> str:
    """Formats a time in seconds."""
    if value < 1e-3:
        return f"{value * 1e6:.0f} us"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.2f} s"


def size(value: int) -> str:
    """Formats a number of bytes."""
    if value < 1000:
        return f"{value} B"
    # From 0.9995 of a unit on, three significant digits round up to that unit.
    units = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
    scale, unit = next((scale, unit) for scale, unit in units if value >= 0.9995 * scale)
    return f"{value / scale:.3g} {unit}"


def nan_counts_text(output: OutputReport) -> str:
    """Returns the numbers of NaNs in an output and, if it was compared, in eager's output; empty if neither has any."""
    if output.verdict == "unchecked" or not (output.nans or output.eager_nans):
        return f"{output.nans} NaN" if output.nans else ""
    return f"{output.nans} NaN, {output.eager_nans} in eager"


def verdict_texts(output: OutputReport) -> list[str]:
    """Returns the conditions that decided the verdict on an output, and its largest relative error.

    Of a mismatch, returns the conditions that do not hold; otherwise the first two, which are on the whole output. For
    indices that differ from eager's (of `argmax`, for example), returns the tolerance of the values at the indices.
    """
    if output.verdict == "ok" and not output.checks:
        has_other_indices = output.max_abs and output.dtype.startswith("int")
        return [f"different indices, whose values are within {output.tolerance}"] if has_other_indices else []
    if output.verdict == "mismatch" and not math.isfinite(output.max_abs):
        return ["an element is finite in one of the two only, or infinite with another sign"]
    failed = [check for check in output.checks if not check.ok]
    relative = [_relative_error_text(output)] if output.rel_floor and output.rel_where else []
    return [*map(_check_text, failed or output.checks[:2]), *relative]


def _check_text(check: ErrorCheck) -> str:
    """Returns a condition of a verdict: `rms error 1.2e-07 <= 3.1e-07 allowed (4 x spread 7.8e-08)`."""
    if check.rule == "equal":
        return f"{check.error:.0f} {check.metric}" + f", {check.allowed:.0f} allowed" * (not check.ok)
    sign = "<=" if check.ok else ">"
    if not check.error:
        return f"{check.metric} 0 {sign} {check.allowed:.1e} allowed ({check.rule})"
    # The fewest digits with which the two numbers differ.
    pairs = [(f"{check.error:.{digits}e}", f"{check.allowed:.{digits}e}") for digits in (1, 3, 6, 16)]
    error, allowed = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    return f"{check.metric} {error} {sign} {allowed} allowed ({check.rule})"


def _relative_error_text(output: OutputReport) -> str:
    """Returns the largest relative error of an output and the index at which it occurs."""
    index = f"at {output.rel_where}, where |eager| is {difference_text(output.rel_size)}"
    return (
        f"largest relative error {difference_text(output.max_rel)} {index} "
        f"(no limit; |eager| <= {output.rel_floor:g} not counted)"
    )


def eager_path_texts(report: RunReport) -> list[str]:
    """Returns the number of compiled nodes with a slow path, and with an error path, in eager. A 0 is left out."""
    counts = ((report.slow_paths, "a slow path"), (report.error_paths, "an error path"))
    return [f"{count} with {path} in eager" for count, path in counts if count]


def load_text(load: MachineLoad) -> str:
    """Returns the load of the machine during a measurement. Negative fields of `load` are unknown."""
    facts = []
    if load.average >= 0:
        facts.append(f"load {load.average:.2f} on {counted(load.cores, 'core')}")
    if load.others >= 0:
        busy = load.others >= 0.1  # less than a tenth of a core does not affect timings, as in `MachineLoad`
        facts.append(f"other processes used {load.others:.1f} cores" if busy else "no other load")
    if load.waited >= 0.005:  # a smaller share would be shown as 0%
        facts.append(f"{load.waited:.0%} of the run waited for a CPU")
    elif load.waited >= 0 and load.others < 0:
        facts.append("no waiting for a CPU")
    if load.megahertz > 0:
        facts.append(f"{load.megahertz:.0f} MHz")
    return f"machine: {', '.join(facts) or 'load unknown'}"


def load_json(load: MachineLoad | None) -> dict[str, float | None] | None:
    """Returns the load of the machine; unknown values are null."""
    if load is None:
        return None
    return {
        "average": load.average if load.average >= 0 else None,
        "others": load.others if load.others >= 0 else None,
        "waited": load.waited if load.waited >= 0 else None,
        "cores": load.cores,
        "megahertz": load.megahertz or None,
    }


def counted(number: int, noun: str) -> str:
    """Returns a number with a noun, which is in the plural unless the number is 1: `3 nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def thread_count(number: int) -> str:
    """Formats a number of threads."""
    return counted(number, "thread")


def count(value: int) -> str:
    """Formats a number with commas between thousands."""
    return f"{value:,}"


def count_change(added: int, removed: int, glyphs: Glyphs) -> tuple[str, str]:
    """Returns the numbers of added and removed ops, as `+40` and `−32`; empty for 0."""
    return (f"+{added}" if added else "", f"{glyphs.minus}{removed}" if removed else "")


def difference_text(value: float) -> str:
    """Formats a difference: `0`, `1.4e-06`, `nan`."""
    return "0" if value == 0 else f"{value:.1e}"


def progress_bar(share: float, width: int, glyphs: Glyphs) -> str:
    """Returns a bar whose length is `share` (0..1) of `width` cells, but at least one cell."""
    return glyphs.bar * max(1, round(min(share, 1.0) * width))


def histogram(counts: Sequence[int], glyphs: Glyphs) -> str:
    """Returns a histogram in one line, one character per bin. A non-empty bin is always visible."""
    greatest = max(counts, default=0)
    top_level = len(glyphs.levels) - 1
    return "".join(glyphs.levels[_level(value, greatest, top_level)] for value in counts)


def _level(value: int, greatest: int, top_level: int) -> int:
    """Returns the index in `Glyphs.levels` for a bin with `value` elements; the fullest bin has `greatest` elements."""
    return max(1, round(value / greatest * top_level)) if value else 0


def join_fitting(texts: list[str], separator: str, columns: int) -> str:
    """Joins as many of the first texts as fit into `columns` characters."""
    while texts and len(separator.join(texts)) > columns:
        texts = texts[:-1]
    return separator.join(texts)


def short_location(location: str) -> str:
    """Returns the file name and the line of a location: `file.py:12` for `path/file.py:12`."""
    return location.replace("\\", "/").rpartition("/")[2]


def clip(text: str, width: int, glyphs: Glyphs) -> str:
    """Truncates `text` to `width` characters, of which the last one is an ellipsis."""
    if len(text) <= width:
        return text
    return text[: max(0, width - 1)] + glyphs.ellipsis if width > 0 else ""


def clip_start(text: str, width: int, glyphs: Glyphs) -> str:
    """Truncates `text` to its last `width` characters, of which the first one is an ellipsis."""
    if len(text) <= width:
        return text
    return glyphs.ellipsis + text[len(text) - width + 1 :] if width > 0 else ""


def table(heading: Sequence[str], rows: Sequence[Sequence[object]], left_aligned: frozenset[str] = frozenset()) -> str:
    """Returns a text table. The columns with headings in `left_aligned` are left-aligned, the others right-aligned."""
    cells = [[str(cell) for cell in row] for row in (heading, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heading))]
    return "\n".join(_table_line(row, widths, [name in left_aligned for name in heading]) for row in cells)


def _table_line(cells: list[str], widths: list[int], left_aligned: list[bool]) -> str:
    """Returns a line of a table, whose cells are padded to `widths`."""
    padded = (
        cell.ljust(width) if is_left else cell.rjust(width)
        for cell, width, is_left in zip(cells, widths, left_aligned, strict=True)
    )
    return "  ".join(padded).rstrip()
