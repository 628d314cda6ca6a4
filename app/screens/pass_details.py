"""What a pass did: its time, ops that came and went by name, and its remarks on nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from buddy.app.reports import formatting
from buddy.app.screens.detail import DetailScreen
from buddy.app.widgets.look import Cells
from buddy.app.workspace.pipeline_text import spelled

if TYPE_CHECKING:
    from buddy.app.panes.passes import PassRow

BAR = 14


def pass_screen(
    row: PassRow, summary: str, remarks: Sequence[tuple[str, str, str]], glyphs: formatting.Glyphs
) -> DetailScreen:
    """`remarks` are the pass's, `(pass, node, text)`."""
    lines: list[Cells] = [[(summary or "nothing is known of this pass", "text")], []]
    if row.step is not None:
        anchor = row.step.anchor or "the graph"
        lines += [[("pass      ", "dim"), (spelled(row.step), "accent")], [("runs on   ", "dim"), (anchor, "text")]]
    stage = row.stage.stage if row.stage else None
    if stage is not None:
        lines.append([("took      ", "dim"), (formatting.milliseconds(stage.milliseconds) or "no time", "text")])
        lines.append([("then      ", "dim"), (f"{formatting.count(stage.ops)} ops", "text")])
        lines += _deltas(stage.deltas, stage.changed, glyphs)
    if remarks:
        lines += [[], [("What it said of nodes", "title")]]
        lines += [[(f"  {node:<24} ", "dim"), (text, "text")] for _, node, text in remarks]
    return DetailScreen(row.name, lines)


def _deltas(deltas: Sequence[tuple[str, int]], changed: bool, glyphs: formatting.Glyphs) -> list[Cells]:
    """A line for each kind of op that there is more or less of, with a bar."""
    lines: list[Cells] = [[], [("Ops that came and went", "title")]]
    if not deltas:
        return [*lines, [("  the same ops as before" if changed else "  nothing changed", "dim")]]
    most = max(abs(delta) for _, delta in deltas)
    for name, delta in deltas:
        sign, role = ("+", "ok") if delta > 0 else (glyphs.minus, "bad")
        bar = formatting.bar(abs(delta) / most, BAR, glyphs)
        lines.append([(f"  {sign}{abs(delta):<7}", role), (f"{name:<32} ", "text"), (bar, "bar")])
    return lines
