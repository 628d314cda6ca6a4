"""The results of tuning, of a bisection and of pass previews, as text, JSON and plots; also their arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from buddy.app.reports.plots import Plot, PlotAxis, Series
from buddy.app.workspace.files import write_text_atomically
from buddy.app.workspace.pipeline_text import option_value
from buddy.compiler.protocol import Attempted, BisectionResult, Criterion, PassInfo, Tried, Tuned, Variation
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import OptionValue, PassStep, to_toml
from buddy.compiler.protocol.renamed import RECIPE_FIELDS, warn_renamed
from buddy.compiler.protocol.tuning import NodePrecision, PrecisionEffect

# The number of nodes that are listed of a set.
_MAX_NODES = 6
# The kinds of `Criterion`, each with the title and the summary of its entry in a picker.
CRITERIA = (
    ("any", "it fails, crashes or differs", "any of the two below"),
    ("fails", "it fails or crashes", "a failing pass, IR that does not verify, a crash, a timeout"),
    ("differs", "it differs from eager", "results beyond the tolerance"),
    ("slower", "it is slow", "find the pass without which it is faster"),
)
# The file name of the correct recipe.
RECIPE = "right.toml"


def parse_criterion(kind: str, text: str) -> Criterion:
    """Parses two numbers: the tolerance multiplier or minimum speedup, and the seconds per step of a trial.

    Raises `ValueError` with the expected format if they are missing, not finite or not positive.
    """
    words = text.replace(",", " ").replace("s", " ").split()
    try:
        limit, seconds = (float(word) for word in words)
    except ValueError as error:
        raise ValueError(f"{text.strip()!r}: type two numbers, such as 1, 30 s") from error
    if not (0 < limit < math.inf and 0 < seconds < math.inf):
        raise ValueError(f"{text.strip()!r}: both numbers must be more than 0")
    field = "slower" if kind == "slower" else "tolerance"
    return msgspec.convert({"kind": kind, field: limit, "step_seconds": seconds}, Criterion)


def bisection_lines(result: BisectionResult) -> list[str]:
    """The result of a bisection as lines of text: the culprit, then the evidence."""
    lines = [result.summary]
    if result.failure:
        lines.append(f"original failure: {result.failure}")
    for culprit in result.steps:
        origin = f", from {culprit.origin}" if culprit.origin else ""
        lines.append(f"pass {culprit.step.spelling()} (step {culprit.index + 1}{origin})")
    for lowering in result.lowerings:
        origin = f", from {lowering.origin}" if lowering.origin else ""
        correct = ", ".join(lowering.correct)
        name = f"{lowering.registry}.{lowering.op}"
        lines.append(f"lowering {name}{origin}: {len(lowering.nodes)} nodes; correct: {correct}")
    lines += _node_set_lines("smallest reproducing set of nodes", result.nodes)
    lines += _node_set_lines("correct with these nodes in eager", result.in_eager)
    if result.functions:
        lines.append(f"functions affected by the pass: {', '.join(result.functions)}")
    if result.steps or result.lowerings or result.in_eager:
        lines.append(f"the returned recipe is {'correct' if result.confirmed else 'NOT correct'} for the whole program")
    if result.command:
        lines.append(f"reproduce with: {result.command}")
    lines += [f"note: {note}" for note in result.notes]
    return [*lines, f"{result.trials} trials in {result.seconds:.1f} s"]


def _node_set_lines(title: str, nodes: tuple[str, ...]) -> list[str]:
    if not nodes:
        return []
    more = f", … {len(nodes) - _MAX_NODES} more" if len(nodes) > _MAX_NODES else ""
    return [f"{title}: {', '.join(nodes[:_MAX_NODES])}{more}"]


def bisection_json(result: BisectionResult) -> dict[str, object]:
    """The result of a bisection as plain values, without the texts of modules."""
    values: dict[str, Any] = msgspec.to_builtins(result)
    for name in ("before", "after"):
        values.pop(name, None)
    return values


def bisection_texts(result: BisectionResult) -> dict[str, str]:
    """The files of a result: the recipe that it found, and the reduced module before and after the culprit pass."""
    name = Path(result.name or "reduced.mlir")
    texts = {
        RECIPE: to_toml(result.recipe),
        name.name: result.before,
        f"{name.stem}.after{name.suffix}": result.after,
    }
    return {file: text for file, text in texts.items() if text}


def write_bisection(folder: Path, result: BisectionResult) -> list[Path]:
    """Write the files of a result into `folder`. Raises `OSError`."""
    texts = bisection_texts(result)
    for file, text in texts.items():
        write_text_atomically(folder / file, text)
    return [folder / file for file in texts]


# The prefixes of passes that are not previewed: they only print, view or check, or need files or options.
_NOT_PREVIEWED = (
    *("print-", "view-", "test-", "replace-ir", "irdl"),
    *("transform-", "location-snapshot", "gpu-", "spirv", "nvvm"),
)
# The number of ops that are named in a change.
SHOWN_DELTAS = 6


@dataclass(frozen=True)
class PassPreview:
    """A candidate pass, and what it changes in a stage."""

    step: PassStep
    tried: Tried

    @property
    def size(self) -> int:
        """The number of ops added or removed."""
        return sum(abs(delta) for _, delta in self.tried.deltas)

    def as_json(self) -> dict[str, object]:
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
    disabled = [step for step in steps if step.level == "mlir" and not step.enabled]
    by_spelling = {step.spelling(): PassStep(step.name, "mlir", step.anchor, step.options) for step in disabled}
    for info in catalogue:
        if info.level == "mlir" and not info.name.startswith(_NOT_PREVIEWED):
            by_spelling.setdefault(info.name, PassStep(info.name, "mlir", info.anchor))
    return tuple(by_spelling.values())


def rank_previews(previews: Sequence[PassPreview], failed: bool = False) -> list[PassPreview]:
    """The passes that change the stage, the largest change first; with `failed`, followed by those that failed.

    Many passes also fold constants, so passes with the same op counts as `canonicalize` come after the others.
    """
    folding = next((preview.tried.deltas for preview in previews if preview.step.name == "canonicalize"), ())

    def rank(preview: PassPreview) -> tuple[bool, int]:
        only_folds = preview.step.name != "canonicalize" and preview.tried.deltas == folding
        return (only_folds, -preview.size)

    changing = sorted((preview for preview in previews if preview.tried.changed), key=rank)
    return changing + [preview for preview in previews if failed and preview.tried.problem]


def deltas_text(deltas: Sequence[tuple[str, int]], minus: str = "-", most: int = SHOWN_DELTAS) -> str:
    """The ops added and removed, by name: `+12 linalg.generic, -4 tosa.add`."""
    texts = [f"{'+' if delta > 0 else minus}{abs(delta)} {name}" for name, delta in deltas[:most]]
    more = len(deltas) - most
    return ", ".join([*texts, *([f"{more} more"] if more > 0 else [])])


class VariationError(BuddyError, ValueError):
    """A text that is neither a variation nor a time limit."""


def read_variation(text: str) -> Variation:
    """Parses `SETTING=VALUE,VALUE…`. Raises `VariationError` for a text of another form."""
    parameter, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not parameter or not values:
        raise VariationError(f"{text!r} is not of the form SETTING=VALUE,VALUE")
    if parameter in RECIPE_FIELDS:
        warn_renamed(repr(parameter), repr(RECIPE_FIELDS[parameter]))
    return Variation(RECIPE_FIELDS.get(parameter, parameter), tuple(_value(part.strip()) for part in values.split(",")))


def _value(text: str) -> OptionValue:
    words: dict[str, OptionValue] = {"on": True, "off": False, "default": ""}
    return words[text] if text in words else option_value(text)


def attempt_line(attempt: Attempted) -> str:
    """One attempt of tuning as a line of text."""
    if attempt.problem:
        return f"{attempt.number + 1}: {attempt.problem} ({' '.join(attempt.choices)})"
    mark = ", best so far" if attempt.best else ""
    error = f", error {attempt.error:.1e}" if attempt.error >= 0 else ""
    return f"{attempt.number + 1}: {attempt.ratio:.3f} x the time of eager{error}{mark}"


def tuning_lines(tuned: Tuned, initial: Sequence[str] = ()) -> list[str]:
    """The result of tuning as lines of text, with the choices that are not in `initial`, those of the first recipe."""
    changed = [choice for choice in tuned.choices if choice not in initial]
    of_all = "" if tuned.nodes else f" of {tuned.size:,}"
    recipes = "recipe" if tuned.nodes and tuned.tried == 1 else "recipes"
    lines = [f"tried {tuned.tried}{of_all} {recipes} in {tuned.seconds:.0f} s"]
    if not changed:
        lines.append("no faster recipe was found")
    elif tuned.gain:
        interval = f"{tuned.gain_low:.3f} to {tuned.gain_high:.3f}"
        lines.append(f"{tuned.gain:.3f} x speedup (95 % interval: {interval}), {tuned.ratio:.3f} x the time of eager")
    else:
        lines.append(f"{tuned.ratio:.3f} x the time of eager")
    return [*lines, *(f"  {choice}" for choice in changed), *(f"note: {note}" for note in tuned.notes)]


def saving_text(seconds: float) -> str:
    """The time that a precision saves in a run, in milliseconds; negative if the node takes longer."""
    return f"{1e3 * seconds:.3f} ms"


def ranked_nodes(tuned: Tuned) -> list[NodePrecision]:
    """The products of a search for precisions: those that save the most time first, those that stay in f32 last."""
    return sorted(tuned.nodes, key=lambda node: -(node.effect.saved if node.effect is not None else 0.0))


def front_rows(attempts: Sequence[Attempted]) -> list[tuple[str, str, str]]:
    """The recipes that were timed, by error: each error, time relative to eager, and precisions."""
    timed = sorted((one for one in attempts if not one.problem), key=lambda one: one.error)
    return [(f"{one.error:.1e}" if one.error > 0 else "0", f"{one.ratio:.3f}", ", ".join(one.choices)) for one in timed]


def node_rows(tuned: Tuned, names: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """The name, precision, time saved and error of the products that are not in f32; `names` are by stable name."""
    return [
        (names.get(node.node, node.node), node.precision, saving_text(node.effect.saved), _effect_error(node.effect))
        for node in ranked_nodes(tuned)
        if node.effect is not None
    ]


def _effect_error(effect: PrecisionEffect) -> str:
    return f"{effect.error:.1e}" if effect.error >= 0 else "not measured"


def front_plot(tuned: Tuned, attempts: Sequence[Attempted]) -> Plot:
    """The time of each recipe over its error, and the estimates of the greedy choice of precisions."""
    timed = sorted((one for one in attempts if not one.problem), key=lambda one: one.error)
    tried = Series(
        "measured", [max(one.error, 0.0) for one in timed], [one.ratio for one in timed], "points",
        [", ".join(one.choices) for one in timed],
    )  # fmt: skip
    plain = next((one for one in timed if one.error <= 0 and one.median), None)
    series = [tried]
    if plain is not None and tuned.front:
        xs = [point.error for point in tuned.front]
        ys = [plain.ratio * max(0.0, 1 - point.saved / plain.median) for point in tuned.front]
        series.insert(0, Series("estimated", xs, ys, "line"))
    note = "root mean square of the difference of an output from eager, relative to that of eager"
    return Plot("Time over error", tuple(series), PlotAxis("error"), PlotAxis("compiled over eager"), note)


def tuning_json(tuned: Tuned, attempts: Sequence[Attempted]) -> dict[str, object]:
    """The result of tuning and its attempts as plain values."""
    tries = [
        {
            "choices": list(one.choices), "ratio": one.ratio, "seconds": one.median, "eager_seconds": one.eager,
            "compile_seconds": one.compile_seconds, "problem": one.problem, "elapsed": one.elapsed,
            "error": one.error,
        }
        for one in attempts
    ]  # fmt: skip
    gain = {"median": tuned.gain, "low": tuned.gain_low, "high": tuned.gain_high}
    return {
        "choices": list(tuned.choices), "ratio": tuned.ratio, "gain": gain, "tried": tuned.tried, "size": tuned.size,
        "seconds": tuned.seconds, "notes": list(tuned.notes), "tries": tries,
        **({"nodes": msgspec.to_builtins(tuned.nodes)} if tuned.nodes else {}),
        **({"front": msgspec.to_builtins(tuned.front)} if tuned.front else {}),
    }  # fmt: skip


def tuning_plot(attempts: Sequence[Attempted]) -> Plot:
    """The time of each recipe relative to eager, and the lowest one so far, over the time of the search."""
    measured = [attempt for attempt in attempts if not attempt.problem]
    elapsed = [attempt.elapsed for attempt in measured]
    ratios = [attempt.ratio for attempt in measured]
    names = [" ".join(attempt.choices) for attempt in measured]
    series = (
        Series("tried", elapsed, ratios, "points", names),
        Series("best so far", elapsed, list(accumulate(ratios, min)), "line", names),
    )
    failed = len(attempts) - len(measured)
    note = f"{failed} more had a mismatch, failed or timed out" if failed else ""
    return Plot("compiled over eager", series, PlotAxis("s"), PlotAxis("ratio", log=True), note)
