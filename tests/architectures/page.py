"""The page of architectures for the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.architectures.sweep import Outcome

_HEAD = """\
# Models

Small forms of these architectures, built from their configs with random weights, compiled and compared with eager.
A program may be several graphs, where Dynamo breaks it or sizes change; it is right when all that it returns is, and
what it writes to its buffers. Decoders read a prompt into their cache, then two more tokens. Errors are absolute.
Written by `python -m tests.architectures.sweep --page docs/models.md`.
"""


def page(outcomes: Sequence[Outcome]) -> str:
    """Markdown: a table, then the nodes in eager with their reasons."""
    right = sum(not outcome.fault for outcome in outcomes)
    compiled = sum(not outcome.fault and not outcome.eager for outcome in outcomes)
    summary = f"{right} of {len(outcomes)} are right, {compiled} of them without a node in eager."
    rows = [
        "| architecture | kind | parameters | graphs | nodes | in eager | largest error | |",
        "|---|---|--:|--:|--:|--:|--:|---|",
        *map(_row, outcomes),
    ]
    return "\n".join([_HEAD, summary, "", *rows, "", *_reasons(outcomes)])


def _row(outcome: Any) -> str:
    eager = sum(outcome.eager.values())
    cells = [
        outcome.name, outcome.kind, f"{outcome.parameters:,}", outcome.graphs, outcome.nodes, eager,
        f"{outcome.error:.1e}", outcome.fault or "right",
    ]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _reasons(outcomes: Sequence[Any]) -> list[str]:
    """What stays in eager, and in which architectures."""
    found: dict[str, dict[str, int]] = {}
    for outcome in outcomes:
        for reason, count in outcome.eager.items():
            found.setdefault(_short(reason), {})[outcome.name] = count
    if not found:
        return []
    lines = ["## In eager", "", "| node and reason | architectures |", "|---|---|"]
    for reason, counts in sorted(found.items()):
        where = ", ".join(f"{name} ({count})" for name, count in counts.items())
        lines.append(f"| {reason.replace('|', '/')} | {where} |")
    return [*lines, ""]


def _short(reason: str) -> str:
    """Without what a person would have to do, which is the same in every reason."""
    return reason.split("; docs/")[0].split(": a script adds")[0].split(": add a lowering")[0]
