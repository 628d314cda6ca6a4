"""The nodes that the Python lines of a program compute, how they are compiled, and why a line has no nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from buddy.app.actions import key_of
from buddy.app.reports import formatting
from buddy.app.reports.profile import in_milliseconds
from buddy.compiler.protocol import LineKind, NodeRow, NodeTime, PythonStructure
from buddy.compiler.protocol.recipe import EAGER

# The number of colours that tell lines apart: the roles `line-1` to `line-6` of a theme.
N_COLOURS = 6
# A reason why lines have no nodes.
_NO_OPERATION = "without an operation on tensors"


class PythonLocation(NamedTuple):
    """A line of the Python file `path`, counted from 0."""

    path: str
    line: int


def parse_location(text: str) -> PythonLocation | None:
    """Returns the location that a text names, `file:line` with the line counted from 1; `None` for other texts."""
    path, _, line = text.rpartition(":")
    return PythonLocation(path, int(line) - 1) if path and line.isdecimal() else None


class PythonLines:
    """The nodes of each Python line of a graph, by stable name.

    A line computes the nodes `at` it; the functions that a line calls compute the nodes `called_at` it.
    `caller_locations` are the lines that `NodeRow.callers` refers to by index.
    """

    def __init__(self, rows: Sequence[NodeRow] = (), caller_locations: Sequence[str] = ()) -> None:
        self._locations = {
            row.stable: location for row in rows if (location := parse_location(row.location)) is not None
        }
        callers = [parse_location(text) for text in caller_locations]
        at: defaultdict[PythonLocation, list[str]] = defaultdict(list)
        # The keys of a dictionary are an ordered set: a node may have two callers at the same line.
        called: defaultdict[PythonLocation, dict[str, None]] = defaultdict(dict)
        for row in rows:
            if row.stable in self._locations:
                at[self._locations[row.stable]].append(row.stable)
            for location in (callers[index] for index in row.callers):
                if location is not None:
                    called[location][row.stable] = None
        self._at = {location: tuple(nodes) for location, nodes in at.items()}
        self._called = {location: tuple(nodes) for location, nodes in called.items()}
        self._colours = {location: number % N_COLOURS + 1 for number, location in enumerate(sorted(self._at))}

    @property
    def paths(self) -> list[str]:
        """The files with nodes."""
        return list(dict.fromkeys(location.path for location in self._at))

    def location_of(self, node: str) -> PythonLocation | None:
        """Returns the line that computes a node."""
        return self._locations.get(node)

    def at(self, location: PythonLocation) -> tuple[str, ...]:
        """Returns the nodes that the line itself computes."""
        return self._at.get(location, ())

    def called_at(self, location: PythonLocation) -> tuple[str, ...]:
        """Returns the nodes that functions called at the line compute."""
        return self._called.get(location, ())

    def nodes_of(self, location: PythonLocation) -> tuple[str, ...]:
        """Returns the nodes that a line computes; without any, the nodes of the functions that the line calls."""
        return self.at(location) or self.called_at(location)

    def have_nodes(self, path: str, lines: Iterable[int]) -> bool:
        """Whether one of the lines computes nodes, or calls functions that do."""
        locations = (PythonLocation(path, line) for line in lines)
        return any(location in self._at or location in self._called for location in locations)

    def colour_of(self, nodes: Iterable[str]) -> str:
        """Returns `colour_at` the line of the first of `nodes` whose line is known, "" if no line is known."""
        location = next((self._locations[node] for node in nodes if node in self._locations), None)
        return self.colour_at(location) if location is not None else ""

    def colour_at(self, location: PythonLocation) -> str:
        """Returns the theme's role for a line, the same in all panes; "" if the line computes no nodes."""
        return f"line-{self._colours[location]}" if location in self._colours else ""


class LineFacts(NamedTuple):
    """What a Python line computes.

    `mark` is `x` if all nodes of the line are compiled, `e` if one of them runs in eager, `:` if the line only calls
    functions with nodes. `seconds` is the time of the nodes in a profile, `None` without one; `share` is its share of
    the run. `is_fused` is true if all nodes are fused into other nodes, whose times include theirs.
    """

    mark: str = " "
    nodes: tuple[str, ...] = ()
    n_eager: int = 0
    seconds: float | None = None
    share: float = 0.0
    is_fused: bool = False

    @property
    def role(self) -> str:
        """The theme's role for the mark."""
        return {"x": "ok", "e": "warn"}.get(self.mark, "dim")

    @property
    def time_text(self) -> str:
        """The time in milliseconds, for a column; `fused` if other lines have the time, empty without a profile."""
        if self.seconds is None:
            return ""
        return "fused" if self.is_fused else in_milliseconds(self.seconds)

    @property
    def share_text(self) -> str:
        """The share of the run; empty without a profile, or if the time is part of other lines."""
        return "" if self.seconds is None or self.is_fused else f"{self.share:.0%}"


class LineTimes(NamedTuple):
    """The times of a profile by node, and the duration of the run in seconds."""

    by_node: Mapping[str, NodeTime]
    run_seconds: float


def line_facts(
    lines: PythonLines, location: PythonLocation, lowerings: Mapping[str, str], times: LineTimes | None
) -> LineFacts:
    """Returns the facts about the line at `location`.

    `lowerings` are the lowerings of nodes by stable name. `times` is `None` without a profile.
    """
    nodes = lines.nodes_of(location)
    if not nodes:
        return LineFacts()
    n_eager = sum(lowerings.get(node) == EAGER for node in nodes)
    mark = ("e" if n_eager else "x") if lines.at(location) else ":"
    node_times = [times.by_node[node] for node in nodes if node in times.by_node] if times is not None else []
    if times is None or not node_times:
        return LineFacts(mark, nodes, n_eager)
    seconds = sum(time.seconds for time in node_times if not time.into)
    share = seconds / times.run_seconds if times.run_seconds > 0 else 0.0
    return LineFacts(mark, nodes, n_eager, seconds, share, is_fused=all(time.into for time in node_times))


def facts_text(facts: LineFacts, name: str) -> str:
    """Returns a line with nodes as one phrase: one node (`name`), how many nodes run in eager, and their time."""
    n_nodes = len(facts.nodes)
    if facts.mark == ":":
        subject = f"calls functions with {formatting.count(n_nodes)} node{'s' if n_nodes != 1 else ''}"
    else:
        subject = f"{name} (+{n_nodes - 1})" if n_nodes > 1 else name
    eager = f"{facts.n_eager} in eager" if facts.n_eager else "compiled"
    if facts.is_fused:
        time = "its time is part of other lines, into which it is fused"
    else:
        time = f"{facts.time_text} ms, {facts.share_text} of the run" if facts.share_text else ""
    return ", ".join(filter(None, (subject, eager, time)))


def missing_nodes_text(
    location: PythonLocation, structure: PythonStructure, lines: PythonLines, other_graphs: Mapping[str, PythonLines]
) -> str:
    """Returns why no node comes from the line at `location`.

    `other_graphs` are the other graphs of the program, by name.
    """
    path, line = location
    other_graph = next((name for name, its_lines in other_graphs.items() if its_lines.nodes_of(location)), "")
    if other_graph:
        return f"its nodes are in the graph {other_graph}: press {key_of('graph-choose')} to go there"
    kind = structure.kinds[line] if line < len(structure.kinds) else None
    # The kinds of lines that never have nodes.
    kind_texts: dict[int, str] = {
        LineKind.BLANK: "an empty line",
        LineKind.COMMENT: "a comment",
        LineKind.STRING: "a string, which computes nothing",
        LineKind.IMPORT: "an import, which computes nothing",
    }
    if kind is None:
        return "no node of this graph comes from this line"
    if kind in kind_texts:
        return kind_texts[kind]
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
    # A branch around the whole function explains nothing: the function has nodes.
    branch = next((block for block in structure.blocks_at(line, "branch") if block.first > scope.first), None)
    if branch is not None and not lines.have_nodes(path, range(branch.first, branch.last + 1)):
        where = f"this `{branch.name}` (line {branch.head + 1})"
        return f"no node comes from {where}: not executed in this capture, or {_NO_OPERATION}"
    return "no operation on tensors, or one that TorchDynamo evaluated in the capture or that no result depends on"
