"""Programs for comparing every node with eager: one that records all nodes, and one for each node alone.

Fusion is determined from the compiled program: if one loop computes two nodes, both are in its location set, and the
value between them is in memory only if another loop reads it too. The instrumented program is compared with the
original: if recording a value changes the nodes that a loop computes, that value is no longer recorded.
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
from buddy.compiler.graph.transform.rewriting import AFTER_SEPARATOR, OBSERVER_PREFIX, is_observable
from buddy.compiler.graph.types import NodeType
from buddy.compiler.mlir.walk import collect
from buddy.compiler.ops.registry import Registry
from buddy.compiler.protocol.artifact import to_bytes
from buddy.compiler.protocol.numerics import ObservedProgram, OwnProgram, Seen
from buddy.compiler.protocol.pass_facts import facts
from buddy.compiler.protocol.recipe import EAGER, OpChoice, PassStep, Recipe, digest

# The first pass that lowers these splits loops into ops, whose locations no longer list all nodes of the loop.
_LOOPS = ("structured-ops", "loops")
_ROUNDS = 3

Groups = frozenset[frozenset[str]]
OnStep = Callable[[str], None]


@dataclass(frozen=True)
class Observation:
    """An instrumented recipe, its program without instrumentation, and how each captured node is observed."""

    recipe: Recipe
    plain: compile_graph.GraphAfterPasses
    seen: dict[str, Seen]
    notes: tuple[str, ...] = ()


def observation(
    graph: Graph, recipe: Recipe, first: Registry | None, every: bool, report: OnStep = lambda _what: None
) -> Observation:
    """Instruments `recipe` for `graph` to record the values that are in memory anyway, or with `every` all values.

    `first` is a registry with priority over all others. Raises `CompilationError`.
    """
    report("determining what is fused")
    program = compile_graph.run_passes(graph, _until_loops(recipe), first)
    plain, groups = program.graph, _fused_groups(program)
    places = _ValuePlaces(plain, program.lowered.partition, groups)
    free = [op for op in plain.operations if places.in_memory(op)]
    if every:
        return _observe_all(graph, recipe, program, {op.stable for op in free})
    shown = {op.stable: places.end(op).stable for op in free}
    for _round in range(_ROUNDS):
        report(f"compiling with {len(shown)} values recorded")
        instrumented = _with_observations(recipe, shown)
        found = _fused_groups(compile_graph.run_passes(graph, _until_loops(instrumented), first)) if shown else groups
        changed = {name for group in found ^ groups for name in group} & shown.keys()
        if not changed:
            return Observation(instrumented, program, _how_observed(graph, plain, {*shown}, set()))
        shown = {name: place for name, place in shown.items() if name not in changed}
    note = "recording values has changed what is fused: they are marked materialised"
    return Observation(instrumented, program, _how_observed(graph, plain, {*shown}, changed), (note,))


def _observe_all(graph: Graph, recipe: Recipe, program: compile_graph.GraphAfterPasses, free: set[str]) -> Observation:
    shown = {op.stable: op.stable for op in program.graph.operations if is_observable(op)}
    names = set(shown)
    note = f"{len(names - free)} values were written to memory to be recorded: this is a program without their fusions"
    seen = _how_observed(graph, program.graph, names & free, names - free)
    return Observation(_with_observations(recipe, shown), program, seen, (note,) if names - free else ())


def _how_observed(captured: Graph, plain: Graph, shown: set[str], changed: set[str]) -> dict[str, Seen]:
    left = {op.stable for op in plain.operations}
    # A node with several results is observed if its results are.
    shown |= {op.args[0].stable for op in plain.operations if isinstance(op, GetItemOp) and op.stable in shown}

    def of(name: str) -> Seen:
        if name in changed:
            return "materialised"
        return "observed" if name in shown else "fused" if name in left else "folded"

    return {name: of(name) for name in (op.stable for op in captured.operations)}


def _with_observations(recipe: Recipe, shown: dict[str, str]) -> Recipe:
    """Adds a last graph pass to the recipe that records each node in `shown` after the node that it is mapped to."""
    if not shown:
        return recipe
    words = (name if name == place else f"{name}{AFTER_SEPARATOR}{place}" for name, place in shown.items())
    step = PassStep("observe", "graph", "", (("nodes", " ".join(words)),), phase="graph")
    first = next((i for i, found in enumerate(recipe.steps) if found.level != "graph"), len(recipe.steps))
    return replace(recipe, steps=(*recipe.steps[:first], step, *recipe.steps[first:]))


# ---- what is fused ---------------------------------------------------------------------------------------------------


def _until_loops(recipe: Recipe) -> Recipe:
    """Returns the recipe up to the point where a loop is a single op with the locations of its nodes."""
    end = next((i for i, step in enumerate(recipe.steps) if facts(step.name).lowers in _LOOPS), len(recipe.steps))
    return replace(recipe, steps=recipe.steps[:end])


def _fused_groups(program: compile_graph.GraphAfterPasses) -> Groups:
    """Returns the location sets of loops with several nodes; derived locations are omitted, as they show no fusion."""
    locations = program.locations
    loops = [op for op in collect(program.lowered.module.operation) if op.name.startswith(("linalg.", "scf."))]
    numbers = {locations.number_of(op.location) for op in loops}
    sets = ({*locations.sets[number]} - {*locations.derived.get(number, ())} for number in numbers)
    names = (frozenset(name for name in found if not name.startswith(OBSERVER_PREFIX)) for found in sets)
    return frozenset(found for found in names if len(found) > 1)


class _ValuePlaces:
    """Where the values of a compiled graph are stored."""

    def __init__(self, graph: Graph, parts: Partition, groups: Groups) -> None:
        self._call = {
            op.name: i for i, item in enumerate(parts.body) if isinstance(item, PartitionCall) for op in item.nodes
        }
        self._order = {op.stable: i for i, op in enumerate(graph.operations)}
        self._by_stable = {op.stable: op for op in graph.operations}
        self._fused_groups: dict[str, set[frozenset[str]]] = {}
        for group in groups:
            for name in group:
                self._fused_groups.setdefault(name, set()).add(group)

    def in_memory(self, op: Op) -> bool:
        """True if the full value of `op` is in memory: another loop than that of `op` computes one of its readers.

        A view shares the memory of its operand, so it is not recorded separately, unless it is a result.
        """
        if isinstance(op, ObserveOp) or not is_observable(op):
            return False
        if isinstance(op, ReshapeFamilyOp):
            return any(isinstance(reader, OutputOp) for reader in op._children)
        return any(not self._are_fused(op, reader) for reader in op._children)

    def _are_fused(self, op: Op, reader: Op) -> bool:
        if self._call.get(op.name) != self._call.get(reader.name):
            return False
        readers = [reader]
        while (
            isinstance(reader, ReshapeFamilyOp)
            and reader.stable not in self._fused_groups
            and len(reader._children) == 1
        ):
            (reader,) = reader._children
            readers.append(reader)
        mine = self._fused_groups.get(op.stable, set())
        return any(mine & self._fused_groups.get(found.stable, set()) for found in readers)

    def end(self, op: Op) -> Op:
        """Returns the last node of the loops that compute `op` in its call: the value is complete after that node."""
        names = {name for group in self._fused_groups.get(op.stable, ()) for name in group} & self._by_stable.keys()
        here = [n for n in names if self._call.get(self._by_stable[n].name) == self._call.get(op.name)]
        return self._by_stable[max([op.stable, *here], key=self._order.__getitem__)]


Use = tuple[tuple[str, ...], tuple[tuple[str, int], ...]]
OnProgress = Callable[[str, float], None]


@dataclass
class _SingleNodeProgram:
    """A graph to compile, with names that do not depend on its position, and the nodes that are equal to it."""

    graph: Graph
    recipe: Recipe
    uses: list[Use] = field(default_factory=list)


def own_programs(
    captured: Graph, program: compile_graph.GraphAfterPasses, recipe: Recipe, first: Registry | None,
    symbols: Mapping[str, int], report: OnProgress = lambda _what, _done: None,
) -> tuple[list[OwnProgram], dict[str, str]]:  # fmt: skip
    """Compiles the nodes of `captured` as they occur in `program`, for the sizes `symbols` of the observed call.

    Returns the programs, and by stable name the reasons why other nodes have none.
    """
    lowered, assignments = program.graph, program.lowered.assignments
    found: dict[str, _SingleNodeProgram] = {}
    why = {a.node: "PyTorch runs it" for a in assignments if a.lowering == EAGER}
    known = {op.name for op in captured.body if op.name in {other.name for other in lowered.body}}
    for op in lowered.operations:
        if isinstance(op, GetItemOp) or op.stable in why or op.name not in known:
            continue
        if op.has_effect:
            why[op.stable] = op.only_eager or "it has an effect"
            continue
        try:
            _add_program(found, lowered, op, known, recipe, symbols)
        except ExtractionError as error:
            why[op.stable] = str(error)
    return _compile(list(found.values()), first, why, report), why


def _add_program(
    found: dict[str, _SingleNodeProgram],
    graph: Graph,
    op: Op,
    known: set[str],
    recipe: Recipe,
    symbols: Mapping[str, int],
) -> None:
    """Adds a node to those to compile. Raises `ExtractionError` if it cannot be extracted."""
    nodes = _with_added_nodes(op, known)
    alone = extract_graph(graph, nodes, symbols)
    choices = recipe.choice_map()
    wanted = {place.name: choices[place.stable] for place in alone.operations if place.stable in choices}
    inputs = tuple(place.name for place in alone.placeholders)
    results = tuple(_result(place) for place in alone.results)
    renamed, names = _rename(alone)
    chosen = tuple(sorted(OpChoice(names[name], lowering) for name, lowering in wanted.items()))
    key = digest(serialize.to_bytes(renamed), [(c.node, c.lowering) for c in chosen])
    found.setdefault(key, _SingleNodeProgram(renamed, _single_node_recipe(recipe, chosen))).uses.append(
        (inputs, results)
    )


def _with_added_nodes(op: Op, known: set[str]) -> list[Op]:
    """Returns the node, and the nodes before it that a graph pass has added, whose values the captured graph lacks.

    A view of a weight that nothing else reads is included, too: kernels pack the weight in its own layout.
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


def _rename(graph: Graph) -> tuple[Graph, Mapping[str, str]]:
    """Returns the graph with numbers as names, so that equal nodes have equal graphs, and the new name of each node."""
    data = serialize.to_data(graph)
    names = {node.name: f"v{i}" for i, node in enumerate(data.nodes)}

    def rename(value: object) -> object:
        if isinstance(value, dict):
            return {key: names[item] if key == "n" else item for key, item in value.items()}
        return [rename(item) for item in value] if isinstance(value, list) else value

    nodes = [
        replace(
            node,
            name=names[node.name],
            stable=names[node.name],
            module="",
            location="",
            target=names[node.name] if node.op == "PlaceholderOp" else node.target,
            args=rename(node.args),
            kwargs={key: rename(item) for key, item in node.kwargs.items()},
        )
        for node in data.nodes
    ]
    return serialize.from_data(replace(data, name="alone", nodes=nodes)), names


def _single_node_recipe(recipe: Recipe, choices: tuple[OpChoice, ...]) -> Recipe:
    """Returns the recipe for a graph of one node, to which the graph passes have already been applied."""
    steps = tuple(replace(step, enabled=False) if step.level == "graph" else step for step in recipe.steps)
    return replace(recipe, steps=steps, choices=choices, partition="whole")


def _compile(
    alone: Sequence[_SingleNodeProgram], first: Registry | None, why: dict[str, str], report: OnProgress
) -> list[OwnProgram]:
    found = []
    if len(alone) > 1:
        objects.start()
    for number, one in enumerate(alone):
        report(f"compiling nodes alone, {number + 1}/{len(alone)}", number / len(alone))
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
    symbols: Mapping[str, int] | None = None, report: Callable[[str, float], None] = lambda _what, _done: None,
) -> ObservedProgram:  # fmt: skip
    """Compiles `graph` by `recipe` with instrumentation, which with `every` includes fused values.

    With `own` each node is also compiled alone, for the sizes in `symbols`, those of the observed call. `first` is a
    registry with priority over all others. Raises `CompilationError`.
    """
    start = time.perf_counter()
    found = observation(graph, recipe, first, every, lambda what: report(what, -1.0))
    report("compiling the instrumented program", -1.0)
    artifact = compile_graph.compile_graph(graph, found.recipe, first)
    programs, why = own_programs(graph, found.plain, recipe, first, symbols or {}, report) if own else ([], {})
    seconds = time.perf_counter() - start
    return ObservedProgram(found.recipe, to_bytes(artifact), found.seen, tuple(programs), why, seconds, found.notes)
