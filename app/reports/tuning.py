"""Parses the variations of a recipe search, and formats its results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from buddy.app.reports.plots import Plot, PlotAxis, Series
from buddy.compiler.protocol import Attempted, Tuned, Variation
from buddy.compiler.protocol.recipe import OptionValue, is_plain_number
from buddy.compiler.protocol.renamed import RECIPE_FIELDS, warn_renamed


class VariationError(ValueError):
    """A text that is not a variation."""


def read_variation(text: str) -> Variation:
    """Parse `WHAT=VALUE,VALUE…`. Raises `VariationError`."""
    what, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not what or not values:
        raise VariationError(f"{text!r} is not of the form WHAT=VALUE,VALUE")
    if what in RECIPE_FIELDS:
        warn_renamed(repr(what), repr(RECIPE_FIELDS[what]))
    return Variation(RECIPE_FIELDS.get(what, what), tuple(_value(part.strip()) for part in values.split(",")))


def _value(text: str) -> OptionValue:
    words: dict[str, OptionValue] = {"on": True, "true": True, "off": False, "false": False, "default": ""}
    if text in words:
        return words[text]
    for kind in (int, float):
        try:
            found = kind(text)
        except ValueError:
            continue
        if is_plain_number(found):
            return found
    return text


def attempt_line(found: Attempted) -> str:
    """One attempt as a line of text."""
    if found.problem:
        return f"{found.number + 1}: {found.problem} ({' '.join(found.choices)})"
    mark = ", best so far" if found.best else ""
    return f"{found.number + 1}: {found.ratio:.3f} x eager{mark}"


def summary(found: Tuned, first: Sequence[str] = ()) -> list[str]:
    """The result of a search, without the choices that are also in `first`."""
    other = [choice for choice in found.choices if choice not in first]
    lines = [f"tried {found.tried} of {found.size:,} recipes in {found.seconds:.0f} s"]
    if not other:
        lines.append("no faster recipe was found")
    elif found.gain:
        interval = f"{found.gain_low:.3f} to {found.gain_high:.3f}"
        lines.append(f"{found.gain:.3f} x speedup (95 % interval: {interval}), {found.ratio:.3f} x eager")
    else:
        lines.append(f"{found.ratio:.3f} x eager")
    return [*lines, *(f"  {choice}" for choice in other), *(f"note: {note}" for note in found.notes)]


def as_json(found: Tuned, attempts: Sequence[Attempted]) -> dict[str, Any]:
    tries = [
        {
            "choices": list(one.choices), "ratio": one.ratio, "seconds": one.median, "eager_seconds": one.eager,
            "compile_seconds": one.compile_seconds, "problem": one.problem, "elapsed": one.elapsed,
        }
        for one in attempts
    ]  # fmt: skip
    gain = {"median": found.gain, "low": found.gain_low, "high": found.gain_high}
    return {
        "choices": list(found.choices), "ratio": found.ratio, "gain": gain, "tried": found.tried, "size": found.size,
        "seconds": found.seconds, "notes": list(found.notes), "tries": tries,
    }  # fmt: skip


def plot_of(attempts: Sequence[Attempted]) -> Plot:
    """The history of a search: the ratio of each recipe to eager, and the best ratio so far, over time."""
    good = [one for one in attempts if not one.problem]
    best, least = [], math.inf
    for one in good:
        least = min(least, one.ratio)
        best.append(least)
    when = [one.elapsed for one in good]
    names = [" ".join(one.choices) for one in good]
    series = (
        Series("tried", when, [one.ratio for one in good], "points", names),
        Series("best so far", when, best, "line", names),
    )
    failed = len(attempts) - len(good)
    note = f"{failed} more had a mismatch, failed or timed out" if failed else ""
    return Plot("compiled over eager", series, PlotAxis("s"), PlotAxis("ratio", log=True), note)
