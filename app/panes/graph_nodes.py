"""The nodes of the graph pane as data: the tree of modules, the filter, neighbours. Does not import Textual.

`parse_filter` describes the filter language. Neighbours, the operands and users of nodes, are drawn as DOT (for
Graphviz) or SVG.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import NamedTuple

from buddy.compiler.protocol import NodeRow
from buddy.compiler.protocol.compatibility import FILTER_FIELDS
from buddy.compiler.protocol.errors import BuddyError

# ---- the tree of modules ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModuleRow:
    """A module in the tree: its full path, its depth (0 at the top), and its nodes, including nested modules' nodes."""

    path: str
    depth: int
    nodes: tuple[NodeRow, ...]
    folded: bool

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rpartition(".")[2]


TreeRow = NodeRow | ModuleRow


@dataclass
class _Module:
    """A module while the tree is built. `nodes` includes the nodes of nested modules; the root has the path ""."""

    path: str
    nodes: list[NodeRow] = field(default_factory=list)
    # The nodes and modules directly inside, in the order of their first node.
    entries: list[NodeRow | _Module] = field(default_factory=list)
    # The modules directly inside, by the last component of their paths.
    modules: dict[str, _Module] = field(default_factory=dict)


def tree_rows(rows: Sequence[NodeRow], folded: Collection[str]) -> list[TreeRow]:
    """Returns the rows of modules and nodes, top down.

    `folded` are the paths of the modules whose nodes and nested modules have no rows.
    """
    root = _Module("")
    for row in rows:
        _add_to_modules(root, row).entries.append(row)
    result: list[TreeRow] = []
    _append_rows(root, -1, folded, result)
    return result


def _add_to_modules(root: _Module, row: NodeRow) -> _Module:
    """Adds a node to the `nodes` of all modules that contain it, and creates missing modules. Returns the innermost."""
    module = root
    for name in row.module.split(".") if row.module else ():
        if name not in module.modules:
            path = f"{module.path}.{name}" if module.path else name
            module.modules[name] = _Module(path)
            module.entries.append(module.modules[name])
        module = module.modules[name]
        module.nodes.append(row)
    return module


def _append_rows(module: _Module, depth: int, folded: Collection[str], result: list[TreeRow]) -> None:
    """Appends the rows of the entries of a module, which is at `depth` (-1 for the root), to `result`."""
    for entry in module.entries:
        if isinstance(entry, NodeRow):
            result.append(entry)
            continue
        result.append(ModuleRow(entry.path, depth + 1, tuple(entry.nodes), entry.path in folded))
        if entry.path not in folded:
            _append_rows(entry, depth + 1, folded, result)


def all_modules(rows: Sequence[NodeRow]) -> set[str]:
    """Returns the paths of all modules that contain nodes, directly or in nested modules."""
    return {path for row in rows if row.module for path in module_paths(row.module)}


def module_paths(module: str) -> list[str]:
    """Returns the paths of a module and of the modules that contain it, the outermost first."""
    parts = module.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


# ---- the filter ------------------------------------------------------------------------------------------------------


# Returns whether a node satisfies a condition.
Predicate = Callable[["NodeFacts"], bool]
# The default of `unavailable` in `parse_filter`: all numeric fields have values.
_ALL_AVAILABLE: Mapping[str, str] = MappingProxyType({})
# A comparison with a number, such as `mem>1MB`.
_NUMBER_CONDITION = re.compile(
    r"^(?P<field>\w+)(?P<comparison><=|>=|[<>=])(?P<value>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?P<unit>[a-zA-Z]*)$"
)
# Units of memory in bytes.
_BYTE_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
# Units of time in milliseconds. A number without a unit is in milliseconds, as in the table's column of times.
_TIME_UNITS = {"": 1.0, "us": 1e-3, "ms": 1.0, "s": 1e3}
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": lambda value, bound: value < bound,
    ">": lambda value, bound: value > bound,
    "<=": lambda value, bound: value <= bound,
    ">=": lambda value, bound: value >= bound,
    "=": lambda value, bound: value == bound,
}


class FilterError(BuddyError, ValueError):
    """A filter is invalid. The message names the invalid part and, if a name is unknown, the known names."""


@dataclass(frozen=True)
class NodeFacts:
    """The properties of a node that a filter can test.

    `function` is the MLIR function with the node, and `uses` the number of the node's users. `err` is the error of the
    node in the program, and `own` the error of the node compiled alone; both are NaN if not measured. `seconds` is its
    time in a profile, `None` if not measured. `searched_text` is the lower-case text in which a filter's words are
    searched.
    """

    row: NodeRow
    lowering: str = ""
    function: str = ""
    uses: int = 0
    err: float = math.nan
    own: float = math.nan
    seconds: float | None = None
    searched_text: str = field(init=False)

    def __post_init__(self) -> None:
        row = self.row
        text = " ".join((row.display_name, row.name, row.target, row.shape, row.module, row.opcode, self.lowering))
        object.__setattr__(self, "searched_text", text.lower())


# The values of each text field for a node. A pattern matches the node if it matches one of them.
_TEXT_FIELDS: dict[str, Callable[[NodeFacts], list[str]]] = {
    "op": lambda facts: [op_kind(facts.row), facts.row.target, facts.row.opcode],
    "name": lambda facts: [facts.row.display_name, facts.row.short_name, facts.row.name],
    "shape": lambda facts: facts.row.shape.split(", "),
    "dtype": lambda facts: facts.row.dtype.split(", "),
    "strides": lambda facts: facts.row.strides.split(", "),
    "module": lambda facts: module_paths(facts.row.module),
    "lowering": lambda facts: [facts.lowering],
    "function": lambda facts: [facts.function],
    "training": lambda facts: [facts.row.training],
    "line": lambda facts: [facts.row.location, facts.row.location.rpartition("/")[2]],
}
# The value of each numeric field for a node. NaN, which stands for no value, fulfils no comparison.
_NUMERIC_FIELDS: dict[str, Callable[[NodeFacts], float]] = {
    "mem": lambda facts: facts.row.bytes,
    "index": lambda facts: facts.row.index,
    "rank": lambda facts: len(facts.row.shape.split(", ")[0].split("x")) if facts.row.shape else 0,
    "uses": lambda facts: facts.uses,
    "err": lambda facts: facts.err,
    "own": lambda facts: facts.own,
    "time": lambda facts: facts.seconds * 1e3 if facts.seconds is not None else math.nan,
}


def op_kind(row: NodeRow) -> str:
    """Returns the op of a node without its namespace and overload: `mm` for `aten.mm.default`."""
    target = row.target.removeprefix("<built-in function ").removesuffix(">")
    components = target.split(".")
    return components[1] if len(components) == 3 else components[-1]


def parse_filter(text: str, unavailable: Mapping[str, str] = _ALL_AVAILABLE) -> Predicate:
    """Parses a filter to a predicate.

    A filter consists of conditions, separated by spaces, all of which must be true. A word is true for nodes whose
    name, target, shape, module, opcode or lowering contains it. `field:pattern` matches a field, with the wildcards
    `*` and `?`. `field>value` (also `<`, `>=`, `<=`, `=`) compares a number; nodes have the numbers `err` and `own`
    after a comparison of nodes with eager. A `-` before a condition negates it.

    `unavailable` are the numeric fields without values, each with an error message. Raises `FilterError` for an invalid
    filter, and, with that message, for a filter that uses one of these fields.
    """
    conditions = [_parse_condition(condition, unavailable) for condition in text.split()]
    return lambda facts: all(is_true(facts) for is_true in conditions)


def _parse_condition(condition: str, unavailable: Mapping[str, str]) -> Predicate:
    """Parses one condition, with any number of `-` before it."""
    positive = condition.lstrip("-") or "-"
    if positive != condition:
        is_true = _parse_condition(positive, unavailable)
        n_negations = len(condition) - len(positive)
        return (lambda facts: not is_true(facts)) if n_negations % 2 == 1 else is_true
    numeric_match = _NUMBER_CONDITION.match(condition)
    if numeric_match is not None:
        return _numeric_predicate(condition, numeric_match, unavailable)
    name, colon, pattern = condition.partition(":")
    name = FILTER_FIELDS.get(name, name)
    if colon and name in _TEXT_FIELDS:
        values_of = _TEXT_FIELDS[name]
        return lambda facts: any(fnmatchcase(value.lower(), pattern.lower()) for value in values_of(facts))
    if colon and name in _NUMERIC_FIELDS:
        raise FilterError(f"{name} is a number: {name}>1, {name}<=8, {name}=2")
    # A word with `::`, such as a C++ name, has no field.
    if colon and name.isidentifier() and pattern and not pattern.startswith(":"):
        raise FilterError(f"unknown field {name!r}; known: {', '.join(_TEXT_FIELDS)}")
    return lambda facts: condition.lower() in facts.searched_text


def _numeric_predicate(condition: str, match: re.Match[str], unavailable: Mapping[str, str]) -> Predicate:
    """Parses a comparison with a number. `match` is the match of `_NUMBER_CONDITION` in `condition`."""
    name, unit = match["field"], match["unit"].lower()
    if name not in _NUMERIC_FIELDS:
        raise FilterError(f"unknown numeric field {name!r}; known: {', '.join(_NUMERIC_FIELDS)}")
    if name in unavailable:
        raise FilterError(unavailable[name])
    units = _TIME_UNITS if name == "time" else _BYTE_UNITS
    if unit not in units:
        known_units = "us, ms, s" if name == "time" else "kB, MB, GB"
        raise FilterError(f"unknown unit {match['unit']!r} in {condition!r}; known: {known_units}")
    value_of, is_true = _NUMERIC_FIELDS[name], _COMPARISONS[match["comparison"]]
    bound = float(match["value"]) * units[unit]
    return lambda facts: is_true(value_of(facts), bound)


# ---- neighbours and drawings -----------------------------------------------------------------------------------------


# Sizes in pixels of an SVG drawing: of a character and a line at font size 12, of the padding in a box, and of the
# horizontal and the vertical gap between boxes.
_CHARACTER_WIDTH, _LINE_HEIGHT = 7, 16
_PADDING, _GAP_X, _GAP_Y = 8, 24, 40
# The distance in pixels from the bottom of a line to the baseline of its text.
_DESCENT = 2


class _Box(NamedTuple):
    """The box of a node in an SVG drawing, in pixels."""

    left: int
    top: int
    width: int
    height: int


class NodeNeighbours:
    """The edges of the graph with the nodes `rows`. The attribute `rows` maps an index to the node."""

    def __init__(self, rows: Sequence[NodeRow]) -> None:
        self.rows = {row.index: row for row in rows}
        # The indices of the users of each node.
        self._users_of: dict[int, list[int]] = {row.index: [] for row in rows}
        for row in rows:
            for operand in row.inputs:
                self._users_of[operand].append(row.index)

    def producers(self, row: NodeRow) -> list[NodeRow]:
        """The nodes whose results `row` reads."""
        return [self.rows[operand] for operand in row.inputs]

    def users(self, row: NodeRow) -> list[NodeRow]:
        """The nodes that read the result of `row`."""
        return [self.rows[user] for user in self._users_of[row.index]]

    def within(self, row: NodeRow, distance: int) -> list[NodeRow]:
        """The nodes that are at most `distance` edges away from `row`, in graph order."""
        reached, newly_reached = {row.index}, [row]
        for _ in range(distance):
            neighbours = {
                other.index: other for node in newly_reached for other in (*self.producers(node), *self.users(node))
            }
            newly_reached = [other for index, other in neighbours.items() if index not in reached]
            reached |= set(neighbours)
        return [self.rows[index] for index in sorted(reached)]


def _label_lines(row: NodeRow) -> list[str]:
    """Returns the lines of a node's label: its name, its op if the name does not contain it, and its type."""
    op = op_kind(row) if row.opcode.startswith("call") else row.opcode
    op_lines = [op] if op not in row.display_name else []
    return [row.display_name, *op_lines, " ".join(filter(None, (row.dtype, row.shape)))]


def draw_dot(rows: Sequence[NodeRow], centre: NodeRow) -> str:
    """Returns the nodes and the edges between them in DOT. `centre` is emphasised."""
    indices = {row.index for row in rows}
    lines = ["digraph {", '  node [shape=box, fontname="monospace", fontsize=11];']
    for row in rows:
        label_text = "\\n".join(_escape(line) for line in _label_lines(row) if line)
        style = ", penwidth=3" if row.index == centre.index else ""
        lines.append(f'  n{row.index} [label="{label_text}"{style}];')
    lines += [f"  n{operand} -> n{row.index};" for row in rows for operand in row.inputs if operand in indices]
    return "\n".join([*lines, "}", ""])


def _escape(text: str) -> str:
    """Returns `text` for use in a string of DOT."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def draw_svg(rows: Sequence[NodeRow], centre: NodeRow) -> str:
    """Returns the nodes and the edges between them as SVG. Each node is below its operands. `centre` is emphasised.

    `rows` must be in topological order.
    """
    layers = _layers(rows)
    boxes = _boxes(layers)
    width = max(box.left + box.width for box in boxes.values()) + _PADDING
    height = max(box.top + box.height for box in boxes.values()) + _PADDING
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="monospace" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    elements += [
        _edge_element(boxes[operand], boxes[row.index]) for row in rows for operand in row.inputs if operand in boxes
    ]
    elements += [_box_element(boxes[row.index], row, is_centre=row.index == centre.index) for row in rows]
    return "\n".join([*elements, "</svg>", ""])


def _layers(rows: Sequence[NodeRow]) -> list[list[NodeRow]]:
    """Returns the nodes in layers, top down: operands are in earlier layers than their users."""
    # The length of the longest path to each node, by index.
    depths: dict[int, int] = {}
    for row in rows:
        depths[row.index] = max((depths[operand] + 1 for operand in row.inputs if operand in depths), default=0)
    _move_inputs_down(rows, depths)
    layers: list[list[NodeRow]] = [[] for _ in range(max(depths.values()) + 1)]
    for row in rows:
        layers[depths[row.index]].append(row)
    return [layer for layer in layers if layer]


def _move_inputs_down(rows: Sequence[NodeRow], depths: dict[int, int]) -> None:
    """Moves nodes without operands in `rows` directly above their first user, to shorten edges."""
    for row in rows:
        if not any(operand in depths for operand in row.inputs):
            user_depths = [depths[other.index] for other in rows if row.index in other.inputs]
            depths[row.index] = max(min(user_depths, default=1) - 1, 0)


def _boxes(layers: Sequence[Collection[NodeRow]]) -> dict[int, _Box]:
    """Returns the boxes of the nodes of `layers`, by the index of the node."""
    boxes: dict[int, _Box] = {}
    top = _PADDING
    for layer in layers:
        left, layer_height = _PADDING, 0
        for row in layer:
            label = _label_lines(row)
            width = max(map(len, label)) * _CHARACTER_WIDTH + 2 * _PADDING
            height = len(label) * _LINE_HEIGHT + _PADDING
            boxes[row.index] = _Box(left, top, width, height)
            left += width + _GAP_X
            layer_height = max(layer_height, height)
        top += layer_height + _GAP_Y
    return boxes


def _edge_element(start: _Box, end: _Box) -> str:
    """Returns a curve from the bottom of `start` to the top of `end`."""
    x1, y1 = start.left + start.width // 2, start.top + start.height
    x2, y2 = end.left + end.width // 2, end.top
    middle = (y1 + y2) // 2
    return f'<path d="M{x1} {y1} C{x1} {middle} {x2} {middle} {x2} {y2}" fill="none" stroke="#888888"/>'


def _box_element(box: _Box, row: NodeRow, *, is_centre: bool) -> str:
    """Returns the SVG elements of a node: its box and its label."""
    # Imported on demand: the tables of entities in `html` would make the start of the workbench slower.
    from html import escape

    x, y, width, height = box
    stroke_width = 3 if is_centre else 1
    text = "".join(
        f'<text x="{x + _PADDING}" y="{y + _LINE_HEIGHT * number - _DESCENT}">{escape(line)}</text>'
        for number, line in enumerate(_label_lines(row), 1)
    )
    shape = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="#f4f4f4" stroke="#222222" '
    return f'{shape}stroke-width="{stroke_width}"/>{text}'
