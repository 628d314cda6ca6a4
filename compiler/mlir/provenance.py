"""Which graph nodes an op comes from: interned sets of nodes, carried as MLIR file locations `loc("<graph>":id:0)`.

A set has one number, never a `FusedLoc` over different nodes: LLVM turns such a location into line 0. A set says of
each of its nodes whether it is the op's own, or was derived from the ops around it: a pass had dropped the location.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from buddy.compiler.mlir.bindings import ir

FILE = "graph"
_NUMBER = re.compile(r'"' + FILE + r'":(\d+):')
# The attributes by which ops name functions and globals.
_SYMBOLS = ("callee", "global_name", "name")


class LocationSets:
    """Sets of node names, numbered from 1; 0 is the empty set. `derived[k]` are the names of set `k` that are derived.

    A set lists its own nodes first, then the derived ones.
    """

    def __init__(self) -> None:
        self.sets: list[tuple[str, ...]] = [()]
        self.derived: dict[int, tuple[str, ...]] = {}
        self._numbers: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {((), ()): 0}
        # By attribute: spelling a location out takes five times as long as looking it up.
        self._known: dict[Any, int] = {}

    @classmethod
    def of(cls, sets: Sequence[tuple[str, ...]], derived: Mapping[int, tuple[str, ...]]) -> LocationSets:
        """The sets that another `LocationSets` has numbered, by the same numbers."""
        found = cls()
        for number, names in enumerate(sets[1:], 1):
            later = derived.get(number, ())
            found.intern(names[: len(names) - len(later)], later)
        return found

    def intern(self, names: Iterable[str], derived: Iterable[str] = ()) -> int:
        """The number of the set of `names` and `derived`, whatever their order; a name in both is not derived."""
        direct = set(names)
        key = tuple(sorted(direct)), tuple(sorted(set(derived) - direct))
        if key not in self._numbers:
            number = self._numbers[key] = len(self.sets)
            self.sets.append(key[0] + key[1])
            if key[1]:
                self.derived[number] = key[1]
        return self._numbers[key]

    def location(self, names: Iterable[str], derived: Iterable[str] = ()) -> Any:
        """A location for `names` and `derived`, in the current MLIR context."""
        return self._at(self.intern(names, derived))

    def number_of(self, location: Any) -> int:
        """The set that `location` (of any kind) stands for; several sets inside are united."""
        known = self._known.get(location.attr)
        if known is None:
            known = self._known[location.attr] = self.number_in(str(location))
        return known

    def number_in(self, text: str) -> int:
        """The set that a location stands for of which `text` is the spelling."""
        return self.united(map(int, _NUMBER.findall(text)))

    def is_direct(self, number: int) -> bool:
        """Whether some node of set `number` is the op's own."""
        return len(self.sets[number]) > len(self.derived.get(number, ()))

    def as_derived(self, number: int) -> int:
        """The set of the same nodes, all of them derived."""
        return self.intern((), self.sets[number])

    def united(self, numbers: Iterable[int]) -> int:
        """The set of all nodes of several sets; one that is the op's own in any of them is its own."""
        numbers = set(numbers)
        if len(numbers) <= 1:
            return next(iter(numbers), 0)
        direct = [name for number in numbers for name in self._direct(number)]
        return self.intern(direct, (name for number in numbers for name in self.derived.get(number, ())))

    def _direct(self, number: int) -> tuple[str, ...]:
        names = self.sets[number]
        return names[: len(names) - len(self.derived.get(number, ()))]

    def _at(self, number: int, context: Any = None) -> Any:
        return ir.Location.file(FILE, number, 0, context=context)

    def nowhere(self, context: Any = None) -> Any:
        """The location of what comes from no node: never `unknown`, which LLVM's debug information refuses."""
        return self._at(0, context)

    def union(self, locations: Sequence[Any]) -> Any:
        """One location for what comes from all of `locations`: what a fusion gives its result."""
        return self._at(self.united(map(self.number_of, locations)))

    # ---- ops without a location ----------------------------------------------------------------------------------

    def fill(self, root: Any) -> int:
        """Give each op in `root` that leads to no node its neighbours' sets united, as derived; how many ops these are.

        Upstream passes drop locations, above all of constants that they hoist and merge. An op comes from the nodes of
        its users; one that has none, from those of what it reads, else of the op around it; a declaration or a global
        from those of the ops that name it. What still leads nowhere is that of no node: its location is `nowhere`.
        """
        bare: list[Any] = []
        arguments: list[Any] = []

        def visit(op: Any) -> Any:
            if not self.number_of(op.location) and op.name != "builtin.module":
                bare.append(op)
            for region in op.regions:
                found = (argument for block in region.blocks for argument in block.arguments)
                arguments.extend((argument, op) for argument in found if not self.number_of(argument.location))
            return ir.WalkResult.ADVANCE

        root.walk(visit)
        # Users stand after what they use: backwards, a chain of bare ops is filled from its end. Ops that name symbols,
        # and those inside of bare functions, are placed once the others are.
        for _ in range(2):
            symbols = self._named_by(root) if any(map(_symbol, bare)) else {}
            for op in reversed(bare):
                if not self.number_of(op.location):
                    near = next((found for found in self._neighbours(op, symbols) if found), set())
                    op.location = self._at(self.as_derived(self.united(near)), op.context)
        for argument, op in arguments:
            argument.set_location(self._at(self.number_of(op.location), op.context))
        return len(bare)

    def _neighbours(self, op: Any, symbols: dict[str, set[int]]) -> Iterator[set[int]]:
        """The sets of those from which `op` may be derived, the nearest first."""
        yield self._some(use.owner.operation for result in op.results for use in result.uses)
        yield self._some(value.owner for value in op.operands if isinstance(value, ir.OpResult))
        yield symbols.get(_symbol(op), set())
        around = op.parent.operation if op.parent is not None else None
        if around is not None and around.name != "builtin.module":
            yield self._some([around])

    def _some(self, ops: Iterable[Any]) -> set[int]:
        return {number for op in ops if (number := self.number_of(op.location))}

    def _named_by(self, root: Any) -> dict[str, set[int]]:
        """The sets of the ops that name each symbol."""
        found: defaultdict[str, set[int]] = defaultdict(set)

        def visit(op: Any) -> Any:
            for key in _SYMBOLS:
                if key in op.attributes and isinstance(op.attributes[key], ir.FlatSymbolRefAttr):
                    found[op.attributes[key].value].update(self._some([op]))
            return ir.WalkResult.ADVANCE

        root.walk(visit)
        return found


def _symbol(op: Any) -> str:
    """The symbol that `op` defines, or ""."""
    return str(op.attributes["sym_name"].value) if "sym_name" in op.attributes else ""
