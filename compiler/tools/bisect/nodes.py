"""Finds the smallest subgraph that fails, and the nodes whose lowerings are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from buddy.compiler.graph import partition as partitioning
from buddy.compiler.graph import plugins
from buddy.compiler.graph.extraction import ExtractionError
from buddy.compiler.graph.node import GetItemOp, Op
from buddy.compiler.ops import registries
from buddy.compiler.protocol import WrongLowering
from buddy.compiler.protocol.recipe import EAGER, TORCH_MLIR, Recipe
from buddy.compiler.runtime.graph_interpreter import compute_results
from buddy.compiler.support.delta_debugging import smallest_failing
from buddy.compiler.tools.bisect.steps import Judge
from buddy.compiler.tools.bisect.trials import RecipeTrials, TrialSubject, make_subject
from buddy.compiler.tools.extract import Subgraph, extract_subgraph

# The maximum number of nodes to run in eager: if a minimal subgraph has more, no single lowering is the cause.
_MAX_NODES_IN_EAGER = 12


def find_wrong_lowerings(
    trials: RecipeTrials,
    whole: TrialSubject,
    small: TrialSubject,
    recipe: Recipe,
    judge: Judge,
    of_plugins: bool = False,
) -> list[WrongLowering]:
    """Returns the wrong lowerings of nodes in `small`: those nodes without which, each alone in eager, it is right.

    `whole` is the program of which `small` is a failing part. At most `_MAX_NODES_IN_EAGER` nodes are tried; with
    `of_plugins`, only nodes that plug-ins lower.
    """
    wrong: list[WrongLowering] = []
    candidates = [op for op in small.subgraph.graph.operations if not isinstance(op, GetItemOp)]
    if of_plugins:
        registry_of = trials(small, recipe).lowered
        candidates = [op for op in candidates if _plugin_of_lowering(registry_of.get(op.stable, ""), op, recipe)]
    for op in candidates[:_MAX_NODES_IN_EAGER]:
        if any(op.stable in lowering.nodes for lowering in wrong):
            continue
        if judge(trials(small, recipe.with_choice(op.stable, EAGER))) == "good":
            wrong.append(_make_wrong_lowering(trials, whole, small, recipe, op))
    return wrong


def _make_wrong_lowering(
    trials: RecipeTrials, whole: TrialSubject, small: TrialSubject, recipe: Recipe, op: Op
) -> WrongLowering:
    """Describes the wrong lowering of `op`, with all nodes of its class and the lowerings that are correct."""
    name, registry = type(op).__name__, trials(small, recipe).lowered.get(op.stable, "")
    registry = registry or _first_registry(name, recipe)
    nodes = [other.stable for other in whole.subgraph.graph.operations if type(other) is type(op)]
    correct = []
    for key in (*registries(recipe.dialect), TORCH_MLIR):
        if key == registry:
            continue
        outcome = trials(small, recipe.with_choice(op.stable, key))
        if outcome.is_right and outcome.lowered.get(op.stable) == key:
            correct.append(key)
    return WrongLowering(name, registry, tuple(nodes), _plugin_of_lowering(registry, op, recipe), (*correct, EAGER))


def _plugin_of_lowering(registry: str, op: Op, recipe: Recipe) -> str:
    """Returns the plug-in that defines the lowering of `op` in `registry` ("": the first that lowers it), or ""."""
    name = type(op).__name__
    return plugins.origin(("lowering", f"{registry or _first_registry(name, recipe)}.{name}"), ("op class", name))


def _first_registry(name: str, recipe: Recipe) -> str:
    """Returns the first registry that lowers the op class `name`, or ""."""
    return next((key for key, registry in registries(recipe.dialect).items() if name in registry), "")


def repair_lowerings(recipe: Recipe, wrong: Sequence[WrongLowering]) -> Recipe:
    """Returns the recipe with the nodes of each wrong lowering lowered by the first correct one."""
    for lowering in wrong:
        for node in lowering.nodes:
            recipe = recipe.with_choice(node, lowering.correct[0])
    return recipe


def describe_wrong_lowering(wrong: WrongLowering) -> str:
    """Returns a sentence that names the lowering at fault, and the right ones."""
    origin = f" ({wrong.origin})" if wrong.origin else ""
    count = len(wrong.nodes)
    # Eager is always right, and the last entry.
    right = f"{', '.join(wrong.correct[:-1])} and eager are" if len(wrong.correct) > 1 else "eager is"
    return f"the lowering of {wrong.op} by {wrong.registry}{origin} is at fault ({count} nodes); {right} right"


# ---- the smallest failing part ---------------------------------------------------------------------------------------


# Returns whether a subgraph fails like the whole program.
FailureTest = Callable[[TrialSubject], bool]


@dataclass(frozen=True)
class NodeUnit:
    """Nodes that are tried together; `occurrences` is the number of equal layers in which the program has them."""

    nodes: tuple[Op, ...]
    occurrences: int = 1


def node_units(part: Subgraph, recipe: Recipe) -> list[NodeUnit]:
    """Returns a unit for each function that a graph is partitioned into, and for each run of nodes between calls.

    The unit with the largest share of the nodes is first.
    """
    partition = partitioning.outline_layers(part.graph, recipe.node_settings())
    units = [NodeUnit(function.nodes, len(function.sites)) for function in partition.functions]
    for is_call, items in groupby(partition.body, key=lambda item: isinstance(item, partitioning.PartitionCall)):
        if not is_call:
            units.append(NodeUnit(tuple(item for item in items if isinstance(item, Op))))
    return sorted(units, key=lambda unit: -len(unit.nodes) * unit.occurrences)


def extract_subject(whole: TrialSubject, nodes: Sequence[Op]) -> TrialSubject | None:
    """Returns the subgraph of `nodes` with its inputs and results in eager; `None` if it cannot be extracted."""
    try:
        part = extract_subgraph(whole.subgraph, nodes)
    except ExtractionError:
        return None
    return make_subject(part, lambda tensors: compute_results(part.graph, tensors))


def smallest_failing_part(whole: TrialSubject, recipe: Recipe, fails: FailureTest) -> TrialSubject:
    """Returns the smallest failing subgraph of a failing function in `whole`, or of `whole` if no function fails."""
    graph = whole.subgraph.graph
    start = next((function for function in function_subjects(whole, recipe) if fails(function)), None) or whole

    def nodes_fail(nodes: Sequence[Op]) -> bool:
        subject = extract_subject(start, nodes)
        return subject is not None and fails(subject)

    nodes = [op for op in start.subgraph.graph.operations if not isinstance(op, GetItemOp)]
    if start is whole and len(nodes) == len(graph.operations) == 1:
        return whole
    failing = smallest_failing(nodes, nodes_fail)
    subject = extract_subject(start, failing) if len(failing) < len(nodes) or start is whole else start
    return subject if subject is not None and fails(subject) else start


def function_subjects(whole: TrialSubject, recipe: Recipe) -> Iterator[TrialSubject]:
    """Yields the units of `whole` as subgraphs with their real inputs, in the order of `node_units`.

    Yields nothing for a graph that is not partitioned.
    """
    for unit in node_units(whole.subgraph, recipe):
        is_smaller = len(unit.nodes) < len(whole.subgraph.graph.operations)
        if is_smaller and (subject := extract_subject(whole, unit.nodes)) is not None:
            yield subject


def layer_groups(part: Subgraph, recipe: Recipe, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the groups that contain the nodes `names`: each has the corresponding nodes of all equal layers."""
    group_of: dict[str, tuple[str, ...]] = {}
    for function in partitioning.outline_layers(part.graph, recipe.node_settings()).functions:
        for position in range(len(function.nodes)):
            group = tuple(function.origins(position))
            group_of.update(dict.fromkeys(group, group))
    return list(dict.fromkeys(group_of.get(name, (name,)) for name in names))


def with_nodes_in_eager(recipe: Recipe, groups: Sequence[Sequence[str]]) -> Recipe:
    """Returns the recipe with the nodes of all groups in eager."""
    for group in groups:
        for name in group:
            recipe = recipe.with_choice(name, EAGER)
    return recipe


def computing_nodes(part: Subgraph) -> list[str]:
    """Returns the stable names of the nodes of a subgraph, except those that only select one of several results."""
    return [op.stable for op in part.graph.operations if not isinstance(op, GetItemOp)]
