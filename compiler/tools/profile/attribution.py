"""Adds the step that counts time to a recipe, and attributes the time of regions to nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from buddy.compiler.graph.graph import Graph
from buddy.compiler.protocol.artifact import TimedRegion
from buddy.compiler.protocol.pass_facts import facts
from buddy.compiler.protocol.profile import NodeTime, RegionTime
from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.tools.profile.work import Traffic, operations_of


@dataclass
class _Group:
    """The time of one node: the regions in which it does most of the work, and the other nodes of these regions."""

    seconds: float = 0.0
    regions: int = 0
    others: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True)
class Attribution:
    """`inside` are the seconds attributed to nodes, `outside` those of call overhead and of regions without nodes."""

    nodes: tuple[NodeTime, ...]
    regions: tuple[RegionTime, ...]
    inside: float
    outside: float


def attribute_time(
    graph: Graph, regions: Sequence[TimedRegion], seconds: Sequence[float], symbols: Mapping[str, int]
) -> Attribution:
    """The time of each node of `graph`; `seconds` are those of the regions, where calls include their callees."""
    operations = {op.stable: operations_of(op, symbols) for op in graph.body}
    order = {name: place for place, name in enumerate(operations)}

    def working(name: str) -> tuple[float, int]:
        """Sort key: most operations first, then the later node, since a fused loop writes its result."""
        return (operations.get(name) or 0.0, order.get(name, -1))

    groups: dict[str, _Group] = {}
    outside = 0.0
    calls = {region.parent for region in regions}
    for number, (region, own) in enumerate(zip(regions, _own_seconds(regions, seconds), strict=True)):
        if not region.nodes or number in calls:
            outside += own
            continue
        group = groups.setdefault(max(region.nodes, key=working), _Group())
        group.seconds += own
        group.regions += 1
        group.others |= dict.fromkeys(region.nodes)
    nodes = _node_times(graph, groups, operations, symbols)
    times = tuple(
        RegionTime(region.nodes, region.function, region.what, taken, region.parent)
        for region, taken in zip(regions, seconds, strict=True)
    )
    return Attribution(nodes, times, sum(group.seconds for group in groups.values()), outside)


def _own_seconds(regions: Sequence[TimedRegion], seconds: Sequence[float]) -> list[float]:
    """The seconds of each region without those of the regions in its callees."""
    own = list(seconds)
    for number, region in enumerate(regions):
        if region.parent >= 0:
            own[region.parent] -= seconds[number]
    return own


def _node_times(
    graph: Graph, groups: Mapping[str, _Group], operations: Mapping[str, float | None], symbols: Mapping[str, int]
) -> tuple[NodeTime, ...]:
    """The nodes with a time, and those whose time is attributed to another node, in the order of the graph."""
    traffic = Traffic(graph, symbols)
    into = {name: leader for leader, group in groups.items() for name in group.others if name not in groups}
    found = []
    for name in operations:
        group = groups.get(name)
        if group is not None:
            # A node with its own time is fused too, if it has a part in this one.
            fused = tuple(other for other in group.others if other != name)
            counts = [operations.get(each) for each in (name, *fused)]
            known = [count for count in counts if count is not None]
            total = sum(known) if len(known) == len(counts) else -1.0
            moved = traffic.of((name, *fused))
            bytes_ = -1.0 if moved is None else float(moved)
            found.append(NodeTime(name, group.seconds, "", fused, total, bytes_, group.regions))
        elif name in into:
            found.append(NodeTime(name, into=into[name]))
    return tuple(found)


COUNTING = "count-cycles"


def with_counting(recipe: Recipe) -> Recipe:
    """`recipe` with an enabled counting step.

    Without such a step, one is inserted after memory planning, or else before loops are lowered.
    """
    steps = list(recipe.steps)
    for index, step in enumerate(steps):
        if step.name == COUNTING:
            return recipe if step.enabled else recipe.with_step(index, enabled=True)
    on = [(index, facts(step.name)) for index, step in enumerate(steps) if step.enabled]
    # At this point functions have their memory, and loops are not yet split.
    behind = [index for index, known in on if known.plans_memory]
    lowering = [index for index, known in on if known.lowers] or [len(steps)]
    place = behind[-1] + 1 if behind else lowering[0]
    phase = steps[place - 1].phase if place else ""
    return replace(recipe, steps=(*steps[:place], PassStep(COUNTING, phase=phase), *steps[place:]))


def without_counting(recipe: Recipe) -> Recipe:
    """`recipe` without counting."""
    steps = (replace(step, enabled=False) if step.name == COUNTING else step for step in recipe.steps)
    return replace(recipe, steps=tuple(steps))
