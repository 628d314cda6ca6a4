"""Values that a run shows: in the program's order, from functions that layers share, and with nothing cut elsewhere."""

from __future__ import annotations

import pytest
import torch

from buddy.compiler.graph.partition import outline_layers
from buddy.compiler.graph.transform import TransformError, run_transform
from buddy.compiler.graph.transform.rewriting import observed_nodes
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.runtime.graph_interpreter import compute_values
from buddy.compiler.runtime.torch_ops import observe_nodes
from tests.models import stack
from tests.programs import Line, captured


def showing(nodes: str) -> Recipe:
    recipe = default_recipe()
    first = next(i for i, step in enumerate(recipe.steps) if step.level == "mlir")
    step = PassStep("observe", "graph", "", (("nodes", nodes),))
    return Recipe(steps=(*recipe.steps[:first], step, *recipe.steps[first:]))


def test_a_run_shows_every_value_of_every_call_in_order() -> None:
    line = Line(*stack())
    artifact = line.compile(showing("*")).artifact
    shown: list[torch.Tensor] = []
    with observe_nodes(lambda value: shown.append(value.clone())):
        LoadedProgram(artifact)(line.program.tensors)
    graph = line.program.graph
    names = {op.stable: op.name for op in graph.operations}
    found = [(names[stable], value) for stable, value in zip(artifact.observed, shown, strict=True) if stable in names]
    assert len(found) > 20
    expected = compute_values(graph, line.program.tensors, {name for name, _ in found})
    for name, value in found:
        torch.testing.assert_close(value, expected[name], msg=lambda text, name=name: f"{name}: {text}")


def test_showing_values_cuts_the_graph_nowhere_else() -> None:
    graph = captured(*stack()).graph
    before = outline_layers(graph, {})
    run_transform(graph, "observe", {"nodes": "*"})
    after = outline_layers(graph, {})
    assert after.function_of().items() >= before.function_of().items()
    assert [f.name for f in after.functions] == [f.name for f in before.functions]


def test_a_value_may_be_shown_behind_another_node() -> None:
    graph = captured(lambda a: (a.exp() + 1).sin(), torch.ones(3)).graph
    exp, add, sin = (op.stable for op in graph.operations)
    run_transform(graph, "observe", {"nodes": f"{sin} {exp}@{sin} {add}"})
    assert observed_nodes(graph) == (add, sin, exp)
    with pytest.raises(TransformError, match="no op node 'cos'"):
        run_transform(graph, "observe", {"nodes": "cos"})


def test_without_an_observer_nothing_happens() -> None:
    line = Line(lambda a: a.exp() + 1, torch.ones(3))
    (result,) = line.run(showing("*"))
    assert torch.equal(result, torch.ones(3).exp() + 1)
