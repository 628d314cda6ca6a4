"""Programs for comparing every node with eager: one that records all nodes, and one for each node alone.

Fusion is determined from the compiled program: two nodes that one loop computes are in one location set, so the value
between them is in memory only if something else reads it too. The instrumented program is compared with the original:
if a loop computes other nodes than before, recording has changed the program, and it is removed there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from buddy.compiler.codegen import objects
from buddy.compiler.driver import compile_graph
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.graph import serialize
from buddy.compiler.graph.extraction import ExtractionError, extract_graph
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import GetItemOp, Op, OutputOp, PlaceholderOp, ReshapeFamilyOp
from buddy.compiler.graph.operations.effects import ObserveOp
from buddy.compiler.graph.partition import Partition, PartitionCall
from buddy.compiler.graph.transform.rewriting import BEHIND, SHOWS, can_be_shown
from buddy.compiler.graph.types import NodeType
from buddy.compiler.mlir.walk import collect
from buddy.compiler.ops.registry import Registry
from buddy.compiler.protocol.artifact import to_bytes
from buddy.compiler.protocol.numerics import ObservedProgram, OwnProgram, Seen
from buddy.compiler.protocol.pass_facts import facts
from buddy.compiler.protocol.recipe import EAGER, OpChoice, PassStep, Recipe, digest

# From the first pass that lowers these on, a loop is no longer one op that says which nodes it computes.
_LOOPS = ("structured-ops", "loops")
_ROUNDS = 3

Groups = frozenset[frozenset[str]]
OnStep = Callable[[str], None]


@dataclass(frozen=True)
class Observation:
    """An instrumented recipe, its program without instrumentation, and how each captured node is observed."""

    recipe: Recipe
    plain: compile_graph.Through
    seen: dict[str, Seen]
    notes: tuple[str, ...] = ()


def observation(
    graph: Graph, recipe: Recipe, first: Registry | None, every: bool, tell: OnStep = lambda _what: None
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


Use = tuple[tuple[str, ...], tuple[tuple[str, int], ...]]
OnProgress = Callable[[str, float], None]


@dataclass
class _Alone:
    """A graph to compile, with names that do not depend on its position, and the nodes that it stands for."""

    graph: Graph
    recipe: Recipe
    uses: list[Use] = field(default_factory=list)


def own_programs(
    captured: Graph, program: compile_graph.Through, recipe: Recipe, first: Registry | None,
    symbols: Mapping[str, int], tell: OnProgress = lambda _what, _done: None,
) -> tuple[list[OwnProgram], dict[str, str]]:  # fmt: skip
    """Programs for the nodes of `captured` as they occur in `program`, and the reasons why the others have none, by
    stable name.

    They are compiled for the sizes in `symbols`, those of the observed call.
    """
    lowered, assignments = program.graph, program.lowered.assignments
    found: dict[str, _Alone] = {}
    why = {a.node: "PyTorch runs it" for a in assignments if a.lowering == EAGER}
    known = {op.name for op in captured.body if op.name in {other.name for other in lowered.body}}
    for op in lowered.operations:
        if isinstance(op, GetItemOp) or op.stable in why or op.name not in known:
            continue
        if op.has_effect:
            why[op.stable] = op.only_eager or "it has an effect"
            continue
        try:
            _enter(found, lowered, op, known, recipe, symbols)
        except ExtractionError as error:
            why[op.stable] = str(error)
    return _compiled(list(found.values()), first, why, tell), why


def _enter(
    found: dict[str, _Alone], graph: Graph, op: Op, known: set[str], recipe: Recipe, symbols: Mapping[str, int]
) -> None:
    """Adds a node to those to compile. Raises `ExtractionError` if it cannot be extracted."""
    nodes = _with_unknown(op, known)
    alone = extract_graph(graph, nodes, symbols)
    choices = recipe.choice_map()
    wanted = {place.name: choices[place.stable] for place in alone.operations if place.stable in choices}
    inputs = tuple(place.name for place in alone.placeholders)
    results = tuple(_result(place) for place in alone.results)
    renamed, names = _renamed(alone)
    chosen = tuple(sorted(OpChoice(names[name], lowering) for name, lowering in wanted.items()))
    key = digest(serialize.to_bytes(renamed), [(c.node, c.lowering) for c in chosen])
    found.setdefault(key, _Alone(renamed, _alone_recipe(recipe, chosen))).uses.append((inputs, results))


def _with_unknown(op: Op, known: set[str]) -> list[Op]:
    """The node, and the preceding ones that a graph pass has added, because the captured graph has no values for
    these.

    A view of a weight that nothing else reads belongs to the node, too: kernels pack the weight in its own layout.
    """
    found, pending = [op], list(op.parents)
    while pending:
        parent = pending.pop()
        if (parent.name not in known or _views_weight(parent)) and parent not in found:
            found.append(parent)
            pending += parent.parents
    return found


def _views_weight(op: Op) -> bool:
    weights = all(isinstance(p, PlaceholderOp) and p.kind is NodeType.FakeNode for p in op.parents)
    return isinstance(op, ReshapeFamilyOp) and weights and len(op._children) == 1


def _result(node: Op) -> tuple[str, int]:
    return (node.stable, node.args[1]) if isinstance(node, GetItemOp) else (node.stable, -1)


def _renamed(graph: Graph) -> tuple[Graph, Mapping[str, str]]:
    """The graph with its nodes numbered, and the new name of each, so that equal nodes have equal graphs."""
    data = serialize.to_data(graph)
    names = {node.name: f"v{i}" for i, node in enumerate(data.nodes)}

    def told(value: object) -> object:
        if isinstance(value, dict):
            return {key: names[item] if key == "n" else item for key, item in value.items()}
        return [told(item) for item in value] if isinstance(value, list) else value

    nodes = [
        replace(
            node,
            name=names[node.name],
            stable=names[node.name],
            module="",
            location="",
            target=names[node.name] if node.op == "PlaceholderOp" else node.target,
            args=told(node.args),
            kwargs={key: told(item) for key, item in node.kwargs.items()},
        )
        for node in data.nodes
    ]
    return serialize.from_data(replace(data, name="alone", nodes=nodes)), names


def _alone_recipe(recipe: Recipe, choices: tuple[OpChoice, ...]) -> Recipe:
    """The recipe for a graph of one node, to which the graph passes have already been applied."""
    steps = tuple(replace(step, enabled=False) if step.level == "graph" else step for step in recipe.steps)
    return replace(recipe, steps=steps, choices=choices, partition="whole")


def _compiled(
    alone: Sequence[_Alone], first: Registry | None, why: dict[str, str], tell: OnProgress
) -> list[OwnProgram]:
    found = []
    if len(alone) > 1:
        objects.start()
    for number, one in enumerate(alone):
        tell(f"compiling nodes alone, {number + 1}/{len(alone)}", number / len(alone))
        try:
            artifact = compile_graph.compile_graph(one.graph, one.recipe, first)
        except CompilationError as error:
            why |= {node: str(error.diagnostic) for _, results in one.uses for node, _ in results}
            continue
        if artifact.results_of_eager:
            why |= {node: "PyTorch runs it" for _, results in one.uses for node, _ in results}
            continue
        moves = all(isinstance(op, ReshapeFamilyOp) for op in one.graph.operations)
        found.append(OwnProgram(to_bytes(artifact), tuple(one.uses), moves))
    return found


def observed_program(
    graph: Graph, recipe: Recipe, first: Registry | None = None, *, every: bool = False, own: bool = True,
    symbols: Mapping[str, int] | None = None, tell: Callable[[str, float], None] = lambda _what, _done: None,
) -> ObservedProgram:  # fmt: skip
    """Compiles `graph` by `recipe` with instrumentation, which with `every` includes fused values.

    With `own` each node is also compiled alone, for the sizes in `symbols`, those of the observed call. `first` is a
    registry with priority over all others. Raises `CompilationError`.
    """
    start = time.perf_counter()
    found = observation(graph, recipe, first, every, lambda what: tell(what, -1.0))
    tell("compiling the instrumented program", -1.0)
    artifact = compile_graph.compile_graph(graph, found.recipe, first)
    programs, why = own_programs(graph, found.plain, recipe, first, symbols or {}, tell) if own else ([], {})
    seconds = time.perf_counter() - start
    return ObservedProgram(found.recipe, to_bytes(artifact), found.seen, tuple(programs), why, seconds, found.notes)
