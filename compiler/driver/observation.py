"""Instruments a program to record intermediate values. By default it records only values that are already in memory.

Fusion is determined from the compiled program: two nodes that one loop computes are in one location set, so the value
between them is in memory only if something else reads it too. The instrumented program is compared with the original:
if a loop computes other nodes than before, recording has changed the program, and it is removed there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from buddy.compiler.driver import compile_graph
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import GetItemOp, Op, OutputOp, ReshapeFamilyOp
from buddy.compiler.graph.operations.observing import ObserveOp
from buddy.compiler.graph.partition import Partition, PartitionCall
from buddy.compiler.graph.transform.observe import BEHIND, SHOWS, can_be_shown
from buddy.compiler.mlir.walk import collect
from buddy.compiler.ops.registry import Registry
from buddy.compiler.protocol.numerics_report import Seen
from buddy.compiler.protocol.pass_facts import facts
from buddy.compiler.protocol.recipe import PassStep, Recipe

# From the first pass that lowers these on, a loop is no longer one op that says which nodes it computes.
_LOOPS = ("structured-ops", "loops")
_ROUNDS = 3

Groups = frozenset[frozenset[str]]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Observation:
    """An instrumented recipe, its program without instrumentation, and how each captured node is observed."""

    recipe: Recipe
    plain: compile_graph.Through
    seen: dict[str, Seen]
    notes: tuple[str, ...] = ()


def observation(
    graph: Graph, recipe: Recipe, first: Registry | None, every: bool, tell: Tell = lambda _what: None
) -> Observation:
    """`recipe` for `graph`, instrumented for the values that are in memory anyway, or with `every` for all.

    `first` is a registry with priority over all others. Raises `CompilationError`.
    """
    tell("determining what is fused")
    looked = compile_graph.through(graph, _as_loops(recipe), first)
    plain, groups = looked.graph, _groups(looked)
    places = _Places(plain, looked.lowered.partition, groups)
    free = [op for op in plain.operations if places.in_memory(op)]
    if every:
        return _all_shown(graph, recipe, looked, {op.stable for op in free})
    shown = {op.stable: places.end(op).stable for op in free}
    for _round in range(_ROUNDS):
        tell(f"compiling with {len(shown)} values recorded")
        with_taps = _with_taps(recipe, shown)
        found = _groups(compile_graph.through(graph, _as_loops(with_taps), first)) if shown else groups
        changed = {name for group in found ^ groups for name in group} & shown.keys()
        if not changed:
            return Observation(with_taps, looked, _seen(graph, plain, {*shown}, set()))
        shown = {name: place for name, place in shown.items() if name not in changed}
    note = "recording values has changed what is fused: they are marked materialised"
    return Observation(with_taps, looked, _seen(graph, plain, {*shown}, changed), (note,))


def _all_shown(graph: Graph, recipe: Recipe, looked: compile_graph.Through, free: set[str]) -> Observation:
    shown = {op.stable: op.stable for op in looked.graph.operations if can_be_shown(op)}
    names = set(shown)
    note = f"{len(names - free)} values were written to memory to be recorded: this is a program without their fusions"
    seen = _seen(graph, looked.graph, names & free, names - free)
    return Observation(_with_taps(recipe, shown), looked, seen, (note,) if names - free else ())


def _seen(captured: Graph, plain: Graph, shown: set[str], changed: set[str]) -> dict[str, Seen]:
    left = {op.stable for op in plain.operations}
    # A node with several results is observed if its results are.
    shown |= {op.args[0].stable for op in plain.operations if isinstance(op, GetItemOp) and op.stable in shown}

    def of(name: str) -> Seen:
        if name in changed:
            return "materialised"
        return "observed" if name in shown else "fused" if name in left else "folded"

    return {name: of(name) for name in (op.stable for op in captured.operations)}


def _with_taps(recipe: Recipe, shown: dict[str, str]) -> Recipe:
    """The recipe with a last graph pass that records nodes, each after the one it maps to."""
    if not shown:
        return recipe
    words = (name if name == place else f"{name}{BEHIND}{place}" for name, place in shown.items())
    step = PassStep("observe", "graph", "", (("nodes", " ".join(words)),), phase="graph")
    first = next((i for i, found in enumerate(recipe.steps) if found.level != "graph"), len(recipe.steps))
    return replace(recipe, steps=(*recipe.steps[:first], step, *recipe.steps[first:]))


# ---- what is fused ---------------------------------------------------------------------------------------------------


def _as_loops(recipe: Recipe) -> Recipe:
    """The recipe up to the point where a loop is a single op with the locations of its nodes."""
    end = next((i for i, step in enumerate(recipe.steps) if facts(step.name).lowers in _LOOPS), len(recipe.steps))
    return replace(recipe, steps=recipe.steps[:end])


def _groups(looked: compile_graph.Through) -> Groups:
    """The location sets of loops with more than one node; derived locations say nothing about fusion."""
    locations = looked.locations
    loops = [op for op in collect(looked.lowered.module.operation) if op.name.startswith(("linalg.", "scf."))]
    numbers = {locations.number_of(op.location) for op in loops}
    sets = ({*locations.sets[number]} - {*locations.derived.get(number, ())} for number in numbers)
    names = (frozenset(name for name in found if not name.startswith(SHOWS)) for found in sets)
    return frozenset(found for found in names if len(found) > 1)


class _Places:
    """Where the values of a compiled graph are stored."""

    def __init__(self, graph: Graph, parts: Partition, groups: Groups) -> None:
        self._call = {
            op.name: i for i, item in enumerate(parts.body) if isinstance(item, PartitionCall) for op in item.nodes
        }
        self._order = {op.stable: i for i, op in enumerate(graph.operations)}
        self._by_stable = {op.stable: op for op in graph.operations}
        self._groups: dict[str, set[frozenset[str]]] = {}
        for group in groups:
            for name in group:
                self._groups.setdefault(name, set()).add(group)

    def in_memory(self, op: Op) -> bool:
        """Whether the full value of `op` is in memory: some reader is computed by a loop that does not compute it.

        A view is stored where its operand is, so it need not be observed separately, unless it is a result.
        """
        if isinstance(op, ObserveOp) or not can_be_shown(op):
            return False
        if isinstance(op, ReshapeFamilyOp):
            return any(isinstance(reader, OutputOp) for reader in op._children)
        return any(not self._together(op, reader) for reader in op._children)

    def _together(self, op: Op, reader: Op) -> bool:
        if self._call.get(op.name) != self._call.get(reader.name):
            return False
        readers = [reader]
        while isinstance(reader, ReshapeFamilyOp) and reader.stable not in self._groups and len(reader._children) == 1:
            (reader,) = reader._children
            readers.append(reader)
        mine = self._groups.get(op.stable, set())
        return any(mine & self._groups.get(found.stable, set()) for found in readers)

    def end(self, op: Op) -> Op:
        """The last node of the loops that compute `op` in its call: before that, the loop has not run."""
        names = {name for group in self._groups.get(op.stable, ()) for name in group} & self._by_stable.keys()
        here = [n for n in names if self._call.get(self._by_stable[n].name) == self._call.get(op.name)]
        return self._by_stable[max([op.stable, *here], key=self._order.__getitem__)]
