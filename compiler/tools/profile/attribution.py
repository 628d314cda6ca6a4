"""Adds the pass that counts time to a recipe, and attributes the time of regions to nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from buddy.compiler.graph.graph import Graph
from buddy.compiler.protocol.artifact import TimedRegion
from buddy.compiler.protocol.pass_facts import facts
from buddy.compiler.protocol.profile import NodeTime, RegionTime
from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.tools.profile.minimum_work import Traffic, operations_of


@dataclass
class _NodeGroup:
    """The regions in which one node, the leader, does most of the work: their total time and number, and all nodes."""

    seconds: float = 0.0
    regions: int = 0
    nodes: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True)
class Attribution:
    """The times of nodes and regions.

    `inside` are the seconds attributed to nodes, `outside` those of call overhead and of regions without nodes.
    """

    nodes: tuple[NodeTime, ...]
    regions: tuple[RegionTime, ...]
    inside: float
    outside: float


def attribute_time(
    graph: Graph, regions: Sequence[TimedRegion], seconds: Sequence[float], symbols: Mapping[str, int]
) -> Attribution:
    """Attributes the times of `regions`, `seconds`, to the nodes of `graph`; the time of a call includes its callee's.

    The time of a region counts for the node in it that does most of the work. `symbols` are the values of symbolic
    sizes.
    """
    operations = {op.stable: operations_of(op, symbols) for op in graph.body}
    order = {name: index for index, name in enumerate(operations)}

    def work_key(name: str) -> tuple[float, int]:
        """Returns a key that is greatest for the node with most operations; of several, for the last one.

        A fused loop writes the result of its last node.
        """
        return (operations.get(name) or 0.0, order.get(name, -1))

    groups: dict[str, _NodeGroup] = {}
    outside = 0.0
    calls = {region.parent for region in regions}  # their time is the overhead of the call
    for number, (region, own_seconds) in enumerate(zip(regions, _exclusive_seconds(regions, seconds), strict=True)):
        if not region.nodes or number in calls:
            outside += own_seconds
            continue
        group = groups.setdefault(max(region.nodes, key=work_key), _NodeGroup())
        group.seconds += own_seconds
        group.regions += 1
        group.nodes |= dict.fromkeys(region.nodes)
    nodes = _node_times(graph, groups, operations, symbols)
    times = tuple(
        RegionTime(region.nodes, region.function, region.label, region_seconds, region.parent)
        for region, region_seconds in zip(regions, seconds, strict=True)
    )
    return Attribution(nodes, times, sum(group.seconds for group in groups.values()), outside)


def _exclusive_seconds(regions: Sequence[TimedRegion], seconds: Sequence[float]) -> list[float]:
    """Returns the seconds of each region without those of the regions in its callee."""
    exclusive = list(seconds)
    for number, region in enumerate(regions):
        if region.parent >= 0:
            exclusive[region.parent] -= seconds[number]
    return exclusive


def _node_times(
    graph: Graph, groups: Mapping[str, _NodeGroup], operations: Mapping[str, float | None], symbols: Mapping[str, int]
) -> tuple[NodeTime, ...]:
    """Returns the times of nodes that have one, and of nodes that are fused into these, in the order of the graph."""
    traffic = Traffic(graph, symbols)
    leaders = {name: leader for leader, group in groups.items() for name in group.nodes if name not in groups}
    times = []
    for name in operations:
        group = groups.get(name)
        if group is not None:
            # The other nodes of the regions, even if they have a time of their own for other regions.
            fused = tuple(other for other in group.nodes if other != name)
            counts = [operations.get(node) for node in (name, *fused)]
            known_counts = [count for count in counts if count is not None]
            total = sum(known_counts) if len(known_counts) == len(counts) else -1.0
            min_bytes = traffic.minimum_bytes((name, *fused))
            bytes_ = -1.0 if min_bytes is None else float(min_bytes)
            times.append(NodeTime(name, group.seconds, "", fused, total, bytes_, group.regions))
        elif name in leaders:
            times.append(NodeTime(name, into=leaders[name]))
    return tuple(times)


# The pass that adds a cycle counter to each region.
COUNTING_PASS = "count-cycles"


def with_counting(recipe: Recipe) -> Recipe:
    """Returns `recipe` with the counting pass enabled.

    If the recipe has no such step, inserts one after memory planning; without that, before loops are lowered.
    """
    steps = list(recipe.steps)
    for index, step in enumerate(steps):
        if step.name == COUNTING_PASS:
            return recipe if step.enabled else recipe.with_step(index, enabled=True)
    enabled = [(index, facts(step.name)) for index, step in enumerate(steps) if step.enabled]
    planning = [index for index, pass_facts in enabled if pass_facts.plans_memory]
    lowering = [index for index, pass_facts in enabled if pass_facts.lowers] or [len(steps)]
    index = planning[-1] + 1 if planning else lowering[0]
    phase = steps[index - 1].phase if index else ""
    return replace(recipe, steps=(*steps[:index], PassStep(COUNTING_PASS, phase=phase), *steps[index:]))


def without_counting(recipe: Recipe) -> Recipe:
    """Returns `recipe` with the counting pass disabled."""
    steps = (replace(step, enabled=False) if step.name == COUNTING_PASS else step for step in recipe.steps)
    return replace(recipe, steps=tuple(steps))
