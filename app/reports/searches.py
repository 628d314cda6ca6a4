"""The results of searches as text, tables, JSON, plots and files: of bisections, and of tuning.

Also parses what the user types to start a search: the criterion of a bisection, and the variations of a recipe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from buddy.app.reports.plots import Plot, PlotAxis, Series
from buddy.app.workspace.files import write_text_atomically
from buddy.app.workspace.pipeline_text import option_value
from buddy.compiler.protocol import Attempted, BisectionResult, Criterion, Tuned, Variation
from buddy.compiler.protocol.compatibility import RECIPE_FIELDS, warn_renamed
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import OptionValue, to_toml
from buddy.compiler.protocol.searches import NodePrecision, PrecisionEffect

# ---- bisection -------------------------------------------------------------------------------------------------------


# The maximum number of nodes that are listed of a set.
_MAX_NODES = 6
# The kinds of `Criterion`, each with the title and the summary of its entry in a picker.
CRITERIA = (
    ("any", "it fails, crashes or differs", "any of the two below"),
    ("fails", "it fails or crashes", "a failing pass, IR that does not verify, a crash, a timeout"),
    ("differs", "it differs from eager", "results beyond the tolerance"),
    ("slower", "it is slow", "find the pass without which it is faster"),
)
# The file of the recipe whose results are correct.
CORRECT_RECIPE_FILE = "right.toml"


def parse_criterion(kind: str, text: str) -> Criterion:
    """Parses the two numbers of a criterion of this kind, such as `1, 30 s`.

    The first is the multiple of the tolerance, or for "slower" the minimum speedup. The second is how many seconds each
    step of a trial may take. Raises `ValueError` with the expected format if a number is missing, not finite or not
    positive.
    """
    # Removes the unit, too.
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
    """Returns the result of a bisection as lines of text: the culprit, then the evidence."""
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
    """Returns a line with the first nodes of a set and the number of the others; no line for an empty set."""
    if not nodes:
        return []
    more = f", … {len(nodes) - _MAX_NODES} more" if len(nodes) > _MAX_NODES else ""
    return [f"{title}: {', '.join(nodes[:_MAX_NODES])}{more}"]


def bisection_json(result: BisectionResult) -> dict[str, object]:
    """Returns the result of a bisection as plain values, without the texts of modules."""
    values: dict[str, Any] = msgspec.to_builtins(result)
    for name in ("before", "after"):
        values.pop(name, None)
    return values


def bisection_texts(result: BisectionResult) -> dict[str, str]:
    """Returns the files of a result by name: the recipe, and the reduced module before and after the culprit pass."""
    name = Path(result.name or "reduced.mlir")
    texts = {
        CORRECT_RECIPE_FILE: to_toml(result.recipe),
        name.name: result.before,
        f"{name.stem}.after{name.suffix}": result.after,
    }
    return {file: text for file, text in texts.items() if text}


def write_bisection(folder: Path, result: BisectionResult) -> list[Path]:
    """Writes the files of a result into `folder`. Raises `OSError`."""
    texts = bisection_texts(result)
    for file, text in texts.items():
        write_text_atomically(folder / file, text)
    return [folder / file for file in texts]


# ---- tuning ----------------------------------------------------------------------------------------------------------


class VariationError(BuddyError, ValueError):
    """A text is not a variation of a recipe."""


def read_variation(text: str) -> Variation:
    """Parses a variation of the form `SETTING=VALUE,VALUE…`. Raises `VariationError` for a text of another form.

    The old name of a field of the recipe is replaced by the new name, with a warning.
    """
    parameter, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not parameter or not values:
        raise VariationError(f"{text!r} is not of the form SETTING=VALUE,VALUE")
    if parameter in RECIPE_FIELDS:
        warn_renamed(repr(parameter), repr(RECIPE_FIELDS[parameter]))
    return Variation(
        RECIPE_FIELDS.get(parameter, parameter), tuple(_parse_value(part.strip()) for part in values.split(","))
    )


def _parse_value(text: str) -> OptionValue:
    """Parses a value of a variation. "default" stands for the default of the option, which is the empty text."""
    named_values: dict[str, OptionValue] = {"on": True, "off": False, "default": ""}
    return named_values[text] if text in named_values else option_value(text)


def attempt_line(attempt: Attempted) -> str:
    """Returns the result of one attempt as a line of text. `Attempted.number` counts from 0, the text from 1."""
    if attempt.problem:
        return f"{attempt.number + 1}: {attempt.problem} ({' '.join(attempt.choices)})"
    mark = ", best so far" if attempt.best else ""
    error = f", error {attempt.error:.1e}" if attempt.error >= 0 else ""
    return f"{attempt.number + 1}: {attempt.ratio:.3f} x the time of eager{error}{mark}"


def tuning_lines(tuned: Tuned, initial: Sequence[str] = ()) -> list[str]:
    """Returns the result of tuning as lines of text, with the choices that are not in `initial`, the first recipe's."""
    changed = [choice for choice in tuned.choices if choice not in initial]
    # A search for precisions has nodes, and tries all its recipes.
    total = "" if tuned.nodes else f" of {tuned.size:,}"
    recipes = "recipe" if tuned.nodes and tuned.tried == 1 else "recipes"
    lines = [f"tried {tuned.tried}{total} {recipes} in {tuned.seconds:.0f} s"]
    if not changed:
        lines.append("no faster recipe was found")
    elif tuned.gain:
        interval = f"{tuned.gain_low:.3f} to {tuned.gain_high:.3f}"
        lines.append(f"{tuned.gain:.3f} x speedup (95 % interval: {interval}), {tuned.ratio:.3f} x the time of eager")
    else:
        lines.append(f"{tuned.ratio:.3f} x the time of eager")
    return [*lines, *(f"  {choice}" for choice in changed), *(f"note: {note}" for note in tuned.notes)]


def saving_text(seconds: float) -> str:
    """Returns the time that a precision saves in a run, in milliseconds; negative if the node takes longer."""
    return f"{1e3 * seconds:.3f} ms"


def ranked_nodes(tuned: Tuned) -> list[NodePrecision]:
    """Returns the products of a search for precisions by the time that they save, the most first; f32 saves none."""
    return sorted(tuned.nodes, key=lambda node: -(node.effect.saved if node.effect is not None else 0.0))


def timed_by_error(attempts: Sequence[Attempted]) -> list[Attempted]:
    """Returns the attempts that were timed, sorted by error."""
    return sorted((attempt for attempt in attempts if not attempt.problem), key=lambda attempt: attempt.error)


def error_time_rows(attempts: Sequence[Attempted]) -> list[tuple[str, str, str]]:
    """Returns the error, the relative time and the precisions of each recipe that was timed, sorted by error."""
    return [
        (f"{attempt.error:.1e}" if attempt.error > 0 else "0", f"{attempt.ratio:.3f}", ", ".join(attempt.choices))
        for attempt in timed_by_error(attempts)
    ]


def precision_rows(tuned: Tuned, names: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """Returns the name, precision, time saved and error of each product that is not in f32.

    `names` are the names of nodes to show, by stable name.
    """
    return [
        (names.get(node.node, node.node), node.precision, saving_text(node.effect.saved), _effect_error(node.effect))
        for node in ranked_nodes(tuned)
        if node.effect is not None
    ]


def _effect_error(effect: PrecisionEffect) -> str:
    return f"{effect.error:.1e}" if effect.error >= 0 else "not measured"


def error_time_plot(tuned: Tuned, attempts: Sequence[Attempted]) -> Plot:
    """Plots the time of each recipe over its error, and the estimates of the greedy search along its Pareto front.

    The search estimates how many seconds a recipe saves compared with all products in f32.
    """
    timed = timed_by_error(attempts)
    measured = Series(
        "measured", [max(attempt.error, 0.0) for attempt in timed], [attempt.ratio for attempt in timed], "points",
        [", ".join(attempt.choices) for attempt in timed],
    )  # fmt: skip
    # Only a recipe with all products in f32 has no error.
    f32_attempt = next((attempt for attempt in timed if attempt.error <= 0 and attempt.median), None)
    series = [measured]
    if f32_attempt is not None and tuned.front:
        xs = [point.error for point in tuned.front]
        ys = [f32_attempt.ratio * max(0.0, 1 - point.saved / f32_attempt.median) for point in tuned.front]
        series.insert(0, Series("estimated", xs, ys, "line"))
    note = "root mean square of the difference of an output from eager, relative to that of eager"
    return Plot("Time over error", tuple(series), PlotAxis("error"), PlotAxis("compiled over eager"), note)


def tuning_json(tuned: Tuned, attempts: Sequence[Attempted]) -> dict[str, object]:
    """Returns the result of tuning and its attempts as plain values."""
    attempts_json = [
        {
            "choices": list(attempt.choices), "ratio": attempt.ratio, "seconds": attempt.median,
            "eager_seconds": attempt.eager, "compile_seconds": attempt.compile_seconds, "problem": attempt.problem,
            "elapsed": attempt.elapsed, "error": attempt.error,
        }
        for attempt in attempts
    ]  # fmt: skip
    gain = {"median": tuned.gain, "low": tuned.gain_low, "high": tuned.gain_high}
    return {
        "choices": list(tuned.choices), "ratio": tuned.ratio, "gain": gain, "tried": tuned.tried, "size": tuned.size,
        "seconds": tuned.seconds, "notes": list(tuned.notes), "tries": attempts_json,
        **({"nodes": msgspec.to_builtins(tuned.nodes)} if tuned.nodes else {}),
        **({"front": msgspec.to_builtins(tuned.front)} if tuned.front else {}),
    }  # fmt: skip


def tuning_plot(attempts: Sequence[Attempted]) -> Plot:
    """Plots the time of each recipe relative to eager, and the lowest one so far, over the time of the search."""
    measured = [attempt for attempt in attempts if not attempt.problem]
    elapsed = [attempt.elapsed for attempt in measured]
    ratios = [attempt.ratio for attempt in measured]
    names = [" ".join(attempt.choices) for attempt in measured]
    series = (
        Series("tried", elapsed, ratios, "points", names),
        Series("best so far", elapsed, list(accumulate(ratios, min)), "line", names),
    )
    n_failed = len(attempts) - len(measured)
    note = f"{n_failed} more had a mismatch, failed or timed out" if n_failed else ""
    return Plot("compiled over eager", series, PlotAxis("s"), PlotAxis("ratio", log=True), note)
