"""Stages: the same recipe gives the same ones, and one field changed reruns only what follows."""

from __future__ import annotations

from itertools import pairwise

import pytest

from buddy.compiler.protocol import Stage
from buddy.compiler.protocol.presets import default_recipe, presets
from buddy.compiler.protocol.recipe import Recipe
from tests.models import stack
from tests.programs import Line, step_number, with_options, without

FEW = 2  # blocks


def texts(line: Line) -> list[tuple[str, str]]:
    return [(stage.name, text.content) for stage, text in line.stages]


@pytest.fixture
def line() -> Line:
    return Line(*stack(FEW))


def test_stages_are_the_graph_the_lowering_each_enabled_pass_llvm_ir_and_assembly(line: Line) -> None:
    recipe = default_recipe()
    names = [stage.name for stage in line.compile(recipe).stages]
    graph, mlir = ([s.name for s in recipe.steps if s.enabled and s.level == level] for level in ("graph", "mlir"))
    assert names == ["graph", *graph, "lower", *mlir, "translate", "codegen"]


def test_each_stage_is_told_as_soon_as_it_is_there(line: Line) -> None:
    compilation = line.compile()
    assert tuple(stage for stage, _ in line.stages) == compilation.stages
    assert [stage.index for stage in compilation.stages] == list(range(len(compilation.stages)))


@pytest.mark.parametrize("preset", ["default", "upstream"])
def test_phases_come_in_the_presets_order(line: Line, preset: str) -> None:
    stages = line.compile(default_recipe(preset=preset)).stages
    known = [name for name, _ in presets()[preset].phases]
    order = [known.index(stage.phase) for stage in stages]
    assert order == sorted(order)


def test_a_stage_names_the_step_that_made_it(line: Line) -> None:
    recipe = default_recipe()
    made = [stage for stage in line.compile(recipe).stages if stage.step >= 0]
    assert all(recipe.steps[stage.step].name == stage.name for stage in made)


def test_op_counts_say_what_a_pass_took_and_gave(line: Line) -> None:
    stages = line.compile().stages
    lowered = next(stage.index for stage in stages if stage.name == "lower")
    for before, after in [*pairwise(stages[:lowered]), *pairwise(stages[lowered:-2])]:
        assert after.ops == before.ops + after.added - after.removed


def test_a_pass_that_changes_nothing_says_so(line: Line) -> None:
    stages = {stage.name: stage for stage in line.compile(default_recipe(dialect="linalg")).stages}
    assert not stages["tosa-to-linalg"].changed
    assert stages["one-shot-bufferize"].changed


@pytest.mark.parametrize("dialect", ["linalg", "tosa"])
def test_two_compilers_give_the_same_stages_byte_for_byte(dialect: str) -> None:
    first, second = Line(*stack(FEW)), Line(*stack(FEW))
    recipe = default_recipe(dialect=dialect)
    first.compile(recipe)
    second.compile(recipe)
    assert texts(first) == texts(second)
    assert [text.line_sets for _, text in first.stages] == [text.line_sets for _, text in second.stages]


def test_a_recipe_gives_the_same_stages_whatever_was_compiled_before(line: Line) -> None:
    line.compile()
    expected = texts(line)
    line.compile(default_recipe(preset="upstream"))
    line.compile(without(default_recipe(), "fuse-elementwise"))
    line.compile()
    assert texts(line) == expected


def test_the_same_recipe_again_reuses_all_but_the_graph(line: Line) -> None:
    line.compile()
    again = line.compile()
    assert again.reused == len(again.stages) - 1


def stages_before(recipe: Recipe, name: str) -> int:
    """How many stages of `recipe` stand before the one that pass `name` makes."""
    return 2 + sum(step.enabled for step in recipe.steps[: step_number(recipe, name)])


@pytest.mark.parametrize("name", ["fuse-elementwise", "expand-math-to-polynomials", "vectorize-generics"])
def test_switching_a_pass_off_leaves_the_stages_before_untouched(line: Line, name: str) -> None:
    recipe = default_recipe()
    line.compile(recipe)
    before = texts(line)
    compilation = line.compile(without(recipe, name))
    kept = stages_before(recipe, name)
    assert texts(line)[:kept] == before[:kept]
    assert texts(line)[kept:] != before[kept + 1 :]
    assert compilation.reused == kept - 1


def test_stages_that_had_to_make_room_are_made_again(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM IR goes before the assembly that comes of it: one of the two may be there without the other."""
    line.compile()
    expected = texts(line)
    monkeypatch.setattr("buddy.compiler.driver.compilation.MAX_SNAPSHOTS", len(line.compiler._snapshots) - 1)
    line.compile()
    assert texts(line) == expected


def test_switching_a_pass_on_again_reuses_everything(line: Line) -> None:
    recipe = default_recipe()
    line.compile(recipe)
    line.compile(without(recipe, "vectorize-generics"))
    back = line.compile(recipe)
    assert back.reused == len(back.stages) - 1


def test_an_option_changed_reruns_from_its_pass(line: Line) -> None:
    recipe = default_recipe()
    line.compile(recipe)
    compilation = line.compile(with_options(recipe, "plan-memory", ("arena", False)))
    assert compilation.reused == stages_before(recipe, "plan-memory") - 1
    assert "memref.dealloc" in line.text("plan-memory")


def test_another_lowering_of_a_node_reruns_from_the_lowering(line: Line) -> None:
    line.compile()
    compilation = line.compile(default_recipe().with_choice("softmax.0", "eager"))
    lowered = next(stage.index for stage in compilation.stages if stage.name == "lower")
    assert compilation.reused == lowered - 1


def test_the_optimisation_level_reruns_only_the_code_generation(line: Line) -> None:
    recipe = default_recipe()
    line.compile(recipe)
    first = texts(line)
    compilation = line.compile(Recipe(steps=recipe.steps, opt_level=0))
    assert compilation.reused == len(compilation.stages) - 3
    assert texts(line)[:-1] == first[:-1]
    assert texts(line)[-1] != first[-1]


def test_a_reused_stage_stands_where_its_step_now_is(line: Line) -> None:
    recipe = default_recipe()
    line.compile(recipe)
    longer = Recipe(steps=(recipe.steps[0], *recipe.steps))
    stages: tuple[Stage, ...] = line.compile(longer).stages
    assert all(stage.step < 0 or longer.steps[stage.step].name == stage.name for stage in stages)


def test_a_graph_pass_is_a_stage_and_its_nodes_are_said_to_be_folded() -> None:
    line = Line(lambda x: x.clone() + 1, stack()[1])
    recipe = default_recipe()
    compilation = line.compile(recipe.with_step(step_number(recipe, "drop-identities"), enabled=True))
    assert [stage.name for stage in compilation.stages[:2]] == ["graph", "drop-identities"]
    assert {a.node: a.lowering for a in compilation.assignments} == {"clone.0": "folded", "add.0": "linalg"}
