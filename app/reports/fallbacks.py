"""The parts of a program that are not compiled: nodes in eager, graph breaks and guards. Does not import Textual."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from buddy.app.reports import formatting
from buddy.app.reports.formatting import table
from buddy.compiler.protocol import BREAK_FIX, BY_HAND, OPERATOR_GUIDE, Assignment, GraphInfo, NodeRow, ProfileReport
from buddy.compiler.protocol.recipe import EAGER

FallbackKind = Literal["eager", "break", "slow path", "error path", "guard", "not compiled"]
# The order of the rows. A graph that is not compiled yet comes first, because the lowerings of its nodes are unknown.
_ORDER: tuple[FallbackKind, ...] = ("not compiled", "eager", "break", "slow path", "error path", "guard")
# The fixes of guards, of nodes that the recipe runs in eager, and of other nodes in eager.
GUARD_FIX = "with another value, TorchDynamo compiles the function again; see torch.compile's dynamic= for sizes"
CHOICE_FIX = "remove the choice from the recipe"
EAGER_FIX = f"add a lowering ({OPERATOR_GUIDE}), or use other ops"


@dataclass(frozen=True)
class Fallback:
    """A row of the table of fallbacks: a node that is not compiled, a graph break or a guard.

    `node` is the stable name of the node, `line` its `file:line`; both are "" if unknown. `share` is the node's share
    (0..1) of the time of a run, `None` without a profile. `bytes` is the size of its results, 0 if unknown.
    """

    kind: FallbackKind
    graph: int
    name: str
    reason: str
    fix: str = ""
    node: str = ""
    line: str = ""
    share: float | None = None
    bytes: int = 0

    @property
    def title(self) -> str:
        """The name of the node, the reason of a graph break, or the condition of a guard."""
        return self.reason if self.kind == "break" else self.name

    @property
    def cost(self) -> str:
        """The share of the run's time; if it was not measured, the size of the results; empty if both are unknown."""
        if self.share is not None:
            return f"{self.share:.1%} of time"
        return formatting.size(self.bytes) if self.bytes else ""


@dataclass(frozen=True)
class GraphFacts:
    """A graph, its number, its lowerings (`assignments`, `None` if it is not compiled) and its profile, if valid."""

    number: int
    info: GraphInfo
    assignments: Sequence[Assignment] | None
    profile: ProfileReport | None = None


def fallback_rows(graphs: Sequence[GraphFacts]) -> list[Fallback]:
    """Returns the rows of a program by kind, the most expensive ones first. A guard of several graphs is one row."""
    rows = [row for facts in graphs for row in _graph_fallbacks(facts)]
    guards = dict[tuple[str, str], Fallback]()
    for row in rows:
        if row.kind == "guard":
            guards.setdefault((row.name, row.line), row)
    rows = [row for row in rows if row.kind != "guard"] + list(guards.values())
    return sorted(rows, key=lambda row: (_ORDER.index(row.kind), -(row.share or 0.0), -row.bytes))


def _graph_fallbacks(facts: GraphFacts) -> Iterator[Fallback]:
    """Yields the rows of one graph."""
    number, info = facts.number, facts.info
    if facts.assignments is None:
        yield Fallback("not compiled", number, info.name, "the lowerings of its nodes are not known yet")
    rows, shares = {row.stable: row for row in info.rows}, _shares(facts.profile)
    for assignment in facts.assignments or ():
        row = rows.get(assignment.node)
        if assignment.lowering == EAGER:
            reason = assignment.reason
            yield _node_fallback("eager", number, assignment, row, reason, _eager_fix(reason), shares)
        if assignment.slow_path:
            yield _node_fallback("slow path", number, assignment, row, f"eager if {assignment.slow_path}", "", shares)
        if assignment.error_path:
            yield _node_fallback("error path", number, assignment, row, f"eager if {assignment.error_path}", "", shares)
    if info.break_reason:
        yield Fallback("break", number, info.name, info.break_reason, info.break_fix or BREAK_FIX, line=info.break_line)
    for guard in info.guards:
        yield Fallback("guard", number, guard.condition, "", GUARD_FIX, line=guard.line)


def _eager_fix(reason: str) -> str:
    """Returns the fix for a node that runs in eager for `reason`; empty if the reason includes a fix."""
    if reason.startswith(BY_HAND):
        return CHOICE_FIX
    # A reason that names the guide also says what to add.
    return "" if OPERATOR_GUIDE in reason else EAGER_FIX


def _node_fallback(
    kind: FallbackKind, graph: int, assignment: Assignment, row: NodeRow | None, reason: str, fix: str,
    shares: Mapping[str, float] | None,
) -> Fallback:  # fmt: skip
    """Returns the fallback of a node. `row` is `None` if the graph does not have the node."""
    node = assignment.node
    share = None if shares is None else shares.get(node)
    if row is None:
        return Fallback(kind, graph, node, reason, fix, node, share=share)
    return Fallback(kind, graph, node, reason, fix, node, row.location, share, row.bytes)


def _shares(profile: ProfileReport | None) -> dict[str, float] | None:
    """Returns the share of the run's time by node, `None` without a profile. Nodes fused into others have no share."""
    if profile is None or not profile.whole:
        return None
    return {time.node: time.seconds / profile.whole for time in profile.nodes if not time.into}


# ---- text and JSON ---------------------------------------------------------------------------------------------------


def fallbacks_summary(graphs: Sequence[GraphFacts]) -> str:
    """Returns one line: the numbers of graphs, compiled nodes, nodes in eager with their ops, and graph breaks."""
    assignments = [assignment for facts in graphs for assignment in facts.assignments or ()]
    in_eager = Counter(_op(assignment.node) for assignment in assignments if assignment.lowering == EAGER)
    ops = ", ".join(f"{op} x{count}" if count > 1 else op for op, count in in_eager.most_common())
    n_breaks = sum(bool(facts.info.break_reason) for facts in graphs)
    n_uncompiled = sum(facts.assignments is None for facts in graphs)
    n_eager = sum(in_eager.values())
    parts = [
        formatting.counted(len(graphs), "graph"),
        f"{formatting.counted(len(assignments) - n_eager, 'node')} compiled",
        f"{n_eager} in eager ({ops})" if n_eager else "none in eager",
        formatting.counted(n_breaks, "graph break"),
    ]
    return ", ".join([*parts, *([f"{n_uncompiled} not compiled yet"] if n_uncompiled else [])])


def _op(node: str) -> str:
    """Returns the op in the stable name of a node: `my_scale` for `encoder/my_scale.0`."""
    return node.rpartition("/")[2].rpartition(".")[0] or node


def fallbacks_text(rows: Sequence[Fallback], summary_line: str) -> str:
    """Returns the summary, and a section for each kind of row.

    A section has a table, then each reason and fix once, with the rows that it applies to.
    """
    sections = [summary_line]
    for kind in _ORDER:
        section_rows = [row for row in rows if row.kind == kind]
        if section_rows:
            sections.append(f"{_TITLES[kind]}\n{_section(section_rows)}")
    return "\n\n".join(sections)


# The titles of the sections of the text.
_TITLES: Mapping[FallbackKind, str] = {
    "not compiled": "Not compiled",
    "eager": "Nodes in eager",
    "break": "Graph breaks",
    "slow path": "Compiled nodes with a slow path in eager",
    "error path": "Compiled nodes that ask eager for an error",
    "guard": "Guards: conditions on which compiled code is reused",
}


# The heading of the title column for kinds whose rows are not nodes. They have no cost.
_HEADINGS: Mapping[FallbackKind, str] = {"break": "reason", "guard": "condition", "not compiled": "graph's name"}


def _section(rows: Sequence[Fallback]) -> str:
    """Returns the table of rows of one kind, followed by each reason and fix."""
    kind = rows[0].kind
    if kind in _HEADINGS:
        heading = ["graph", _HEADINGS[kind], "line"]
        cells = [[row.graph, row.title, row.line] for row in rows]
    else:
        heading = ["graph", "node", "cost", "line"]
        cells = [[row.graph, row.title, row.cost, row.line] for row in rows]
    lines = table(heading, cells, frozenset(heading)).splitlines()
    fixes = [GUARD_FIX] if kind == "guard" else dict.fromkeys(_row_fix(row) for row in rows)
    return "\n".join(f"  {line}" for line in [*lines, *fixes])


def _row_fix(row: Fallback) -> str:
    """Returns the line about a row below the table. The title of a graph break is its reason, and is not repeated."""
    return f"{row.title}: {row.fix}" if row.kind == "break" else f"{row.name}: {reason_and_fix(row)}"


def reason_and_fix(row: Fallback) -> str:
    """Returns the reason and the fix of a row as one line."""
    return " · ".join(part for part in (row.reason, row.fix and f"fix: {row.fix}") if part)


def fallbacks_json(rows: Sequence[Fallback]) -> list[dict[str, object]]:
    """Returns the rows as plain values, without empty texts and without unknown shares."""
    keys = ("kind", "graph", "name", "node", "line", "reason", "fix", "share", "bytes")
    return [{key: getattr(row, key) for key in keys if getattr(row, key) not in ("", None)} for row in rows]
