"""Finds the responsible step among the optional steps of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from buddy.compiler.graph import plugins
from buddy.compiler.protocol import Culprit
from buddy.compiler.protocol.presets import presets
from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.tools.bisect.delta import Verdict, turning_point
from buddy.compiler.tools.bisect.trials import RecipeOutcome

# The shortest pipeline to machine code: steps of a recipe that this pipeline has too are required.
_PLAIN = "upstream"

Try = Callable[[Recipe], RecipeOutcome]
Judge = Callable[[RecipeOutcome], Verdict]


def enabled_steps(recipe: Recipe) -> list[int]:
    return [place for place, step in enumerate(recipe.steps) if step.enabled]


def optional_steps(recipe: Recipe) -> list[int]:
    """The indices of the enabled steps that are not in the shortest pipeline, in order.

    Without any of them a recipe still compiles: other steps do their work, with slower code.
    """
    plain = [_kind(step) for step in presets()[_PLAIN].recipe.steps if step.enabled]
    places = enabled_steps(recipe)
    needed = _common_subsequence([_kind(recipe.steps[place]) for place in places], plain)
    return [place for number, place in enumerate(places) if number not in needed]


def without_steps(recipe: Recipe, places: Collection[int]) -> Recipe:
    for place in places:
        recipe = recipe.with_step(place, enabled=False)
    return recipe


def culprit_steps(
    recipe: Recipe, attempt: Try, judge: Judge, failed_at: int = -1, excused: Callable[[], bool] = lambda: False
) -> list[int]:
    """The steps without which `recipe`, which is bad, is good; empty if there are none.

    The failing step `failed_at` is tried first, then those of plug-ins, with all steps of a pass together too. Then the
    optional steps are enabled one after another, always followed by the rest of the pipeline: the one that turns good
    to bad is responsible. If the recipe is bad without all of them, each other step is disabled alone, unless `excused`
    finds a likelier culprit.
    """
    free, gone = optional_steps(recipe), list[int]()
    for suspects in _suspects(recipe, failed_at):
        if judge(attempt(without_steps(recipe, suspects))) == "good":
            return suspects
    while True:
        now = without_steps(recipe, gone)
        left = [place for place in free if place not in gone]
        found = _find_turning_step(now, left, attempt, judge)
        if not found:
            return [] if not gone and excused() else _find_required_step(now, attempt, judge, gone)
        gone += found
        verdict = judge(attempt(without_steps(recipe, gone)))
        if verdict == "good":
            return sorted(gone)
        if verdict == "neither":
            # Later steps depend on it: the pipeline up to it is good.
            return sorted({*gone, *(place for place in left if place >= found[0])})


def steps_of_plugin(recipe: Recipe) -> list[int]:
    """The steps of plug-ins if all of them are the same pass, else an empty list."""
    places = _plugin_steps(recipe)
    return places if len({recipe.steps[place].name for place in places}) == 1 else []


def _suspects(recipe: Recipe, failed_at: int) -> list[list[int]]:
    """The sets of steps to disable first: the failing step, each step of a plug-in, and all steps of such a pass."""
    places = _plugin_steps(recipe)
    alone = [place for place in enabled_steps(recipe) if place == failed_at or place in places]
    together: dict[str, list[int]] = {}
    for place in places:
        together.setdefault(recipe.steps[place].name, []).append(place)
    return [*([place] for place in alone), *(same for same in together.values() if len(same) > 1)]


def _plugin_steps(recipe: Recipe) -> list[int]:
    return [place for place in enabled_steps(recipe) if origin(recipe.steps[place])]


def _find_turning_step(recipe: Recipe, free: Sequence[int], attempt: Try, judge: Judge) -> list[int]:
    """The optional step with which the pipeline turns bad; empty if it is always bad."""

    def verdict(count: int) -> Verdict:
        return judge(attempt(without_steps(recipe, free[count:])))

    if not free or verdict(0) != "good":
        return []
    low, high = turning_point(len(free), verdict)
    return list(free[low:high])


def _find_required_step(recipe: Recipe, attempt: Try, judge: Judge, gone: Sequence[int]) -> list[int]:
    """A step of the shortest pipeline without which the recipe is good."""
    places = enabled_steps(recipe)
    bare = without_steps(recipe, optional_steps(recipe))
    for place in places:
        # The shortest pipeline is faster to try, but the full one has to be right.
        if (
            judge(attempt(without_steps(bare, [place]))) == "good"
            and judge(attempt(without_steps(recipe, [place]))) == "good"
        ):
            return sorted({*gone, place})
    return []


def with_default_options(recipe: Recipe, place: int) -> Recipe:
    return recipe.with_step(place, options=())


def culprits(recipe: Recipe, places: Sequence[int]) -> tuple[Culprit, ...]:
    return tuple(Culprit(place, recipe.steps[place], origin(recipe.steps[place])) for place in places)


def origin(step: PassStep) -> str:
    """The plug-in, or script, that defines a pass; "" for the package's own and MLIR's passes."""
    kind: plugins.Kind = "graph pass" if step.level == "graph" else "MLIR pass"
    return plugins.origin((kind, step.name))


def _kind(step: PassStep) -> tuple[str, str, str]:
    return step.level, step.name, step.anchor


def _common_subsequence(left: Sequence[tuple[str, str, str]], right: Sequence[tuple[str, str, str]]) -> set[int]:
    """The indices in `left` of a longest common subsequence of both."""
    lengths = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in reversed(range(len(left))):
        for j in reversed(range(len(right))):
            same = left[i] == right[j]
            lengths[i][j] = lengths[i + 1][j + 1] + 1 if same else max(lengths[i + 1][j], lengths[i][j + 1])
    found, i, j = set(), 0, 0
    while i < len(left) and j < len(right):
        if left[i] == right[j] and lengths[i][j] == lengths[i + 1][j + 1] + 1:
            found.add(i)
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return found
