"""The recipe: to TOML and back, errors that name the field, and keys that say what may be reused."""

from __future__ import annotations

import msgspec
import pytest

from buddy.compiler.protocol.pass_facts import facts
from buddy.compiler.protocol.presets import default_recipe, presets
from buddy.compiler.protocol.recipe import PassStep, Recipe, from_toml, prefix_keys, to_toml

STEPS = (PassStep("a", "graph", ""), PassStep("b"), PassStep("c", options=(("size", 4),)), PassStep("d"))
RECIPE = Recipe("model.py", ("--tiny",), steps=STEPS)


@pytest.mark.parametrize("preset", presets())
@pytest.mark.parametrize("dialect", ["linalg", "tosa"])
def test_a_recipe_comes_back_from_toml_as_it_was(preset: str, dialect: str) -> None:
    recipe = default_recipe("model.py", ("--layers", "2"), preset, dialect)  # type: ignore[arg-type]
    recipe = recipe.with_choice("layer.0/gelu.0", "eager").toggled(3)
    assert from_toml(to_toml(recipe)) == recipe


def test_option_types_survive_toml() -> None:
    options = (("flag", True), ("count", 3), ("ratio", 0.5), ("name", "x"))
    recipe = Recipe(steps=(PassStep("p", options=options),))
    (step,) = from_toml(to_toml(recipe)).steps
    assert [(type(value), value) for _, value in step.options] == [(type(value), value) for _, value in options]


def test_only_torch_mlir_lowers_to_stablehlo() -> None:
    recipe = from_toml("frontend = 'torch-mlir'\ndialect = 'stablehlo'")
    assert from_toml(to_toml(recipe)) == recipe == Recipe(frontend="torch-mlir", dialect="stablehlo")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dialect = 'stablehlo'", "$.dialect"),
        ("threads = 'two'", "$.threads"),
        ("threads = 0", "$.threads"),
        ("threads = 1000000", "$.threads"),
        ("[[steps]]\nname = 1", "$.steps[0].name"),
        ("[[steps]]\nlevel = 'mlir'", "name"),
        ("[[choices]]\nnode = 'x'", "lowering"),
        ("dialect = \n", "line 1"),
        (f"graph = 1{'0' * 30}", "$.graph"),
        ("opt_level = -1", "$.opt_level"),
        ("steps = " + "[" * 5000, "not a recipe"),
        ("[[steps]]\nname = 'p'\noptions = [['n', 99999999999999999999999]]", "option n of p"),
        ("[[steps]]\nname = 'p'\noptions = [['n', nan]]", "option n of p"),
        ("[[steps]]\nname = 'p'\noptions = [['n', -inf]]", "option n of p"),
    ],
)
def test_what_is_no_recipe_is_refused_with_the_field(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="not a recipe") as error:
        from_toml(text)
    assert said in str(error.value)


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="default") as error:
        default_recipe(preset="fast")
    assert "upstream" in str(error.value)


def test_a_step_is_spelt_as_in_a_pass_pipeline() -> None:
    assert PassStep("canonicalize").spelling() == "canonicalize"
    assert PassStep("p", options=(("top-down", False), ("n", 2))).spelling() == "p{top-down=false n=2}"


def test_a_choice_replaces_the_one_before_and_none_takes_it_back() -> None:
    chosen = RECIPE.with_choice("n", "tosa").with_choice("n", "eager")
    assert chosen.choice_map() == {"n": "eager"}
    assert chosen.with_choice("n", None) == RECIPE


def test_the_order_of_choices_does_not_matter() -> None:
    assert RECIPE.with_choice("a", "tosa").with_choice("b", "tosa") == RECIPE.with_choice("b", "tosa").with_choice(
        "a", "tosa"
    )


def test_toggling_twice_is_the_recipe_itself() -> None:
    assert RECIPE.toggled(1).toggled(1) == RECIPE
    assert not RECIPE.toggled(1).steps[1].enabled


# ---- keys of prefixes ------------------------------------------------------------------------------------------------


def test_a_step_switched_off_has_the_key_of_the_step_before() -> None:
    keys = prefix_keys(RECIPE.toggled(2), "graph")
    assert keys.after_step[2] == keys.after_step[1]


def test_steps_before_a_change_keep_their_keys_and_those_after_lose_them() -> None:
    before, after = prefix_keys(RECIPE, "graph"), prefix_keys(RECIPE.with_step(2, options=(("size", 8),)), "graph")
    assert before.top == after.top
    assert before.after_step[:2] == after.after_step[:2]
    assert not set(before.after_step[2:]) & set(after.after_step[2:])


@pytest.mark.parametrize(
    "changed",
    [
        msgspec.structs.replace(RECIPE, dialect="tosa"),
        msgspec.structs.replace(RECIPE, partition="whole"),
        RECIPE.with_choice("n", "eager"),
        RECIPE.toggled(0),
    ],
    ids=["dialect", "partition", "choice", "graph pass"],
)
def test_what_makes_the_top_level_changes_every_key(changed: Recipe) -> None:
    before, after = prefix_keys(RECIPE, "graph"), prefix_keys(changed, "graph")
    assert not {before.top, *before.after_step} & {after.top, *after.after_step}


def test_another_graph_has_other_keys() -> None:
    assert prefix_keys(RECIPE, "graph").top != prefix_keys(RECIPE, "another").top


def test_where_a_program_comes_from_and_phases_do_not_matter() -> None:
    moved = msgspec.structs.replace(RECIPE, source="elsewhere.py", preset="upstream").with_step(1, phase="loops")
    assert prefix_keys(moved, "graph") == prefix_keys(RECIPE, "graph")


def test_another_number_of_threads_reruns_from_the_pass_that_shares_loops() -> None:
    recipe = default_recipe()
    reading = [facts(step.name).reads_threads for step in recipe.steps]
    one, two = (prefix_keys(msgspec.structs.replace(recipe, threads=n), "graph").after_step for n in (1, 2))
    first = reading.index(True)
    assert one[:first] == two[:first]
    assert all(a != b for a, b in zip(one[first:], two[first:], strict=True))


def test_a_recipe_with_checks_can_be_read_by_version_0_1_and_one_without_says_so() -> None:
    assert "checks" not in to_toml(Recipe())
    without = Recipe(checks="none")
    assert from_toml(to_toml(without)) == without
    assert prefix_keys(without, "graph").top != prefix_keys(Recipe(), "graph").top
