"""Which steps a recipe can do without, and the search among them, with trials that are functions of the recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.support.delta_debugging import Verdict
from buddy.compiler.tools.bisect import faults, search
from buddy.compiler.tools.bisect.trials import RecipeOutcome

RECIPE = default_recipe()


def names(recipe: Recipe, places: list[int]) -> list[str]:
    return [recipe.steps[place].name for place in places]


def place(name: str) -> int:
    return next(number for number, step in enumerate(RECIPE.steps) if step.name == name and step.enabled)


def judge(outcome: RecipeOutcome) -> Verdict:
    return {"right": "good", "differs": "bad"}.get(outcome.kind, "neither")  # type: ignore[return-value]


def wrong_with(*places: int) -> Callable[[Recipe], RecipeOutcome]:
    """A program that is wrong as long as any of these steps is on."""
    return lambda recipe: RecipeOutcome("differs" if any(recipe.steps[p].enabled for p in places) else "right")


def test_steps_of_the_plainest_line_are_needed_and_others_are_not() -> None:
    free = names(RECIPE, faults.optional_steps(RECIPE))
    assert "fuse-rows" in free
    assert "flash-attention-prefill" in free
    assert not {"one-shot-bufferize", "convert-scf-to-cf", "plan-memory"} & set(free)


@pytest.mark.parametrize("name", ["slice-parts", "fuse-elementwise", "vectorize-generics"])
def test_the_step_that_turns_good_to_bad_is_at_fault(name: str) -> None:
    tried: list[Recipe] = []

    def attempt(recipe: Recipe) -> RecipeOutcome:
        tried.append(recipe)
        return wrong_with(place(name))(recipe)

    assert names(RECIPE, faults.find_culprit_steps(RECIPE, attempt, judge)) == [name]
    assert len(tried) <= 8


def test_two_faults_are_both_found() -> None:
    both = [place("fold-transposes"), place("read-in-place")]
    assert faults.find_culprit_steps(RECIPE, wrong_with(*both), judge) == both


def test_all_steps_of_a_pass_that_a_plug_in_brought_are_left_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [number for number, step in enumerate(RECIPE.steps) if step.name == "cse" and step.enabled]
    assert len(wanted) > 1
    monkeypatch.setattr(
        "buddy.compiler.tools.bisect.faults.plugin_of_step", lambda step: "own.py" if step.name == "cse" else ""
    )
    assert faults.steps_of_only_plugin_pass(RECIPE) == wanted
    assert faults.find_culprit_steps(RECIPE, wrong_with(*wanted), judge) == wanted
    monkeypatch.setattr(
        "buddy.compiler.tools.bisect.faults.plugin_of_step",
        lambda step: "own.py" if step.name in ("cse", "fuse-rows") else "",
    )
    assert faults.steps_of_only_plugin_pass(RECIPE) == []


def test_a_needed_step_is_found_by_leaving_it_out() -> None:
    wanted = place("copies-to-loops")
    assert faults.find_culprit_steps(RECIPE, wrong_with(wanted), judge) == [wanted]


def test_a_needed_step_is_left_in_where_something_likelier_is_at_fault() -> None:
    tried: list[Recipe] = []

    def attempt(recipe: Recipe) -> RecipeOutcome:
        tried.append(recipe)
        return RecipeOutcome("differs")

    assert faults.find_culprit_steps(RECIPE, attempt, judge, find_likelier_culprit=lambda: True) == []
    assert len(tried) == 1


def test_what_is_likelier_is_not_asked_for_where_another_step_is_at_fault() -> None:
    wanted = place("fold-transposes")
    assert faults.find_culprit_steps(RECIPE, wrong_with(wanted), judge, find_likelier_culprit=lambda: True) == [wanted]


def test_what_no_step_mends_has_none_at_fault() -> None:
    assert faults.find_culprit_steps(RECIPE, lambda _recipe: RecipeOutcome("differs"), judge) == []


def test_what_needs_the_step_at_fault_goes_with_it() -> None:
    """Without `fuse-rows` the step behind it fails: the line up to `fuse-rows` is what is right."""
    wrong, behind = place("fuse-rows"), place("epilogues-in-place")

    def attempt(recipe: Recipe) -> RecipeOutcome:
        on = recipe.steps[wrong].enabled
        if not on and recipe.steps[behind].enabled:
            return RecipeOutcome("fails", behind)
        return RecipeOutcome("differs" if on else "right")

    found = faults.find_culprit_steps(RECIPE, attempt, judge)
    assert found[0] == wrong
    assert attempt(faults.without_steps(RECIPE, found)).is_right


def test_a_step_of_another_recipe_is_optional() -> None:
    line = [*RECIPE.steps[:20], PassStep("flip-one-sign"), *RECIPE.steps[20:]]
    recipe = Recipe(steps=tuple(line))
    assert 20 in faults.optional_steps(recipe)


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (RecipeOutcome("differs"), "responsible for the difference from eager"),
        (RecipeOutcome("fails", 2), f"responsible for the failure in pass {RECIPE.steps[2].name} (step 3)"),
    ],
)
def test_without_any_culprit_the_answer_speaks_of_no_other_ones(outcome: RecipeOutcome, reason: str) -> None:
    bisection = search._Bisection(cast(Any, None), cast(Any, None), RECIPE, lambda _what, _done: None)
    bisection.original_outcome = outcome
    expected = f"no single pass or lowering is {reason}: no trial makes the whole program right"
    assert bisection._describe_culprits([], [], is_right=False) == expected
