"""The details of a pass: its time, the ops it added and removed, and its remarks about nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from buddy.app.reports import formatting
from buddy.app.screens.detail import DetailScreen
from buddy.app.widgets.look import Cells
from buddy.app.workspace.pipeline_text import spell_step

if TYPE_CHECKING:
    from buddy.app.panes.passes import PassRow

BAR = 14


def pass_screen(
    row: PassRow, summary: str, remarks: Sequence[tuple[str, str, str]], glyphs: formatting.Glyphs
) -> DetailScreen:
    """`remarks` are the pass's, `(pass, node, text)`."""
    lines: list[Cells] = [[(summary or "this pass is not in the catalogue", "text")], []]
    if row.step is not None:
        anchor = row.step.anchor or "the graph"
        lines += [[("pass      ", "dim"), (spell_step(row.step), "accent")], [("runs on   ", "dim"), (anchor, "text")]]
    stage = row.stage.stage if row.stage else None
    if stage is not None:
        lines.append([("time      ", "dim"), (formatting.milliseconds(stage.milliseconds) or "no time", "text")])
        lines.append([("result    ", "dim"), (f"{formatting.count(stage.ops)} ops", "text")])
        lines += _deltas(stage.deltas, stage.changed, glyphs)
    if remarks:
        lines += [[], [("Remarks about nodes", "title")]]
        lines += [[(f"  {node:<24} ", "dim"), (text, "text")] for _, node, text in remarks]
    return DetailScreen(row.name, lines)


def _deltas(deltas: Sequence[tuple[str, int]], changed: bool, glyphs: formatting.Glyphs) -> list[Cells]:
    """A line with a bar for each op whose count changed."""
    lines: list[Cells] = [[], [("Ops added and removed", "title")]]
    if not deltas:
        return [*lines, [("  the same ops as before" if changed else "  nothing changed", "dim")]]
    most = max(abs(delta) for _, delta in deltas)
    for name, delta in deltas:
        sign, role = ("+", "ok") if delta > 0 else (glyphs.minus, "bad")
        bar = formatting.bar(abs(delta) / most, BAR, glyphs)
        lines.append([(f"  {sign}{abs(delta):<7}", role), (f"{name:<32} ", "text"), (bar, "bar")])
    return lines
