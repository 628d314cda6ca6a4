"""Searches as text and JSON: for the fastest recipe, for the cause of a fault, and over single passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from buddy.app.reports.plots import Plot, PlotAxis, Series
from buddy.app.workspace.files import write_whole
from buddy.compiler.protocol import Attempted, BisectionResult, Criterion, PassInfo, Tried, Tuned, Variation
from buddy.compiler.protocol.recipe import OptionValue, PassStep, is_plain_number, to_toml
from buddy.compiler.protocol.renamed import RECIPE_FIELDS, warn_renamed

_SHOWN = 6
CRITERIA = (
    ("any", "it fails, crashes or differs", "any of the two below"),
    ("fails", "it fails or crashes", "a failing pass, IR that does not verify, a crash, a timeout"),
    ("differs", "it differs from eager", "beyond a tolerance"),
    ("slower", "it is slow", "find the pass without which it is faster"),
)
RECIPE = "right.toml"


def parse_criterion(kind: str, text: str) -> Criterion:
    """The criterion in `text`: two numbers, the tolerance or ratio, and the time limit of a trial in seconds.

    Raises `ValueError` with the expected format.
    """
    words = text.replace(",", " ").replace("s", " ").split()
    try:
        times, each = (float(word) for word in words)
    except ValueError as error:
        raise ValueError(f"{text.strip()!r}: type two numbers, such as 1, 30 s") from error
    if not (0 < times < math.inf and 0 < each < math.inf):
        raise ValueError(f"{text.strip()!r}: both numbers must be more than 0")
    field = "slower" if kind == "slower" else "tolerance"
    return msgspec.convert({"kind": kind, field: times, "each": each}, Criterion)


def finding_lines(finding: BisectionResult) -> list[str]:
    """The result, followed by its evidence."""
    lines = [finding.told]
    if finding.wrong:
        lines.append(f"original failure: {finding.wrong}")
    for culprit in finding.steps:
        origin = f", from {culprit.origin}" if culprit.origin else ""
        lines.append(f"pass {culprit.step.spelling()} (step {culprit.place + 1}{origin})")
    for wrong in finding.lowerings:
        origin = f", from {wrong.origin}" if wrong.origin else ""
        right = ", ".join(wrong.right)
        lines.append(f"lowering {wrong.registry}.{wrong.op}{origin}: {len(wrong.nodes)} nodes; correct: {right}")
    lines += _some("smallest reproducing set of nodes", finding.nodes)
    lines += _some("correct with these nodes in eager", finding.in_eager)
    if finding.functions:
        lines.append(f"functions affected by the pass: {', '.join(finding.functions)}")
    if finding.steps or finding.lowerings or finding.in_eager:
        lines.append(
            f"the returned recipe is {'correct' if finding.confirmed else 'NOT correct'} for the whole program"
        )
    if finding.command:
        lines.append(f"reproduce with: {finding.command}")
    lines += [f"note: {note}" for note in finding.notes]
    return [*lines, f"{finding.trials} trials in {finding.seconds:.1f} s"]


def _some(title: str, nodes: tuple[str, ...]) -> list[str]:
    if not nodes:
        return []
    more = f", … {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return [f"{title}: {', '.join(nodes[:_SHOWN])}{more}"]


def finding_json(finding: BisectionResult) -> dict[str, Any]:
    """The finding as plain values, without the texts of modules."""
    found: dict[str, Any] = msgspec.to_builtins(finding)
    for name in ("before", "after"):
        found.pop(name, None)
    return found


def write_finding(folder: Path, finding: BisectionResult) -> list[Path]:
    """Write the correct recipe and the reduced module before and after the pass. Returns the paths.

    Raises `OSError`.
    """
    name = Path(finding.name or "reduced.mlir")
    texts = {
        RECIPE: to_toml(finding.recipe),
        name.name: finding.before,
        f"{name.stem}.after{name.suffix}": finding.after,
    }
    written = []
    for file, text in texts.items():
        if text:
            write_whole(folder / file, text)
            written.append(folder / file)
    return written


# Passes that only print, view or check, or that need files or options.
_IDLE = ("print-", "view-", "test-", "replace-ir", "irdl", "transform-", "location-snapshot", "gpu-", "spirv", "nvvm")
SHOWN_DELTAS = 6


@dataclass(frozen=True)
class PassPreview:
    """A candidate and its result."""

    step: PassStep
    tried: Tried

    @property
    def size(self) -> int:
        """The number of ops added or removed."""
        return sum(abs(delta) for _, delta in self.tried.deltas)

    def as_json(self) -> dict[str, Any]:
        return {
            "pass": self.step.spelling(),
            "anchor": self.step.anchor,
            "changed": self.tried.changed,
            "ops": dict(self.tried.deltas),
            "milliseconds": self.tried.milliseconds,
            "problem": self.tried.problem or None,
        }


def candidates(steps: Sequence[PassStep], catalogue: Sequence[PassInfo]) -> tuple[PassStep, ...]:
    """The disabled passes of the recipe with their options, then every MLIR pass with its defaults."""
    off = [step for step in steps if step.level == "mlir" and not step.enabled]
    found = {step.spelling(): PassStep(step.name, "mlir", step.anchor, step.options) for step in off}
    for info in catalogue:
        if info.level == "mlir" and not info.name.startswith(_IDLE):
            found.setdefault(info.name, PassStep(info.name, "mlir", info.anchor))
    return tuple(found.values())


def rank_previews(attempts: Sequence[PassPreview], failed: bool = False) -> list[PassPreview]:
    """The attempts that changed the stage, the largest change first; with `failed`, also those that failed, at the end.

    Many passes also fold constants, so attempts with the same result as `canonicalize` come after the others.
    """
    folding = next((each.tried.deltas for each in attempts if each.step.name == "canonicalize"), ())

    def place(each: PassPreview) -> tuple[bool, int]:
        return (each.step.name != "canonicalize" and each.tried.deltas == folding, -each.size)

    changed = sorted((each for each in attempts if each.tried.changed), key=place)
    return changed + [each for each in attempts if failed and each.tried.problem]


def deltas_text(deltas: Sequence[tuple[str, int]], minus: str = "-", most: int = SHOWN_DELTAS) -> str:
    """The ops added and removed, by name: `+12 linalg.generic, -4 tosa.add`."""
    texts = [f"{'+' if delta > 0 else minus}{abs(delta)} {name}" for name, delta in deltas[:most]]
    more = len(deltas) - most
    return ", ".join([*texts, *([f"{more} more"] if more > 0 else [])])


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
