"""Shows a compilation as HTML in notebooks.

The HTML uses no script and no style sheet, since notebooks strip those from untrusted outputs, and inherits the page's
colours. Every text from the program is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Protocol

from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.plain_values import Assignment, Stage
from buddy.compiler.protocol.recipe import EAGER
from buddy.compiler.protocol.text.lines import StageText

# The limits for the texts and tables in HTML: a notebook is saved with its outputs.
MAX_LINES, MAX_CHARACTERS = 160, 240
MAX_ROWS = 400
# CSS of table cells, and of all texts.
_CELL = "text-align:left;padding:0 1em 0 0;vertical-align:top"
_MONO = "font-family:monospace;font-size:90%"


class ShownCompilation(Protocol):
    """The attributes of a `driver.compilation.Compilation` that are shown."""

    @property
    def stages(self) -> Sequence[Stage]: ...
    @property
    def texts(self) -> Sequence[StageText]: ...
    @property
    def artifact(self) -> Artifact: ...
    @property
    def assignments(self) -> Sequence[Assignment]: ...
    @property
    def remarks(self) -> Sequence[tuple[str, str, str]]: ...
    @property
    def seconds(self) -> float: ...
    @property
    def reused(self) -> int: ...


def html_of(compilation: ShownCompilation) -> str:
    """Returns a self-contained fragment of HTML with collapsible sections."""
    pairs = list(zip(compilation.stages, compilation.texts, strict=False))
    graph = next((text for stage, text in pairs if stage.language == "buddy"), None)
    sections = [
        _section(_nodes_title(compilation.assignments), _nodes_table(compilation.assignments, graph), is_open=True),
        _section(f"{len(compilation.stages)} stages", _stages_table(pairs), is_open=True),
    ]
    if compilation.remarks:
        rows = [(escape(name), escape(node), escape(text)) for name, node, text in compilation.remarks]
        sections.append(_section(f"{len(rows)} remarks", _table(("pass", "node", "remark"), rows)))
    return f'<div style="{_MONO}"><p>{_summary(compilation)}</p>{"".join(sections)}</div>'


def _summary(compilation: ShownCompilation) -> str:
    size = sum(map(len, compilation.artifact.objects))
    reused = f", {compilation.reused} stages from the cache" if compilation.reused else ""
    threads = f"{compilation.artifact.threads} thread{'s' * (compilation.artifact.threads != 1)}"
    return f"<b>compiled</b> in {_time(compilation.seconds * 1e3)}{reused}: {size:,} bytes of objects for {threads}"


def _nodes_title(assignments: Sequence[Assignment]) -> str:
    eager = sum(assignment.lowering == EAGER for assignment in assignments)
    return f"{len(assignments)} nodes" + (f", {eager} in eager" if eager else "")


def _nodes_table(assignments: Sequence[Assignment], text: StageText | None) -> str:
    rows = [
        tuple(map(escape, (assignment.node, assignment.lowering, assignment.function, assignment.reason)))
        for assignment in assignments
    ]
    table = _table(("node", "lowering", "function", ""), rows)
    return table + (_section("as text", _text(text.content)) if text is not None else "")


def _stages_table(pairs: Sequence[tuple[Stage, StageText]]) -> str:
    longest = max((stage.milliseconds for stage, _ in pairs), default=0.0)
    rows = [
        (
            _stage_section(stage, text) if stage.changed else f"<span style='opacity:0.6'>{escape(stage.name)}</span>",
            escape(stage.phase),
            _bar(stage.milliseconds, longest),
            str(stage.ops or ""),
            _op_change(stage),
        )
        for stage, text in pairs
    ]
    return _table(("stage", "phase", "time", "ops", "added and removed"), rows)


def _stage_section(stage: Stage, text: StageText) -> str:
    return _section(stage.name, _text(text.content))


def _op_change(stage: Stage) -> str:
    if not stage.changed:
        return "no change"
    return f"+{stage.added} −{stage.removed}" if stage.added or stage.removed else ""


def _bar(milliseconds: float, longest: float) -> str:
    """Returns a time above a bar whose length is proportional to its share of the longest time."""
    share = 100 * milliseconds / longest if longest else 0.0
    style = f"background:currentColor;opacity:0.4;height:0.3em;width:{share:.1f}%"
    return f'<div style="width:8em">{_time(milliseconds)}<div style="{style}"></div></div>'


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:.2f} s" if milliseconds >= 1e3 else f"{milliseconds:.1f} ms"


# ---- pieces of HTML --------------------------------------------------------------------------------------------------


def _section(title: str, content: str, is_open: bool = False) -> str:
    """Returns a collapsible section; `title` is text, `content` HTML."""
    return f"<details{' open' * is_open}><summary>{escape(title)}</summary>{content}</details>"


def _table(heads: Iterable[str], rows: Sequence[tuple[str, ...]]) -> str:
    """Returns a table; `heads` are text, the cells of `rows` HTML."""
    head = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) + "</tr>" for row in rows[:MAX_ROWS]
    )
    more = f"<p>… {len(rows) - MAX_ROWS:,} more</p>" if len(rows) > MAX_ROWS else ""
    return f'<table style="{_MONO}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}'


def _text(content: str) -> str:
    lines = content.splitlines()
    shown = [line if len(line) <= MAX_CHARACTERS else line[:MAX_CHARACTERS] + "…" for line in lines[:MAX_LINES]]
    more = f"\n… {len(lines) - MAX_LINES:,} more lines" if len(lines) > MAX_LINES else ""
    style = "max-height:30em;overflow:auto;text-align:left;white-space:pre"
    return f'<pre style="{style}">{escape(chr(10).join(shown) + more)}</pre>'
