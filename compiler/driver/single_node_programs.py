"""Compiles each node of a graph alone, equal ones once, to measure its own error on the right inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from buddy.compiler.codegen import objects
from buddy.compiler.driver import compile_graph
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.graph import serialize
from buddy.compiler.graph.extraction import ExtractionError, extract_graph
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import GetItemOp, Op, PlaceholderOp, ReshapeFamilyOp
from buddy.compiler.graph.types import NodeType
from buddy.compiler.ops.registry import Registry
from buddy.compiler.protocol.artifact import to_bytes
from buddy.compiler.protocol.numerics_report import OwnProgram
from buddy.compiler.protocol.recipe import EAGER, OpChoice, Recipe, digest

Use = tuple[tuple[str, ...], tuple[tuple[str, int], ...]]
Tell = Callable[[str, float], None]


@dataclass
class _Alone:
    """A graph to compile, with names that do not depend on its position, and the nodes that it stands for."""

    graph: Graph
    recipe: Recipe
    uses: list[Use] = field(default_factory=list)


def own_programs(
    captured: Graph, program: compile_graph.Through, recipe: Recipe, first: Registry | None,
    symbols: Mapping[str, int], tell: Tell = lambda _what, _done: None,
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


def _compiled(alone: Sequence[_Alone], first: Registry | None, why: dict[str, str], tell: Tell) -> list[OwnProgram]:
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
