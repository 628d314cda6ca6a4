"""The Python lines of a graph: the nodes of each, how they are compiled, their time, or why a line has no nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from buddy.app.actions import key_of
from buddy.app.reports import formatting
from buddy.app.reports.profile import milliseconds
from buddy.compiler.protocol import LineKind, NodeRow, NodeTime, PythonStructure
from buddy.compiler.protocol.recipe import EAGER

# The number of colours that tell lines apart: the roles `line-1` to `line-6` of a theme.
N_COLOURS = 6
_NO_OPERATION = "without an operation on tensors"


class Place(NamedTuple):
    """A line of the Python file `path`, counted from 0."""

    path: str
    line: int


def read_place(location: str) -> Place | None:
    """The place that a location names, `file:line` with the line counted from 1; `None` for other texts."""
    path, _, line = location.rpartition(":")
    return Place(path, int(line) - 1) if path and line.isdecimal() else None


class PythonLines:
    """The nodes of each Python line of a graph, by stable name.

    The nodes `at` a line are computed by it; those `called_at` a line are computed by the functions that it calls.
    `locations` are those of the callers, to which the rows refer by index.
    """

    def __init__(self, rows: Sequence[NodeRow] = (), locations: Sequence[str] = ()) -> None:
        self._places = {row.stable: place for row in rows if (place := read_place(row.location)) is not None}
        callers = [read_place(location) for location in locations]
        at: defaultdict[Place, list[str]] = defaultdict(list)
        called: defaultdict[Place, dict[str, None]] = defaultdict(dict)
        for row in rows:
            if row.stable in self._places:
                at[self._places[row.stable]].append(row.stable)
            for place in (callers[index] for index in row.callers):
                if place is not None:
                    called[place][row.stable] = None
        self._at = {place: tuple(nodes) for place, nodes in at.items()}
        self._called = {place: tuple(nodes) for place, nodes in called.items()}
        self._colours = {place: number % N_COLOURS + 1 for number, place in enumerate(sorted(self._at))}

    @property
    def paths(self) -> list[str]:
        """The files with nodes."""
        return list(dict.fromkeys(place.path for place in self._at))

    def place_of(self, node: str) -> Place | None:
        """The line that computes a node."""
        return self._places.get(node)

    def at(self, place: Place) -> tuple[str, ...]:
        return self._at.get(place, ())

    def called_at(self, place: Place) -> tuple[str, ...]:
        return self._called.get(place, ())

    def nodes_of(self, place: Place) -> tuple[str, ...]:
        """The nodes that a line computes, or, if it computes none itself, those of the functions that it calls."""
        return self.at(place) or self.called_at(place)

    def have_nodes(self, path: str, lines: Iterable[int]) -> bool:
        """Whether one of the lines computes nodes, or calls functions that do."""
        places = (Place(path, line) for line in lines)
        return any(place in self._at or place in self._called for place in places)

    def colour_of(self, nodes: Iterable[str]) -> str:
        """The theme's role for the first of `nodes` whose line is known, "" if none is. It is the same in all panes."""
        place = next((self._places[node] for node in nodes if node in self._places), None)
        return f"line-{self._colours[place]}" if place is not None else ""

    def colour_at(self, place: Place) -> str:
        return f"line-{self._colours[place]}" if place in self._colours else ""


class LineFacts(NamedTuple):
    """What a Python line computes.

    `mark` is `x` if all nodes of the line are compiled, `e` if one of them runs in eager, `:` if the line only calls
    functions with nodes. `seconds` is the time of the nodes in a profile, `None` without one;
    `share` is their share of the run. `is_fused` is true if their time is part of that of other nodes.
    """

    mark: str = " "
    nodes: tuple[str, ...] = ()
    n_eager: int = 0
    seconds: float | None = None
    share: float = 0.0
    is_fused: bool = False

    @property
    def role(self) -> str:
        return {"x": "ok", "e": "warn"}.get(self.mark, "dim")

    @property
    def time_text(self) -> str:
        """The time in milliseconds, for a column; `fused` if all of it is part of other lines."""
        if self.seconds is None:
            return ""
        return "fused" if self.is_fused else milliseconds(self.seconds)

    @property
    def share_text(self) -> str:
        return "" if self.seconds is None or self.is_fused else f"{self.share:.0%}"


class LineTimes(NamedTuple):
    """The times of a profile by node, and the duration of the run in seconds."""

    by_node: Mapping[str, NodeTime]
    run_seconds: float


def line_facts(lines: PythonLines, place: Place, lowerings: Mapping[str, str], times: LineTimes | None) -> LineFacts:
    """What the line at `place` computes. `lowerings` has the lowering of each node that has one."""
    nodes = lines.nodes_of(place)
    n_eager = sum(lowerings.get(node) == EAGER for node in nodes)
    mark = " " if not nodes else ":" if not lines.at(place) else "e" if n_eager else "x"
    timed = [times.by_node[node] for node in nodes if node in times.by_node] if times is not None else []
    if times is None or not timed:
        return LineFacts(mark, nodes, n_eager)
    seconds = sum(time.seconds for time in timed if not time.into)
    share = seconds / times.run_seconds if times.run_seconds > 0 else 0.0
    return LineFacts(mark, nodes, n_eager, seconds, share, all(time.into for time in timed))


def facts_text(facts: LineFacts, name: str) -> str:
    """A line with nodes in one phrase: one of them (`name`), how many run in eager, and their time."""
    count = len(facts.nodes)
    if facts.mark == ":":
        what = f"calls functions with {formatting.count(count)} node{'s' * (count != 1)}"
    else:
        what = f"{name} (+{count - 1})" if count > 1 else name
    eager = f"{facts.n_eager} in eager" if facts.n_eager else "compiled"
    time = f"{facts.time_text} ms, {facts.share_text} of the run" if facts.share_text else ""
    time = "its time is part of other lines, into which it is fused" if facts.is_fused else time
    return ", ".join(filter(None, (what, eager, time)))


def missing_nodes_text(
    place: Place, structure: PythonStructure, lines: PythonLines, other_graphs: Mapping[str, PythonLines]
) -> str:
    """Why no node comes from the line at `place`. `other_graphs` are the other graphs of the program, by name."""
    path, line = place
    other = next((name for name, others in other_graphs.items() if others.nodes_of(place)), "")
    if other:
        return f"its nodes are in the graph {other}: press {key_of('graph-choose')} to go there"
    kind = structure.kinds[line] if line < len(structure.kinds) else None
    fixed: dict[int, str] = {
        LineKind.BLANK: "an empty line",
        LineKind.COMMENT: "a comment",
        LineKind.STRING: "a string, which computes nothing",
        LineKind.IMPORT: "an import, which computes nothing",
    }
    if kind is None:
        return "no node of this graph comes from this line"
    if kind in fixed:
        return fixed[kind]
    statement = next(iter(structure.blocks_at(line, "statement")), None)
    if statement is not None and lines.have_nodes(path, range(statement.first, statement.last + 1)):
        return f"part of the statement at line {statement.first + 1}, whose nodes are at other lines of it"
    scope = next(iter(structure.blocks_at(line, "function", "class")), None)
    if scope is None or scope.kind == "class":
        return "runs when the module is loaded, outside of any captured function"
    if not lines.have_nodes(path, range(scope.first, scope.last + 1)):
        return f"no node of this graph comes from {scope.name}: not called in this capture, or {_NO_OPERATION}"
    if kind == LineKind.HEADER:
        return f"the header of {scope.name}; the nodes are at the lines below"
    # Branches around the whole function do not matter.
    branch = next((one for one in structure.blocks_at(line, "branch") if one.first > scope.first), None)
    if branch is not None and not lines.have_nodes(path, range(branch.first, branch.last + 1)):
        where = f"this `{branch.name}` (line {branch.head + 1})"
        return f"no node comes from {where}: not executed in this capture, or {_NO_OPERATION}"
    return "no operation on tensors, or one that TorchDynamo evaluated in the capture or that no result depends on"
