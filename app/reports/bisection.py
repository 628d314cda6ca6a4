"""The result of a bisection as text, JSON and files. No Textual."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from buddy.app.workspace.atomic_write import write_whole
from buddy.compiler.protocol import BisectionResult, Criterion
from buddy.compiler.protocol.recipe import to_toml

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
