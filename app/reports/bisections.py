"""The result of a bisection as text, JSON and files, and its criterion."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from buddy.app.workspace.files import write_text_atomically
from buddy.compiler.protocol import BisectionResult, Criterion
from buddy.compiler.protocol.recipe import to_toml

# At most this many nodes of a set are listed.
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
    """Parses the two numbers of a criterion of this kind: the multiple of the tolerance, or for "slower" the minimum
    speedup, and the seconds that each step of a trial may take.

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
