"""Finds the responsible nodes, and lowerings that are wrong by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from buddy.compiler.graph import partition as cut
from buddy.compiler.graph import plugins
from buddy.compiler.graph.extraction import ExtractionError
from buddy.compiler.graph.node import GetItemOp, Op
from buddy.compiler.ops import registries
from buddy.compiler.protocol import WrongLowering
from buddy.compiler.protocol.recipe import EAGER, TORCH_MLIR, Recipe
from buddy.compiler.runtime.graph_interpreter import results_of
from buddy.compiler.tools.bisect.delta import smallest_failing
from buddy.compiler.tools.bisect.steps import Judge
from buddy.compiler.tools.bisect.trials import RecipeTrials, TrialSubject, subject_of
from buddy.compiler.tools.extract import Subgraph, part_of

# Maximum number of nodes to try in eager: if a minimal subgraph has more, the cause is not the lowering of one node.
_MOST = 12


def wrong_lowerings(
    trials: RecipeTrials,
    whole: TrialSubject,
    small: TrialSubject,
    recipe: Recipe,
    judge: Judge,
    of_plugins: bool = False,
) -> list[WrongLowering]:
    """The responsible lowerings of nodes of `small`: the result is right if one of these nodes runs in eager.

    With `of_plugins`, only lowerings of plug-ins are tried.
    """
    found: list[WrongLowering] = []
    candidates = [op for op in small.part.graph.operations if not isinstance(op, GetItemOp)]
    if of_plugins:
        used = trials(small, recipe).lowered
        candidates = [op for op in candidates if _origin(used.get(op.stable, ""), op, recipe)]
    for op in candidates[:_MOST]:
        if any(op.stable in wrong.nodes for wrong in found):
            continue
        if judge(trials(small, recipe.with_choice(op.stable, EAGER))) == "good":
            found.append(_describe_wrong(trials, whole, small, recipe, op))
    return found


def _describe_wrong(
    trials: RecipeTrials, whole: TrialSubject, small: TrialSubject, recipe: Recipe, op: Op
) -> WrongLowering:
    """Describes a node that is right in eager: its lowering, and the other correct lowerings."""
    name, used = type(op).__name__, trials(small, recipe).lowered.get(op.stable, "")
    used = used or _first_registry(name, recipe)
    nodes = [other.stable for other in whole.part.graph.operations if type(other) is type(op)]
    right = []
    for key in (*registries(recipe.dialect), TORCH_MLIR):
        if key == used:
            continue
        tried = trials(small, recipe.with_choice(op.stable, key))
        if tried.right and tried.lowered.get(op.stable) == key:
            right.append(key)
    return WrongLowering(name, used, tuple(nodes), _origin(used, op, recipe), (*right, EAGER))


def _origin(used: str, op: Op, recipe: Recipe) -> str:
    """The plug-in that defines a node's lowering in the registry `used`, by default the first that lowers the node."""
    name = type(op).__name__
    return plugins.origin(("lowering", f"{used or _first_registry(name, recipe)}.{name}"), ("op class", name))


def _first_registry(name: str, recipe: Recipe) -> str:
    """The first registry that lowers a class."""
    return next((key for key, registry in registries(recipe.dialect).items() if name in registry), "")


def repair_lowerings(recipe: Recipe, wrong: Sequence[WrongLowering]) -> Recipe:
    """The recipe with the nodes of wrong lowerings lowered by the first correct alternative."""
    for found in wrong:
        for node in found.nodes:
            recipe = recipe.with_choice(node, found.right[0])
    return recipe


def lowering_text(wrong: WrongLowering) -> str:
    origin = f" ({wrong.origin})" if wrong.origin else ""
    count = len(wrong.nodes)
    other = f"{', '.join(wrong.right[:-1])} and eager are" if len(wrong.right) > 1 else "eager is"
    return f"the lowering of {wrong.op} by {wrong.registry}{origin} is at fault ({count} nodes); {other} right"


Fails = Callable[[TrialSubject], bool]


@dataclass(frozen=True)
class NodeUnit:
    """Nodes that are tried together; `times` is the number of their occurrences in the program."""

    nodes: tuple[Op, ...]
    times: int = 1


def units(part: Subgraph, recipe: Recipe) -> list[NodeUnit]:
    """The functions that a graph is partitioned into, with one call of each, and the nodes between them.

    The unit with the largest share of the nodes is first.
    """
    found = cut.by_layers(part.graph, recipe.choice_map())
    made = [NodeUnit(function.nodes, len(function.sites)) for function in found.functions]
    for is_call, items in groupby(found.body, key=lambda item: isinstance(item, cut.PartitionCall)):
        if not is_call:
            made.append(NodeUnit(tuple(item for item in items if isinstance(item, Op))))
    return sorted(made, key=lambda unit: -len(unit.nodes) * unit.times)


def as_subject(whole: TrialSubject, nodes: Sequence[Op]) -> TrialSubject | None:
    """The nodes as a subject, with their real inputs; `None` if they cannot be extracted."""
    try:
        part = part_of(whole.part, nodes)
    except ExtractionError:
        return None
    return subject_of(part, lambda tensors: results_of(part.graph, tensors))


def smallest_failing_part(whole: TrialSubject, recipe: Recipe, fails: Fails) -> TrialSubject:
    """The smallest subgraph of `whole` that still fails: a function first, then as few nodes as possible."""
    graph = whole.part.graph
    start = next((found for found in functions_of(whole, recipe) if fails(found)), None) or whole

    def some_fail(nodes: Sequence[Op]) -> bool:
        found = as_subject(start, nodes)
        return found is not None and fails(found)

    nodes = [op for op in start.part.graph.operations if not isinstance(op, GetItemOp)]
    if start is whole and len(nodes) == len(graph.operations) == 1:
        return whole
    left = smallest_failing(nodes, some_fail)
    found = as_subject(start, left) if len(left) < len(nodes) or start is whole else start
    return found if found is not None and fails(found) else start


def functions_of(whole: TrialSubject, recipe: Recipe) -> Iterator[TrialSubject]:
    """Each function that a graph is partitioned into, with its real inputs; the largest share of the nodes is first.

    A graph that is not partitioned has none.
    """
    for unit in units(whole.part, recipe):
        smaller = len(unit.nodes) < len(whole.part.graph.operations)
        if smaller and (found := as_subject(whole, unit.nodes)) is not None:
            yield found


def equals_of(part: Subgraph, recipe: Recipe, names: Sequence[str]) -> list[tuple[str, ...]]:
    """For each stable name the names of the corresponding nodes in identical layers, including itself."""
    shared: dict[str, tuple[str, ...]] = {}
    for function in cut.by_layers(part.graph, recipe.choice_map()).functions:
        for position in range(len(function.nodes)):
            together = tuple(function.origins(position))
            shared.update(dict.fromkeys(together, together))
    return list(dict.fromkeys(shared.get(name, (name,)) for name in names))


def in_eager(recipe: Recipe, groups: Sequence[Sequence[str]]) -> Recipe:
    for group in groups:
        for name in group:
            recipe = recipe.with_choice(name, EAGER)
    return recipe


def computing_nodes(part: Subgraph) -> list[str]:
    """The stable names of the nodes of a subgraph that can run in eager."""
    return [op.stable for op in part.graph.operations if not isinstance(op, GetItemOp)]
