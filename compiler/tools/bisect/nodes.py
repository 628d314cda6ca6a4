"""Finds the responsible nodes: the smallest failing subgraph, and the smallest set of nodes to run in eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from buddy.compiler.graph import partition as cut
from buddy.compiler.graph.extraction import ExtractionError
from buddy.compiler.graph.operation import GetItemOp, Op
from buddy.compiler.protocol.recipe import EAGER, Recipe
from buddy.compiler.runtime.node_by_node import results_of
from buddy.compiler.tools.bisect.delta import smallest_failing
from buddy.compiler.tools.bisect.trials import TrialSubject, subject_of
from buddy.compiler.tools.extract import Subgraph, part_of

Fails = Callable[[TrialSubject], bool]


@dataclass(frozen=True)
class NodeUnit:
    """Nodes that are tried together; `times` is how often the program contains them."""

    nodes: tuple[Op, ...]
    times: int = 1


def units(part: Subgraph, recipe: Recipe) -> list[NodeUnit]:
    """The functions that a graph is partitioned into, one call of each, and the nodes between them.

    The largest share first.
    """
    found = cut.by_layers(part.graph, recipe.choice_map())
    made = [NodeUnit(function.nodes, len(function.sites)) for function in found.functions]
    for is_call, items in groupby(found.body, key=lambda item: isinstance(item, cut.PartitionCall)):
        if not is_call:
            made.append(NodeUnit(tuple(item for item in items if isinstance(item, Op))))
    return sorted(made, key=lambda unit: -len(unit.nodes) * unit.times)


def as_subject(whole: TrialSubject, nodes: Sequence[Op]) -> TrialSubject | None:
    """Some nodes as a subject, with their real inputs; `None` if they cannot be extracted."""
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
    """Each function that a graph is partitioned into, with its real inputs, the largest share first.

    None if it is not partitioned.
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
