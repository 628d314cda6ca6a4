"""Which graph nodes an op comes from: interned sets of nodes, carried as MLIR file locations `loc("<graph>":id:0)`.

A set has one number, never a `FusedLoc` over different nodes: LLVM turns such a location into line 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from buddy.compiler.bindings import ir

FILE = "graph"
_CONTAINERS = ("builtin.module", "func.func", "llvm.func")
_NUMBER = re.compile(r'"' + FILE + r'":(\d+):')


class LocationSets:
    """Sets of node names, numbered from 1; 0 is the empty set."""

    def __init__(self) -> None:
        self.sets: list[tuple[str, ...]] = [()]
        self._numbers: dict[tuple[str, ...], int] = {(): 0}

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
        found = {int(number) for number in _NUMBER.findall(str(location))}
        if len(found) <= 1:
            return found.pop() if found else 0
        return self.intern(name for number in found for name in self.sets[number])

    def fill(self, root: Any) -> None:
        """Give each op in `root` that has no nodes the union of its users' sets, marked derived by column 1.

        Upstream passes drop locations, above all of constants that they hoist and merge.
        """
        bare: list[Any] = []

        def visit(op: Any) -> Any:
            if "unknown" in str(op.location) and op.name not in _CONTAINERS:
                bare.append(op)
            return ir.WalkResult.ADVANCE

        root.walk(visit)
        # Users stand after what they use: backwards, a chain of bare ops is filled from its end.
        for op in reversed(bare):
            users = {self.number_of(use.owner.operation.location) for result in op.results for use in result.uses}
            number = self.intern(name for user in users for name in self.sets[user])
            if number:
                op.location = ir.Location.file(FILE, number, 1)

    def union(self, locations: Sequence[Any]) -> Any:
        """One location for what comes from all of `locations`: what a fusion gives its result."""
        numbers = {self.number_of(location) for location in locations}
        return self.location(name for number in numbers for name in self.sets[number])
