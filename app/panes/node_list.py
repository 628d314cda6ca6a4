"""The nodes that the graph pane lists: a tree of modules, and a filter language.

A word selects nodes whose row contains it. `field:pattern` matches a field, with the wildcards `*` and `?`.
`field>value` (`<`, `>=`, `<=`, `=`) compares a number; `err` and `own` need a comparison of nodes. `-` before any of
these excludes the nodes. All conditions must be true.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType

from buddy.compiler.protocol import NodeRow
from buddy.compiler.protocol.renamed import FILTER_FIELDS


@dataclass(frozen=True)
class ModuleRow:
    """A module in the tree: its full path, and all nodes inside, including those of nested modules."""

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
    # Nodes and modules, in the order of their first appearance.
    entries: list[NodeRow | _Module] = field(default_factory=list)
    modules: dict[str, _Module] = field(default_factory=dict)


def tree_rows(rows: Sequence[NodeRow], folded: Collection[str]) -> list[TreeRow]:
    """The rows of modules and nodes, top down. Modules in `folded` have only their own row."""
    root = _Module("")
    for row in rows:
        _module_of(root, row).entries.append(row)
    found: list[TreeRow] = []
    _append_rows(root, -1, folded, found)
    return found


def _module_of(root: _Module, row: NodeRow) -> _Module:
    module = root
    for part in row.module.split(".") if row.module else ():
        if part not in module.modules:
            path = f"{module.path}.{part}" if module.path else part
            module.modules[part] = _Module(path)
            module.entries.append(module.modules[part])
        module = module.modules[part]
        module.nodes.append(row)
    return module


def _append_rows(module: _Module, depth: int, folded: Collection[str], found: list[TreeRow]) -> None:
    for entry in module.entries:
        if isinstance(entry, NodeRow):
            found.append(entry)
            continue
        found.append(ModuleRow(entry.path, depth + 1, tuple(entry.nodes), entry.path in folded))
        if entry.path not in folded:
            _append_rows(entry, depth + 1, folded, found)


def all_modules(rows: Sequence[NodeRow]) -> set[str]:
    """The paths of all modules of the nodes."""
    paths = set()
    for row in rows:
        parts = row.module.split(".") if row.module else []
        paths |= {".".join(parts[: count + 1]) for count in range(len(parts))}
    return paths


Test = Callable[["NodeFacts"], bool]
NOTHING: Mapping[str, str] = MappingProxyType({})
_NUMBER = re.compile(
    r"^(?P<field>\w+)(?P<sign><=|>=|[<>=])(?P<value>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?P<unit>[a-zA-Z]*)$"
)
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
# In milliseconds, like the column of the table.
_TIMES = {"": 1.0, "us": 1e-3, "ms": 1.0, "s": 1e3}
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<": lambda one, other: one < other,
    ">": lambda one, other: one > other,
    "<=": lambda one, other: one <= other,
    ">=": lambda one, other: one >= other,
    "=": lambda one, other: one == other,
}


class FilterError(ValueError):
    """An invalid filter. The text names the invalid part and the alternatives."""


@dataclass(frozen=True)
class NodeFacts:
    """The properties of a node that a filter can test: its row, its lowering, and the number of its users."""

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
        text = " ".join((row.name, row.target, row.shape, row.module, row.opcode, self.lowering))
        object.__setattr__(self, "words", text.lower())


_FIELDS: dict[str, Callable[[NodeFacts], list[str]]] = {
    "op": lambda facts: [op_kind(facts.row), facts.row.target, facts.row.opcode],
    "name": lambda facts: [facts.row.name],
    "shape": lambda facts: facts.row.shape.split(", "),
    "dtype": lambda facts: facts.row.dtype.split(", "),
    "strides": lambda facts: facts.row.strides.split(", "),
    "module": lambda facts: _prefixes(facts.row.module),
    "lowering": lambda facts: [facts.lowering],
    "function": lambda facts: [facts.function],
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


def read_filter(text: str, missing: Mapping[str, str] = NOTHING) -> Test:
    """A predicate for the nodes to show. Raises `FilterError`. `missing` has the reasons for missing numbers."""
    tests = [_read_term(term, missing) for term in text.split()]
    return lambda facts: all(test(facts) for test in tests)


def _read_term(term: str, missing: Mapping[str, str]) -> Test:
    bare = term.lstrip("-") or "-"
    if bare != term:
        test = _read_term(bare, missing)
        return (lambda facts: not test(facts)) if (len(term) - len(bare)) % 2 else test
    number = _NUMBER.match(term)
    if number is not None:
        return _number_test(term, number, missing)
    name, colon, pattern = term.partition(":")
    name = FILTER_FIELDS.get(name, name)
    if not colon or name not in _FIELDS:
        if colon and name in _NUMBERS:
            raise FilterError(f"{name} is a number: {name}>1, {name}<=8, {name}=2")
        if colon and name.isidentifier() and pattern and not pattern.startswith(":"):
            raise FilterError(f"unknown field {name!r}; known: {', '.join(_FIELDS)}")
        return lambda facts: term.lower() in facts.words
    values, wanted = _FIELDS[name], pattern.lower()
    return lambda facts: any(fnmatchcase(value.lower(), wanted) for value in values(facts))


def _number_test(term: str, found: re.Match[str], missing: Mapping[str, str]) -> Test:
    name, unit = found["field"], found["unit"].lower()
    if name not in _NUMBERS:
        raise FilterError(f"unknown numeric field {name!r}; known: {', '.join(_NUMBERS)}")
    if name in missing:
        raise FilterError(missing[name])
    units = _TIMES if name == "time" else _UNITS
    if unit not in units:
        known = "us, ms, s" if name == "time" else "kB, MB, GB"
        raise FilterError(f"unknown unit {found['unit']!r} in {term!r}; known: {known}")
    value, compare, wanted = _NUMBERS[name], _SIGNS[found["sign"]], float(found["value"]) * units[unit]
    return lambda facts: compare(value(facts), wanted)


def _prefixes(module: str) -> list[str]:
    """A module and its parents, so that a pattern for a module also matches nested modules."""
    parts = module.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]
