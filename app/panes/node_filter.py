"""The filter language of the graph pane; `parse_filter` describes it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType

from buddy.app.panes.module_tree import module_paths
from buddy.compiler.protocol import NodeRow
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.renamed import FILTER_FIELDS

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

    `function` is the MLIR function with the node, and `uses` the number of its users. `err` is the error of the node in
    the program, and `own` that of the node compiled alone; both are NaN if not measured. `seconds` is its time in a
    profile, `None` if not measured. `searched_text` is the lower-case text in which words of a filter are searched.
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


# The text fields. A pattern matches a node if it matches one of the values of the field.
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
# The numeric fields. NaN, for a node without a value, fulfils no comparison.
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
    """Returns the op without its namespace and overload: `mm` of `aten.mm.default`."""
    target = row.target.removeprefix("<built-in function ").removesuffix(">")
    parts = target.split(".")
    return parts[1] if len(parts) == 3 else parts[-1]


def parse_filter(text: str, unavailable: Mapping[str, str] = _ALL_AVAILABLE) -> Predicate:
    """Parses a filter to a predicate.

    A filter consists of conditions, all of which must be true. A word is true for nodes whose name, target, shape,
    module, opcode or lowering contains it. `field:pattern` matches a field, with the wildcards `*` and `?`.
    `field>value` (also `<`, `>=`, `<=`, `=`) compares a number; nodes have the numbers `err` and `own` after a
    comparison of nodes with eager. A `-` before a condition negates it.

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
        # An even number of `-` cancels out.
        is_negated = (len(condition) - len(positive)) % 2 == 1
        return (lambda facts: not is_true(facts)) if is_negated else is_true
    numeric_match = _NUMBER_CONDITION.match(condition)
    if numeric_match is not None:
        return _numeric_predicate(condition, numeric_match, unavailable)
    name, colon, pattern = condition.partition(":")
    name = FILTER_FIELDS.get(name, name)
    if not colon or name not in _TEXT_FIELDS:
        if colon and name in _NUMERIC_FIELDS:
            raise FilterError(f"{name} is a number: {name}>1, {name}<=8, {name}=2")
        if colon and name.isidentifier() and pattern and not pattern.startswith(":"):
            raise FilterError(f"unknown field {name!r}; known: {', '.join(_TEXT_FIELDS)}")
        return lambda facts: condition.lower() in facts.searched_text
    values_of = _TEXT_FIELDS[name]
    return lambda facts: any(fnmatchcase(value.lower(), pattern.lower()) for value in values_of(facts))


def _numeric_predicate(condition: str, match: re.Match[str], unavailable: Mapping[str, str]) -> Predicate:
    """Parses a comparison with a number, which `_NUMBER_CONDITION` matched."""
    name, unit = match["field"], match["unit"].lower()
    if name not in _NUMERIC_FIELDS:
        raise FilterError(f"unknown numeric field {name!r}; known: {', '.join(_NUMERIC_FIELDS)}")
    if name in unavailable:
        raise FilterError(unavailable[name])
    units = _TIME_UNITS if name == "time" else _BYTE_UNITS
    if unit not in units:
        known = "us, ms, s" if name == "time" else "kB, MB, GB"
        raise FilterError(f"unknown unit {match['unit']!r} in {condition!r}; known: {known}")
    value_of, is_true = _NUMERIC_FIELDS[name], _COMPARISONS[match["comparison"]]
    bound = float(match["value"]) * units[unit]
    return lambda facts: is_true(value_of(facts), bound)
