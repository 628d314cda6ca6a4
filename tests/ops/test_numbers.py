"""Every lowering computes what eager computes, in both dialects and under both presets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from torch.nn import functional

from buddy.compiler.driver.compilation import Compiler
from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import GetItemOp, Op, OutputOp, PlaceholderOp, default_ops_map, new_op
from buddy.compiler.graph.operations import ReshapeOp, SquareOp
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import ir, passmanager
from buddy.compiler.ops import registries
from buddy.compiler.ops.lowering import lower_top_level
from buddy.compiler.protocol import Assignment
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import EAGER, Recipe
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.runtime.captured import CapturedGraph
from tests.guarded_memory import EDGES, run_guarded
from tests.ops.cases import CORE, GROUPS, TYPES_OF_TOSA, Group
from tests.ops.one_op import NOT_CAPTURED, OF_INTEGERS
from tests.programs import assert_same, captured
from tests.support.tiers import sampled

MATH = registries()["math"]
# All that the specification has, so that only what it has not is refused.
TARGET = (
    '#tosa.target_env<specification_version = "1.1.draft", level = none, profiles = [pro_int, pro_fp], '
    "extensions = [int64, bf16, int16]>"
)


@cache
def program(name: str) -> CapturedGraph:
    return captured(GROUPS[name], *GROUPS[name].inputs)


def expected(group: Group) -> list[torch.Tensor]:
    with torch.no_grad():
        return group(*group.inputs)


def assert_agrees(name: str, recipe: Recipe, shown: bool = False) -> None:
    """With every stage `shown`, else straight, which verifies after each step too; nothing of it is kept.

    It also runs on memory with nothing around it that may be read or written.
    """
    graph = program(name).graph
    if shown:
        artifact = Compiler(graph).compile(recipe, lambda *stage: None).artifact
    else:
        artifact = compile_graph(graph, recipe, on_step=lambda step: None)
    loaded, right, labels = LoadedProgram(artifact), expected(GROUPS[name]), list(GROUPS[name].functions)
    assert_same(loaded(program(name).tensors), right, labels)
    for edge in EDGES:
        assert_same(run_guarded(loaded, program(name).tensors, edge), right, labels)


def classes(name: str) -> dict[str, str]:
    """Stable node names to op classes."""
    return {op.stable: type(op).__name__ for op in program(name).graph.operations}


def assignments(name: str, dialect: str) -> Iterator[tuple[str, Assignment]]:
    """The op class and the assignment of each node that computes."""
    found = classes(name)
    for assignment in Compiler(program(name).graph).assignments(default_recipe(dialect=dialect)):
        if found[assignment.node] != GetItemOp.__name__:
            yield found[assignment.node], assignment


CROSSED = pytest.mark.full("each dialect and each preset has another test of these groups")


# TOSA has no words for its ops: its dialect lowers them as the other one does.
WITHOUT_TOSA = pytest.mark.full("the other dialect's test of this group meets the same lowerings")
EVERYWHERE = {("linalg", "default"), ("tosa", "upstream")}
CASES = [
    pytest.param(name, dialect, preset, marks=[] if (dialect, preset) in EVERYWHERE else CROSSED)
    if (name, dialect) != ("linear algebra", "tosa")
    else pytest.param(name, dialect, preset, marks=WITHOUT_TOSA)
    for name in CORE
    for dialect in ("linalg", "tosa")
    for preset in ("default", "upstream")
]
OTHERS = [name for name in GROUPS if name not in CORE]
RARE = ("places in images", "floats resampled")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dialect", "preset"), CASES)
def test_compiled_agrees_with_eager(name: str, dialect: str, preset: str) -> None:
    shown = (dialect, preset) == ("tosa", "default")  # tests of passes look at stages too
    assert_agrees(name, default_recipe(dialect=dialect, preset=preset), shown)


@pytest.mark.parametrize(
    "name",
    sampled(OTHERS, [n for n in OTHERS if n not in RARE], "half a minute of loops like those of the group resampling"),
)
@pytest.mark.slow
def test_other_types_and_shapes_agree_with_eager(name: str) -> None:
    assert_agrees(name, default_recipe())


@pytest.mark.parametrize("name", TYPES_OF_TOSA)
@pytest.mark.slow
def test_other_types_and_shapes_of_tosa_agree_with_eager(name: str) -> None:
    assert_agrees(name, default_recipe(dialect="tosa", preset="upstream"))


@pytest.mark.parametrize("name", dict.fromkeys((*CORE, *TYPES_OF_TOSA)))
@pytest.mark.slow
def test_what_tosa_first_emits_is_valid_by_the_specification(name: str) -> None:
    module = lower_top_level(program(name).graph, "tosa")
    with module.context, ir.Location.unknown():
        module.operation.attributes["tosa.target_env"] = ir.Attribute.parse(TARGET)
        passes = "builtin.module(tosa-validate{strict-op-spec-alignment=true})"
        passmanager.PassManager.parse(passes).run(module.operation)


@pytest.mark.parametrize("name", ["functions", "functions of float64", "special values"])
@pytest.mark.slow
def test_the_math_registry_agrees_with_eager(name: str) -> None:
    recipe = default_recipe()
    for node, op in classes(name).items():
        if op in MATH:
            recipe = recipe.with_choice(node, "math")
    used = {a.lowering for a in Compiler(program(name).graph).assignments(recipe)}
    assert "math" in used
    assert_agrees(name, recipe)


@pytest.mark.parametrize(
    "name", sampled(list(GROUPS), [n for n in GROUPS if n not in RARE], "a group that takes long to capture")
)
@pytest.mark.slow
def test_nothing_of_these_stays_in_eager(name: str) -> None:
    assert [a for _, a in assignments(name, "linalg") if a.lowering == EAGER] == []


@pytest.mark.parametrize("registry", ["linalg", "tosa"])
@pytest.mark.slow
def test_every_lowering_of_a_registry_is_tried_above(registry: str) -> None:
    tried = {op for name in CORE for op, assignment in assignments(name, registry) if assignment.lowering == registry}
    assert set(registries()[registry]) - tried == (NOT_CAPTURED | OF_INTEGERS) & set(registries()[registry])


def test_every_lowering_of_the_math_registry_is_tried_above() -> None:
    assert set(MATH) - set(classes("functions").values()) - set(classes("arithmetic").values()) == set()


def test_every_op_class_has_a_lowering() -> None:
    lowered = {op for registry in registries().values() for op in registry}
    classes = {cls.__name__ for cls in default_ops_map().values() if not cls.only_eager}
    assert classes - lowered == {"GetItemOp"}


@pytest.mark.parametrize("dialect", ["linalg", "tosa"])
@pytest.mark.parametrize(
    ("cls", "target", "further", "shape", "reference"),
    [
        (SquareOp, "square.default", (), (2, 6), torch.square),
        (ReshapeOp, "reshape.default", ([3, 4],), (3, 4), lambda x: x.reshape(3, 4)),
    ],
)
def test_ops_of_graphs_built_by_hand(
    cls: type[Op], target: str, further: tuple[object, ...], shape: tuple[int, ...], reference: object, dialect: str
) -> None:
    x = torch.randn(2, 6)
    graph = Graph()
    argument = new_op(PlaceholderOp, "x", "x", metas=[TensorMeta((2, 6), TensorDType.Float32)])
    node = new_op(cls, "node", target, [argument, *further], [TensorMeta(shape, TensorDType.Float32)])
    for op in (argument, node, new_op(OutputOp, "output", "output", [(node,)])):
        graph.add_node(op)
    artifact = Compiler(graph).compile(default_recipe(dialect=dialect)).artifact
    assert callable(reference)
    assert_same(LoadedProgram(artifact)([x]), [reference(x)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tosa_rounds_halves_once_where_eager_does_and_as_often_as_it_does(dtype: torch.dtype) -> None:
    functions = {"sigmoid": torch.sigmoid, "logit": torch.logit, **{f"power {n}": lambda x, n=n: x**n for n in (3, -2)}}
    x = torch.linspace(0.05, 0.95, 400).to(dtype)
    graph = captured(lambda x: [f(x) for f in functions.values()], x)
    results = LoadedProgram(compile_graph(graph.graph, default_recipe(dialect="tosa")))(graph.tensors)
    for (name, function), ours in zip(functions.items(), results, strict=True):
        assert (ours != function(x)).float().mean() < 0.03, name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_hard_activations_of_every_number_of_16_bits_are_those_of_eager(dtype: torch.dtype) -> None:
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    # Processors that round to bfloat16 in one instruction flush numbers below the normal ones to zero.
    x = x[x.isnan() | (x == 0) | (x.abs() >= 4 * torch.finfo(dtype).tiny)]
    graph = captured(lambda x: [functional.hardswish(x), functional.hardsigmoid(x)], x)
    results = LoadedProgram(compile_graph(graph.graph, default_recipe()))(graph.tensors)
    for ours, reference in zip(results, (functional.hardswish(x), functional.hardsigmoid(x)), strict=True):
        torch.testing.assert_close(ours, reference, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hard_activations_are_saturated_exactly(dtype: torch.dtype) -> None:
    x = torch.tensor([3.0, 7.5, 1e30, torch.inf, -3.0, -torch.inf], dtype=dtype)
    graph = captured(lambda x: functional.hardsigmoid(x), x)
    (ours,) = LoadedProgram(compile_graph(graph.graph, default_recipe()))(graph.tensors)
    assert ours.tolist() == [1, 1, 1, 1, 0, 0]
