"""The nodes that the graph pane lists: their tree of modules, and the filter language.

A filter consists of conditions, all of which must be true. A word is true for nodes whose name, target, shape, module,
opcode or lowering contains it. `field:pattern` matches a field, with the wildcards `*` and `?`. `field>value` (also
`<`, `>=`, `<=`, `=`) compares a number; nodes have the numbers `err` and `own` after a comparison of nodes with eager.
A `-` before a condition negates it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType

from buddy.compiler.protocol import NodeRow
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.renamed import FILTER_FIELDS


@dataclass(frozen=True)
class ModuleRow:
    """A module in the tree: its full path, and its nodes, including those of nested modules."""

    path: str
    depth: int
    nodes: tuple[NodeRow, ...]
    folded: bool

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


TreeRow = NodeRow | ModuleRow


@dataclass
class _Module:
    path: str
    nodes: list[NodeRow] = field(default_factory=list)
    # The nodes and modules directly inside, in the order of their first node.
    entries: list[NodeRow | _Module] = field(default_factory=list)
    modules: dict[str, _Module] = field(default_factory=dict)


def tree_rows(rows: Sequence[NodeRow], folded: Collection[str]) -> list[TreeRow]:
    """The rows of modules and nodes, top down. For the modules in `folded` (paths), only the row of the module."""
    root = _Module("")
    for row in rows:
        _add_to_modules(root, row).entries.append(row)
    result: list[TreeRow] = []
    _append_rows(root, -1, folded, result)
    return result


def _add_to_modules(root: _Module, row: NodeRow) -> _Module:
    """Add a node to all modules that contain it, which are created if necessary. Returns the innermost one."""
    module = root
    for part in row.module.split(".") if row.module else ():
        if part not in module.modules:
            path = f"{module.path}.{part}" if module.path else part
            module.modules[part] = _Module(path)
            module.entries.append(module.modules[part])
        module = module.modules[part]
        module.nodes.append(row)
    return module


def _append_rows(module: _Module, depth: int, folded: Collection[str], result: list[TreeRow]) -> None:
    """Append the rows inside a module, which is at `depth` (-1 for the root), to `result`."""
    for entry in module.entries:
        if isinstance(entry, NodeRow):
            result.append(entry)
            continue
        result.append(ModuleRow(entry.path, depth + 1, tuple(entry.nodes), entry.path in folded))
        if entry.path not in folded:
            _append_rows(entry, depth + 1, folded, result)


def all_modules(rows: Sequence[NodeRow]) -> set[str]:
    """The paths of all modules that contain nodes, directly or in nested modules."""
    return {path for row in rows if row.module for path in _prefixes(row.module)}


Predicate = Callable[["NodeFacts"], bool]
NO_REASONS: Mapping[str, str] = MappingProxyType({})
_NUMBER_CONDITION = re.compile(
    r"^(?P<field>\w+)(?P<sign><=|>=|[<>=])(?P<value>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?P<unit>[a-zA-Z]*)$"
)
_BYTE_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
# Time units in milliseconds, the unit of the table's column.
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

    `uses` is the number of users. `err` and `own` are the errors in the program and of the node compiled alone, NaN if
    not measured. `words` is the text in which a word of a filter is searched.
    """

    row: NodeRow
    lowering: str = ""
    function: str = ""
    uses: int = 0
    err: float = math.nan
    own: float = math.nan
    seconds: float | None = None
    words: str = field(init=False)

    def __post_init__(self) -> None:
        row = self.row
        text = " ".join((row.display_name, row.name, row.target, row.shape, row.module, row.opcode, self.lowering))
        object.__setattr__(self, "words", text.lower())


# The text fields. A pattern matches a node if it matches one of the values of the field.
_FIELDS: dict[str, Callable[[NodeFacts], list[str]]] = {
    "op": lambda facts: [op_kind(facts.row), facts.row.target, facts.row.opcode],
    "name": lambda facts: [facts.row.display_name, facts.row.short_name, facts.row.name],
    "shape": lambda facts: facts.row.shape.split(", "),
    "dtype": lambda facts: facts.row.dtype.split(", "),
    "strides": lambda facts: facts.row.strides.split(", "),
    "module": lambda facts: _prefixes(facts.row.module),
    "lowering": lambda facts: [facts.lowering],
    "function": lambda facts: [facts.function],
    "training": lambda facts: [facts.row.training],
    "line": lambda facts: [facts.row.location, facts.row.location.rpartition("/")[2]],
}
_NUMBERS: dict[str, Callable[[NodeFacts], float]] = {
    "mem": lambda facts: facts.row.bytes,
    "index": lambda facts: facts.row.index,
    "rank": lambda facts: len(facts.row.shape.split(", ")[0].split("x")) if facts.row.shape else 0,
    "uses": lambda facts: facts.uses,
    "err": lambda facts: facts.err,
    "own": lambda facts: facts.own,
    "time": lambda facts: (facts.seconds or 0.0) * 1e3,
}


def op_kind(row: NodeRow) -> str:
    """The op without its namespace and overload: `mm` of `aten.mm.default`."""
    target = row.target.removeprefix("<built-in function ").removesuffix(">")
    parts = target.split(".")
    return parts[1] if len(parts) == 3 else parts[-1]


def read_filter(text: str, missing: Mapping[str, str] = NO_REASONS) -> Predicate:
    """Parses a filter to a predicate. Raises `FilterError`, also for a numeric field in `missing`, with its message."""
    conditions = [_read_condition(condition, missing) for condition in text.split()]
    return lambda facts: all(is_true(facts) for is_true in conditions)


def _read_condition(condition: str, missing: Mapping[str, str]) -> Predicate:
    positive = condition.lstrip("-") or "-"
    if positive != condition:
        is_true = _read_condition(positive, missing)
        # An even number of `-` cancels out.
        return (lambda facts: not is_true(facts)) if (len(condition) - len(positive)) % 2 else is_true
    number = _NUMBER_CONDITION.match(condition)
    if number is not None:
        return _number_predicate(condition, number, missing)
    name, colon, pattern = condition.partition(":")
    name = FILTER_FIELDS.get(name, name)
    if not colon or name not in _FIELDS:
        if colon and name in _NUMBERS:
            raise FilterError(f"{name} is a number: {name}>1, {name}<=8, {name}=2")
        if colon and name.isidentifier() and pattern and not pattern.startswith(":"):
            raise FilterError(f"unknown field {name!r}; known: {', '.join(_FIELDS)}")
        return lambda facts: condition.lower() in facts.words
    values_of = _FIELDS[name]
    return lambda facts: any(fnmatchcase(value.lower(), pattern.lower()) for value in values_of(facts))


def _number_predicate(condition: str, parts: re.Match[str], missing: Mapping[str, str]) -> Predicate:
    name, unit = parts["field"], parts["unit"].lower()
    if name not in _NUMBERS:
        raise FilterError(f"unknown numeric field {name!r}; known: {', '.join(_NUMBERS)}")
    if name in missing:
        raise FilterError(missing[name])
    units = _TIME_UNITS if name == "time" else _BYTE_UNITS
    if unit not in units:
        known = "us, ms, s" if name == "time" else "kB, MB, GB"
        raise FilterError(f"unknown unit {parts['unit']!r} in {condition!r}; known: {known}")
    value_of, is_true, bound = _NUMBERS[name], _COMPARISONS[parts["sign"]], float(parts["value"]) * units[unit]
    return lambda facts: is_true(value_of(facts), bound)


def _prefixes(module: str) -> list[str]:
    """The paths of a module and of the modules that contain it."""
    parts = module.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]
