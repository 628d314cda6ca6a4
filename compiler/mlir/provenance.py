"""Records which graph nodes an op comes from: interned sets of nodes, as MLIR file locations `loc("graph":number:0)`.

A location has the number of one set, and is never a `FusedLoc` of several: LLVM turns such a location into line 0. In a
set, a node is either direct (the op comes from it) or derived: taken from neighbouring ops, because a pass has dropped
the location of the op.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from buddy.compiler.mlir.bindings import ir

FILE = "graph"
_NUMBER = re.compile(r'"' + FILE + r'":(\d+):')
# The attributes by which ops refer to functions and globals.
_SYMBOL_ATTRIBUTES = ("callee", "global_name", "name")


class LocationSets:
    """Sets of node names, numbered from 1; 0 is the empty set. `derived[k]` are the derived names of set `k`.

    A set lists its direct nodes first, then the derived ones.
    """

    def __init__(self) -> None:
        self.sets: list[tuple[str, ...]] = [()]
        self.derived: dict[int, tuple[str, ...]] = {}
        # The number of each set, by its direct and its derived names.
        self._numbers: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {((), ()): 0}
        # Keyed by location attribute: printing a location takes five times as long as this look-up.
        self._numbers_by_location: dict[Any, int] = {}

    @classmethod
    def of(cls, sets: Sequence[tuple[str, ...]], derived: Mapping[int, tuple[str, ...]]) -> LocationSets:
        """Returns the sets of another `LocationSets`, with the same numbers."""
        result = cls()
        for number, names in enumerate(sets[1:], 1):
            derived_names = derived.get(number, ())
            result.intern(names[: len(names) - len(derived_names)], derived_names)
        return result

    def intern(self, names: Iterable[str], derived: Iterable[str] = ()) -> int:
        """Returns the number of the set of `names` and `derived`, in any order; a name in both is not derived."""
        direct = set(names)
        direct_names, derived_names = tuple(sorted(direct)), tuple(sorted(set(derived) - direct))
        key = direct_names, derived_names
        if key not in self._numbers:
            number = self._numbers[key] = len(self.sets)
            self.sets.append(direct_names + derived_names)
            if derived_names:
                self.derived[number] = derived_names
        return self._numbers[key]

    def location(self, names: Iterable[str], derived: Iterable[str] = ()) -> ir.Location:
        """Returns a location for `names` and `derived`, in the current MLIR context."""
        return self._location_of_set(self.intern(names, derived))

    def number_of(self, location: ir.Location) -> int:
        """Returns the number of the union of all sets in `location`, a location of any kind."""
        number = self._numbers_by_location.get(location.attr)
        if number is None:
            number = self._numbers_by_location[location.attr] = self.number_in(str(location))
        return number

    def number_in(self, text: str) -> int:
        """Returns the number of the union of all sets in a location that is printed as `text`."""
        return self.unite(map(int, _NUMBER.findall(text)))

    def is_direct(self, number: int) -> bool:
        """Returns whether some node of set `number` is direct."""
        return len(self.sets[number]) > len(self.derived.get(number, ()))

    def as_derived(self, number: int) -> int:
        """Returns the number of the set of the same nodes, all of them derived."""
        return self.intern((), self.sets[number])

    def unite(self, numbers: Iterable[int]) -> int:
        """Returns the number of the union of sets; a node that is direct in one of them is direct in the union."""
        numbers = set(numbers)
        if len(numbers) <= 1:
            return next(iter(numbers), 0)
        direct = [name for number in numbers for name in self._direct(number)]
        return self.intern(direct, (name for number in numbers for name in self.derived.get(number, ())))

    def _direct(self, number: int) -> tuple[str, ...]:
        """Returns the direct nodes of set `number`."""
        names = self.sets[number]
        return names[: len(names) - len(self.derived.get(number, ()))]

    def _location_of_set(self, number: int, context: ir.Context | None = None) -> ir.Location:
        return ir.Location.file(FILE, number, 0, context=context)

    def unmapped_location(self, context: ir.Context | None = None) -> ir.Location:
        """Returns the location of ops without a node; not `unknown`, which LLVM's debug information rejects."""
        return self._location_of_set(0, context)

    def union(self, locations: Sequence[ir.Location]) -> ir.Location:
        """Returns the location of an op that replaces ops at `locations`, such as a fused op."""
        return self._location_of_set(self.unite(map(self.number_of, locations)))

    # ---- ops without a location ----------------------------------------------------------------------------------

    def fill(self, root: ir.Operation) -> int:
        """Gives each op in `root` without a node its neighbours' nodes, as derived; returns the number of such ops.

        Upstream passes drop locations, especially of constants that they hoist and merge. An op gets the nodes of its
        users; without users, those of its operands, else of the enclosing op; a declaration or a global gets those of
        the ops that refer to it. If none of these has a node, the op gets the `unmapped_location`.
        """
        unlocated: list[Any] = []
        arguments: list[Any] = []

        def visit(op: ir.Operation) -> ir.WalkResult:
            if not self.number_of(op.location) and op.name != "builtin.module":
                unlocated.append(op)
            for region in op.regions:
                block_arguments = (argument for block in region.blocks for argument in block.arguments)
                arguments.extend(
                    (argument, op) for argument in block_arguments if not self.number_of(argument.location)
                )
            return ir.WalkResult.ADVANCE

        root.walk(visit)
        # Backwards, because users follow their operands. Symbols, and ops inside of functions without nodes, need the
        # results of the first round.
        for _ in range(2):
            references = self._referring_sets(root) if any(map(_symbol, unlocated)) else {}
            for op in reversed(unlocated):
                if not self.number_of(op.location):
                    nearest_sets = next((sets for sets in self._neighbours(op, references) if sets), set())
                    op.location = self._location_of_set(self.as_derived(self.unite(nearest_sets)), op.context)
        for argument, op in arguments:
            argument.set_location(self._location_of_set(self.number_of(op.location), op.context))
        return len(unlocated)

    def _neighbours(self, op: ir.Operation, references: dict[str, set[int]]) -> Iterator[set[int]]:
        """Yields groups of sets (numbers) from which the set of `op` may be derived, the nearest neighbours first."""
        yield self._sets_of(use.owner.operation for result in op.results for use in result.uses)
        yield self._sets_of(value.owner for value in op.operands if isinstance(value, ir.OpResult))
        yield references.get(_symbol(op), set())
        parent = op.parent.operation if op.parent is not None else None
        if parent is not None and parent.name != "builtin.module":
            yield self._sets_of([parent])

    def _sets_of(self, ops: Iterable[ir.Operation]) -> set[int]:
        """Returns the numbers of the ops' sets that are not empty."""
        return {number for op in ops if (number := self.number_of(op.location))}

    def _referring_sets(self, root: ir.Operation) -> dict[str, set[int]]:
        """Returns for each symbol the numbers of the sets of the ops that refer to the symbol."""
        sets_by_symbol: defaultdict[str, set[int]] = defaultdict(set)

        def visit(op: ir.Operation) -> ir.WalkResult:
            for key in _SYMBOL_ATTRIBUTES:
                if key in op.attributes and isinstance(op.attributes[key], ir.FlatSymbolRefAttr):
                    sets_by_symbol[op.attributes[key].value].update(self._sets_of([op]))
            return ir.WalkResult.ADVANCE

        root.walk(visit)
        return sets_by_symbol


def _symbol(op: ir.Operation) -> str:
    """Returns the symbol that `op` defines, or ""."""
    return str(op.attributes["sym_name"].value) if "sym_name" in op.attributes else ""
