"""Which graph nodes an op comes from: interned sets of nodes, carried as MLIR file locations `loc("<graph>":id:0)`.

A set has one number, never a `FusedLoc` over different nodes: LLVM turns such a location into line 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from buddy.compiler.bindings import ir

FILE = "graph"
_NUMBER = re.compile(r'"' + FILE + r'":(\d+):')


class LocationSets:
    """Sets of node names, numbered from 1; 0 is the empty set."""

    def __init__(self) -> None:
        self.sets: list[tuple[str, ...]] = [()]
        self._numbers: dict[tuple[str, ...], int] = {(): 0}
        # By attribute: spelling a location out takes five times as long as looking it up.
        self._known: dict[Any, int] = {}

    def intern(self, names: Iterable[str]) -> int:
        """The number of the set of `names`, whatever their order."""
        key = tuple(sorted(set(names)))
        if key not in self._numbers:
            self._numbers[key] = len(self.sets)
            self.sets.append(key)
        return self._numbers[key]

    def location(self, names: Iterable[str]) -> Any:
        """A location for `names`, in the current MLIR context."""
        return ir.Location.file(FILE, self.intern(names), 0)

    def number_of(self, location: Any) -> int:
        """The set that `location` (of any kind) stands for; several sets inside are united."""
        known = self._known.get(location.attr)
        if known is None:
            known = self._known[location.attr] = self.number_in(str(location))
        return known

    def number_in(self, text: str) -> int:
        """The set that a location stands for of which `text` is the spelling."""
        return self._united({int(number) for number in _NUMBER.findall(text)})

    def _united(self, numbers: set[int]) -> int:
        if len(numbers) <= 1:
            return next(iter(numbers), 0)
        return self.intern(name for number in numbers for name in self.sets[number])

    def nowhere(self, context: Any = None) -> Any:
        """The location of what comes from no node: never `unknown`, which LLVM's debug information refuses."""
        return ir.Location.file(FILE, 0, 0, context=context)

    def fill(self, root: Any) -> None:
        """Give each op in `root` without a location the union of its users' sets, marked derived by column 1.

        Upstream passes drop locations, above all of constants that they hoist and merge. An op that nobody uses takes
        those of the op around it; what still has none comes from no node.
        """
        bare: list[Any] = []
        unknown: dict[Any, bool] = {}

        def visit(op: Any) -> Any:
            place = op.location.attr
            if place not in unknown:
                unknown[place] = "unknown" in str(op.location)
            if unknown[place]:
                bare.append(op)
            return ir.WalkResult.ADVANCE

        root.walk(visit)
        # Users stand after what they use: backwards, a chain of bare ops is filled from its end.
        for op in reversed(bare):
            users = {self.number_of(use.owner.operation.location) for result in op.results for use in result.uses}
            around = op.parent.operation if op.parent is not None else None
            if not users and around is not None and around.name != "builtin.module":
                users = {self.number_of(around.location)}
            number = self.intern(name for user in users for name in self.sets[user])
            op.location = ir.Location.file(FILE, number, 1) if number else self.nowhere()

    def union(self, locations: Sequence[Any]) -> Any:
        """One location for what comes from all of `locations`: what a fusion gives its result."""
        return ir.Location.file(FILE, self._united({self.number_of(location) for location in locations}), 0)
