"""Compiles programs to compare every node with eager: one that records values of nodes, and one for each node alone.

Fusion is determined from the compiled program: if one loop computes two nodes, the location set of the loop has both,
and the value of the first node is in memory only if another loop reads it too. The instrumented program is compared
with the original: if recording a value changes which nodes a loop computes, that value is no longer recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from buddy.compiler.codegen import objects
from buddy.compiler.driver import compile_graph
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.graph import serialization
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import GetItemOp, Op, OutputOp, PlaceholderOp, ReshapeFamilyOp
from buddy.compiler.graph.operations.effects import ObserveOp
from buddy.compiler.graph.partition import Partition, PartitionCall
from buddy.compiler.graph.serialization import ExtractionError, extract_graph
from buddy.compiler.graph.transform.rewriting import AFTER_SEPARATOR, OBSERVER_PREFIX, is_observable
from buddy.compiler.graph.types import NodeType
from buddy.compiler.mlir.walk import nested_ops
from buddy.compiler.ops.utils import Registry
from buddy.compiler.protocol.artifact import to_bytes
from buddy.compiler.protocol.numerics import NodeProgram, NodeUse, ObservedProgram, ValueState
from buddy.compiler.protocol.pass_facts import facts
from buddy.compiler.protocol.recipe import EAGER, F32, OpChoice, PassStep, PrecisionChoice, Recipe, digest

# Fusion is determined before the first pass that lowers one of these: after such a pass, the ops of a loop have
# locations of their own, which do not list all nodes of the loop.
_LOOPS = ("structured-ops", "loops")
# Maximum number of attempts to record values without changing the fusion.
_MAX_ATTEMPTS = 3

# Sets of nodes, by stable name; each set is computed by one loop.
Groups = frozenset[frozenset[str]]
# Called with a description of what is done next.
OnActivity = Callable[[str], None]


@dataclass(frozen=True)
class Observation:
    """An instrumented recipe, the program without instrumentation, and where the value of each captured node is."""

    recipe: Recipe
    plain: compile_graph.GraphAfterPasses
    value_states: dict[str, ValueState]
    notes: tuple[str, ...] = ()


def make_observation(
    graph: Graph, recipe: Recipe, overrides: Registry | None, every: bool, report: OnActivity = lambda _what: None
) -> Observation:
    """Instruments `recipe` for `graph` to record the values that are in memory anyway, or with `every` all values.

    `overrides` is a registry with priority over all others. Raises `CompilationError`.
    """
    report("determining what is fused")
    program = compile_graph.run_passes(graph, _until_loops(recipe), overrides)
    rewritten, groups = program.graph, _find_fused_groups(program)
    storage = _ValueStorage(rewritten, program.lowered.partition, groups)
    in_memory = [op for op in rewritten.operations if storage.is_in_memory(op)]
    if every:
        return _observe_all(graph, recipe, program, {op.stable for op in in_memory})
    # The recorded nodes, each with the node after which its value is complete.
    recorded = {op.stable: storage.last_fused(op).stable for op in in_memory}
    for _attempt in range(_MAX_ATTEMPTS):
        report(f"compiling with {len(recorded)} values recorded")
        instrumented = _with_observations(recipe, recorded)
        new_groups = groups
        if recorded:
            new_groups = _find_fused_groups(compile_graph.run_passes(graph, _until_loops(instrumented), overrides))
        changed = {name for group in new_groups ^ groups for name in group} & recorded.keys()
        if not changed:
            return Observation(instrumented, program, _value_states(graph, rewritten, {*recorded}, set()))
        recorded = {name: last_node for name, last_node in recorded.items() if name not in changed}
    note = "recording some values has changed what is fused: these values are marked materialised"
    return Observation(instrumented, program, _value_states(graph, rewritten, {*recorded}, changed), (note,))


def _observe_all(
    graph: Graph, recipe: Recipe, program: compile_graph.GraphAfterPasses, in_memory: set[str]
) -> Observation:
    """Instruments `recipe` to record all values; those that are not `in_memory` are then materialised."""
    recorded = {op.stable: op.stable for op in program.graph.operations if is_observable(op)}
    names = set(recorded)
    materialised = names - in_memory
    note = f"{len(materialised)} values were written to memory to be recorded, which prevents their fusion"
    value_states = _value_states(graph, program.graph, names & in_memory, materialised)
    return Observation(_with_observations(recipe, recorded), program, value_states, (note,) if materialised else ())


def _value_states(
    captured: Graph, rewritten: Graph, recorded: set[str], materialised: set[str]
) -> dict[str, ValueState]:
    """Returns where the value of each node of `captured` is; `rewritten` is the graph after graph passes."""
    remaining = {op.stable for op in rewritten.operations}
    # A node with several results counts as observed if one of its results is.
    recorded_results = [op for op in rewritten.operations if isinstance(op, GetItemOp) and op.stable in recorded]
    observed = recorded | {op.args[0].stable for op in recorded_results}

    def state_of(name: str) -> ValueState:
        if name in materialised:
            return "materialised"
        if name in observed:
            return "observed"
        return "fused" if name in remaining else "folded"

    return {op.stable: state_of(op.stable) for op in captured.operations}


def _with_observations(recipe: Recipe, recorded: dict[str, str]) -> Recipe:
    """Adds a last graph pass to the recipe.

    The pass records the value of each node in `recorded` after the node that `recorded` maps it to.
    """
    if not recorded:
        return recipe
    nodes = (name if name == after else f"{name}{AFTER_SEPARATOR}{after}" for name, after in recorded.items())
    observe_step = PassStep("observe", "graph", "", (("nodes", " ".join(nodes)),), phase="graph")
    end = next((i for i, step in enumerate(recipe.steps) if step.level != "graph"), len(recipe.steps))
    return replace(recipe, steps=(*recipe.steps[:end], observe_step, *recipe.steps[end:]))


# ---- fused groups ----------------------------------------------------------------------------------------------------


def _until_loops(recipe: Recipe) -> Recipe:
    """Returns the recipe up to the point where a loop is a single op with the locations of its nodes."""
    end = next((i for i, step in enumerate(recipe.steps) if facts(step.name).lowers in _LOOPS), len(recipe.steps))
    return replace(recipe, steps=recipe.steps[:end])


def _find_fused_groups(program: compile_graph.GraphAfterPasses) -> Groups:
    """Returns the sets of several nodes that one loop computes.

    Leaves out derived nodes, since they do not indicate a fusion.
    """
    locations = program.locations
    loops = [op for op in nested_ops(program.lowered.module.operation) if op.name.startswith(("linalg.", "scf."))]
    groups = set()
    for number in {locations.number_of(op.location) for op in loops}:
        direct_nodes = {*locations.sets[number]} - {*locations.derived.get(number, ())}
        groups.add(frozenset(name for name in direct_nodes if not name.startswith(OBSERVER_PREFIX)))
    return frozenset(group for group in groups if len(group) > 1)


class _ValueStorage:
    """Determines which values of a compiled graph are in memory, and after which node each of them is complete."""

    def __init__(self, graph: Graph, partition: Partition, groups: Groups) -> None:
        # By the name of a node, the number of the call of the compiled function that computes the node.
        self._call_number = {
            op.name: i for i, item in enumerate(partition.body) if isinstance(item, PartitionCall) for op in item.nodes
        }
        self._order = {op.stable: i for i, op in enumerate(graph.operations)}
        self._by_stable = {op.stable: op for op in graph.operations}
        self._groups_of: dict[str, set[frozenset[str]]] = {}
        for group in groups:
            for name in group:
                self._groups_of.setdefault(name, set()).add(group)

    def is_in_memory(self, op: Op) -> bool:
        """Returns whether the whole value of `op` is in memory: another loop computes one of its readers.

        A view shares the memory of its operand, so it is not recorded separately, unless it is a result.
        """
        if isinstance(op, ObserveOp) or not is_observable(op):
            return False
        if isinstance(op, ReshapeFamilyOp):
            return any(isinstance(reader, OutputOp) for reader in op._children)
        return any(not self._are_fused(op, reader) for reader in op._children)

    def _are_fused(self, op: Op, reader: Op) -> bool:
        """Returns whether one loop computes `op` and `reader`, or `op` and the only reader of the view `reader`."""
        if self._call_number.get(op.name) != self._call_number.get(reader.name):
            return False
        readers = [reader]
        while (
            isinstance(reader, ReshapeFamilyOp) and reader.stable not in self._groups_of and len(reader._children) == 1
        ):
            (reader,) = reader._children
            readers.append(reader)
        groups = self._groups_of.get(op.stable, set())
        return any(groups & self._groups_of.get(reader.stable, set()) for reader in readers)

    def last_fused(self, op: Op) -> Op:
        """Returns the last node that the loops of `op` compute in the same call: then the value of `op` is complete."""
        names = {name for group in self._groups_of.get(op.stable, ()) for name in group} & self._by_stable.keys()
        in_call = [
            name
            for name in names
            if self._call_number.get(self._by_stable[name].name) == self._call_number.get(op.name)
        ]
        return self._by_stable[max([op.stable, *in_call], key=self._order.__getitem__)]


# ---- programs of one node --------------------------------------------------------------------------------------------

# Called with a description of what is done next, and the fraction that is done, or -1 if it is unknown.
OnProgress = Callable[[str, float], None]


@dataclass
class _SingleNodeProgram:
    """A graph of one node to compile, without the names of the program, and all nodes that it stands for (`uses`)."""

    graph: Graph
    recipe: Recipe
    uses: list[NodeUse] = field(default_factory=list)


def compile_single_nodes(
    captured: Graph, program: compile_graph.GraphAfterPasses, recipe: Recipe, overrides: Registry | None,
    symbols: Mapping[str, int], report: OnProgress = lambda _what, _done: None,
) -> tuple[list[NodeProgram], dict[str, str]]:  # fmt: skip
    """Compiles the nodes of `captured` one by one, as they are after the graph passes of `program`.

    `symbols` are the sizes of the observed call. Returns the programs, and by stable name the reasons why other
    nodes have none.
    """
    graph, assignments = program.graph, program.lowered.assignments
    to_compile: dict[str, _SingleNodeProgram] = {}
    reasons = {assignment.node: "PyTorch runs it" for assignment in assignments if assignment.lowering == EAGER}
    captured_names = {op.name for op in captured.body} & {op.name for op in graph.body}
    for op in graph.operations:
        if isinstance(op, GetItemOp) or op.stable in reasons or op.name not in captured_names:
            continue
        if op.has_effect:
            reasons[op.stable] = op.only_eager or "it has an effect"
            continue
        try:
            _add_program(to_compile, graph, op, captured_names, recipe, symbols)
        except ExtractionError as error:
            reasons[op.stable] = str(error)
    return _compile_programs(list(to_compile.values()), overrides, reasons, report), reasons


def _add_program(
    to_compile: dict[str, _SingleNodeProgram],
    graph: Graph,
    op: Op,
    captured_names: set[str],
    recipe: Recipe,
    symbols: Mapping[str, int],
) -> None:
    """Adds a node to `to_compile`. Raises `ExtractionError` if it cannot be extracted."""
    nodes = _with_added_nodes(op, captured_names)
    extracted = extract_graph(graph, nodes, symbols)
    choices = recipe.choice_map()
    lowerings = {node.name: choices[node.stable] for node in extracted.operations if node.stable in choices}
    inputs = tuple(node.name for node in extracted.placeholders)
    results = tuple(_result_of(node) for node in extracted.results)
    renamed, names = _rename(extracted)
    new_choices = tuple(sorted(OpChoice(names[name], lowering) for name, lowering in lowerings.items()))
    precisions = ((names[node.name], recipe.precision_of(node.stable)) for node in extracted.operations)
    new_precisions = tuple(
        sorted(PrecisionChoice(node, precision) for node, precision in precisions if precision != F32)
    )
    key = digest(serialization.to_bytes(renamed), [*new_choices, *new_precisions])
    node_recipe = _single_node_recipe(recipe, new_choices, new_precisions)
    program = to_compile.setdefault(key, _SingleNodeProgram(renamed, node_recipe))
    program.uses.append(NodeUse(inputs, results))


def _with_added_nodes(op: Op, captured_names: set[str]) -> list[Op]:
    """Returns `op`, and the nodes before it that graph passes have added, whose values eager does not have.

    A view of a weight that only one node reads is included too, because kernels pack the weight itself.
    """
    nodes, pending = [op], list(op.parents)
    while pending:
        parent = pending.pop()
        if (parent.name not in captured_names or _views_weight(parent)) and parent not in nodes:
            nodes.append(parent)
            pending += parent.parents
    return nodes


def _views_weight(op: Op) -> bool:
    """Returns whether `op` is a view of weights that only one node reads."""
    is_of_weights = all(isinstance(parent, PlaceholderOp) and parent.kind is NodeType.FakeNode for parent in op.parents)
    return isinstance(op, ReshapeFamilyOp) and is_of_weights and len(op._children) == 1


def _result_of(node: Op) -> tuple[str, int]:
    """Returns a result as in `NodeUse`: its stable name, and its index in a tuple of results, or -1."""
    return (node.stable, node.args[1]) if isinstance(node, GetItemOp) else (node.stable, -1)


def _rename(graph: Graph) -> tuple[Graph, Mapping[str, str]]:
    """Returns the graph with numbered names, so that equal nodes have equal graphs, and the new names by the old."""
    graph_data = serialization.to_data(graph)
    names = {node.name: f"v{i}" for i, node in enumerate(graph_data.nodes)}

    def rename(argument: object) -> object:
        """Renames the nodes in serialized arguments, in which `{"n": NAME}` stands for a node."""
        if isinstance(argument, dict):
            return {key: names[item] if key == "n" else item for key, item in argument.items()}
        return [rename(item) for item in argument] if isinstance(argument, list) else argument

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
        for node in graph_data.nodes
    ]
    return serialization.from_data(replace(graph_data, name="alone", nodes=nodes)), names


def _single_node_recipe(
    recipe: Recipe, choices: tuple[OpChoice, ...], precisions: tuple[PrecisionChoice, ...]
) -> Recipe:
    """Returns the recipe for a graph of one node, to which the graph passes have already been applied."""
    steps = tuple(replace(step, enabled=False) if step.level == "graph" else step for step in recipe.steps)
    return replace(recipe, steps=steps, choices=choices, precision=F32, precisions=precisions, partition="whole")


def _compile_programs(
    programs: Sequence[_SingleNodeProgram], overrides: Registry | None, reasons: dict[str, str], report: OnProgress
) -> list[NodeProgram]:
    """Compiles the programs; adds to `reasons`, for each node that cannot be compiled, the reason."""

    def reject(program: _SingleNodeProgram, reason: str) -> None:
        reasons.update((node, reason) for _, results in program.uses for node, _ in results)

    compiled = []
    if len(programs) > 1:
        objects.start_workers()
    for number, program in enumerate(programs):
        report(f"compiling nodes alone, {number + 1}/{len(programs)}", number / len(programs))
        try:
            artifact = compile_graph.compile_graph(program.graph, program.recipe, overrides)
        except CompilationError as error:
            reject(program, str(error.diagnostic))
            continue
        if artifact.results_of_eager:
            reject(program, "PyTorch runs it")
            continue
        only_moves = all(isinstance(op, ReshapeFamilyOp) for op in program.graph.operations)
        compiled.append(NodeProgram(to_bytes(artifact), tuple(program.uses), only_moves))
    return compiled


# ---- the instrumented program ----------------------------------------------------------------------------------------


def compile_observed(
    graph: Graph, recipe: Recipe, overrides: Registry | None = None, *, every: bool = False, own_errors: bool = True,
    symbols: Mapping[str, int] | None = None, report: OnProgress = lambda _what, _done: None,
) -> ObservedProgram:  # fmt: skip
    """Compiles `graph` by `recipe`, instrumented to record the values that are in memory, or with `every` all values.

    With `own_errors`, each node is also compiled alone, for the sizes `symbols` of the observed call. `overrides` is a
    registry with priority over all others. Raises `CompilationError`.
    """
    start = time.perf_counter()
    observation = make_observation(graph, recipe, overrides, every, lambda what: report(what, -1.0))
    report("compiling the instrumented program", -1.0)
    artifact = compile_graph.compile_graph(graph, observation.recipe, overrides)
    programs: list[NodeProgram] = []
    reasons: dict[str, str] = {}
    if own_errors:
        programs, reasons = compile_single_nodes(graph, observation.plain, recipe, overrides, symbols or {}, report)
    assignments = observation.plain.lowered.assignments
    precisions = {assignment.node: assignment.precision for assignment in assignments if assignment.precision}
    return ObservedProgram(
        observation.recipe, to_bytes(artifact), observation.value_states, tuple(programs), reasons,
        time.perf_counter() - start, observation.notes, precisions,
    )  # fmt: skip
