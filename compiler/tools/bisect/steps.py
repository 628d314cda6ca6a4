"""Finds the responsible step among the optional steps of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from buddy.compiler.graph import plugins
from buddy.compiler.protocol import Culprit
from buddy.compiler.protocol.presets import presets
from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.support.delta_debugging import Verdict, turning_point
from buddy.compiler.tools.bisect.trials import RecipeOutcome

# The shortest pipeline to machine code: steps of a recipe that this pipeline has too are required.
_SHORTEST_PRESET = "upstream"

TryRecipe = Callable[[Recipe], RecipeOutcome]
# Returns whether an outcome is good, bad in the same way as the program, or neither.
Judge = Callable[[RecipeOutcome], Verdict]


def enabled_steps(recipe: Recipe) -> list[int]:
    """Returns the indices of the enabled steps."""
    return [index for index, step in enumerate(recipe.steps) if step.enabled]


def optional_steps(recipe: Recipe) -> list[int]:
    """Returns the indices of the enabled steps that are not in the shortest pipeline, in order.

    A recipe compiles without them, to slower code, because other steps replace them.
    """
    shortest = [_step_key(step) for step in presets()[_SHORTEST_PRESET].recipe.steps if step.enabled]
    indices = enabled_steps(recipe)
    required = _common_subsequence([_step_key(recipe.steps[index]) for index in indices], shortest)
    return [index for position, index in enumerate(indices) if position not in required]


def without_steps(recipe: Recipe, indices: Collection[int]) -> Recipe:
    """Returns the recipe with the steps of these indices disabled."""
    for index in indices:
        recipe = recipe.with_step(index, enabled=False)
    return recipe


def find_culprit_steps(
    recipe: Recipe,
    try_recipe: TryRecipe,
    judge: Judge,
    failing_step: int = -1,
    find_likelier_culprit: Callable[[], bool] = lambda: False,
) -> list[int]:
    """Returns the steps without which `recipe`, which is bad, is good; empty if there are no such steps.

    First tries to disable the step `failing_step`, then steps of plug-ins, alone and all steps of a pass together. Then
    enables the optional steps one after another, always followed by the rest of the pipeline: the step that turns
    the recipe from good to bad is responsible. If the recipe is bad without all optional steps, each required step is
    disabled alone, unless `find_likelier_culprit` returns true.
    """
    optional, disabled = optional_steps(recipe), list[int]()
    for suspects in _suspects(recipe, failing_step):
        if judge(try_recipe(without_steps(recipe, suspects))) == "good":
            return suspects
    while True:
        reduced = without_steps(recipe, disabled)
        remaining = [index for index in optional if index not in disabled]
        turning_steps = _find_turning_steps(reduced, remaining, try_recipe, judge)
        if not turning_steps:
            if not disabled and find_likelier_culprit():
                return []
            return _find_required_step(reduced, try_recipe, judge, disabled)
        disabled += turning_steps
        verdict = judge(try_recipe(without_steps(recipe, disabled)))
        if verdict == "good":
            return sorted(disabled)
        if verdict == "neither":
            # Later steps require the disabled step, so they are disabled too.
            return sorted({*disabled, *(index for index in remaining if index >= turning_steps[0])})


def steps_of_only_plugin_pass(recipe: Recipe) -> list[int]:
    """Returns the enabled steps of plug-ins if all of them are the same pass, else an empty list."""
    indices = _plugin_steps(recipe)
    return indices if len({recipe.steps[index].name for index in indices}) == 1 else []


def _suspects(recipe: Recipe, failing_step: int) -> list[list[int]]:
    """Returns sets of steps to disable first: the failing step, each step of a plug-in, all steps of such a pass."""
    indices = _plugin_steps(recipe)
    alone = [index for index in enabled_steps(recipe) if index == failing_step or index in indices]
    by_pass: dict[str, list[int]] = {}
    for index in indices:
        by_pass.setdefault(recipe.steps[index].name, []).append(index)
    return [*([index] for index in alone), *(group for group in by_pass.values() if len(group) > 1)]


def _plugin_steps(recipe: Recipe) -> list[int]:
    return [index for index in enabled_steps(recipe) if plugin_of_step(recipe.steps[index])]


def _find_turning_steps(recipe: Recipe, optional: Sequence[int], try_recipe: TryRecipe, judge: Judge) -> list[int]:
    """Returns the optional step that turns the pipeline bad; empty if the pipeline is bad without all of `optional`.

    Returns several steps if the pipeline is neither good nor bad between them.
    """

    def verdict(count: int) -> Verdict:
        return judge(try_recipe(without_steps(recipe, optional[count:])))

    if not optional or verdict(0) != "good":
        return []
    low, high = turning_point(len(optional), verdict)
    return list(optional[low:high])


def _find_required_step(recipe: Recipe, try_recipe: TryRecipe, judge: Judge, disabled: Sequence[int]) -> list[int]:
    """Returns the steps `disabled` and a step of the shortest pipeline without which the recipe is good, or []."""
    indices = enabled_steps(recipe)
    shortest = without_steps(recipe, optional_steps(recipe))
    for index in indices:
        # The shortest pipeline is faster to try, but the full one has to be right.
        if (
            judge(try_recipe(without_steps(shortest, [index]))) == "good"
            and judge(try_recipe(without_steps(recipe, [index]))) == "good"
        ):
            return sorted({*disabled, index})
    return []


def with_default_options(recipe: Recipe, index: int) -> Recipe:
    """Returns the recipe with the options of step `index` at their defaults."""
    return recipe.with_step(index, options=())


def make_culprits(recipe: Recipe, indices: Sequence[int]) -> tuple[Culprit, ...]:
    """Returns the steps with these indices as culprits, each with the plug-in that defines its pass."""
    return tuple(Culprit(index, recipe.steps[index], plugin_of_step(recipe.steps[index])) for index in indices)


def plugin_of_step(step: PassStep) -> str:
    """Returns the plug-in, or script, that defines a pass; "" for the package's own and MLIR's passes."""
    kind: plugins.RegistrationKind = "graph pass" if step.level == "graph" else "MLIR pass"
    return plugins.origin((kind, step.name))


def _step_key(step: PassStep) -> tuple[str, str, str]:
    return step.level, step.name, step.anchor


def _common_subsequence(left: Sequence[tuple[str, str, str]], right: Sequence[tuple[str, str, str]]) -> set[int]:
    """Returns the indices in `left` of a longest common subsequence of both."""
    lengths = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in reversed(range(len(left))):
        for j in reversed(range(len(right))):
            is_equal = left[i] == right[j]
            lengths[i][j] = lengths[i + 1][j + 1] + 1 if is_equal else max(lengths[i + 1][j], lengths[i][j + 1])
    common, i, j = set(), 0, 0
    while i < len(left) and j < len(right):
        if left[i] == right[j] and lengths[i][j] == lengths[i + 1][j + 1] + 1:
            common.add(i)
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return common
