"""Which steps of a recipe can be done without, and which of them is at fault."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from buddy.compiler.graph import plugins, registrations
from buddy.compiler.protocol import Culprit
from buddy.compiler.protocol.presets import presets
from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.tools.bisect.delta import Verdict, turning_point
from buddy.compiler.tools.bisect.trials import Outcome

# The shortest line to machine code that there is: what it has in common with a recipe, the recipe needs.
_PLAIN = "upstream"

Try = Callable[[Recipe], Outcome]
Judge = Callable[[Outcome], Verdict]


def enabled(recipe: Recipe) -> list[int]:
    return [place for place, step in enumerate(recipe.steps) if step.enabled]


def optional(recipe: Recipe) -> list[int]:
    """The steps that are on and not on the plainest line to machine code, in order.

    Without any of them a recipe still compiles: their work is done by others, more slowly.
    """
    plain = [_kind(step) for step in presets()[_PLAIN].recipe.steps if step.enabled]
    places = enabled(recipe)
    needed = _common([_kind(recipe.steps[place]) for place in places], plain)
    return [place for number, place in enumerate(places) if number not in needed]


def without(recipe: Recipe, places: Collection[int]) -> Recipe:
    for place in places:
        recipe = recipe.with_step(place, enabled=False)
    return recipe


def at_fault(
    recipe: Recipe, attempt: Try, judge: Judge, failed_at: int = -1, excused: Callable[[], bool] = lambda: False
) -> list[int]:
    """The steps without which `recipe`, which is bad, is good; none where that cannot be had.

    The step it failed at, `failed_at`, is tried first, then those that plug-ins have brought, steps of the same pass
    also together. Then the steps that can be done without are added one after another, the rest of the line always
    behind them: the one that turns good to bad is at fault. Where it is bad without all of these, each of the others
    is left out by itself, unless `excused` knows something that is more likely at fault.
    """
    free, gone = optional(recipe), list[int]()
    for suspects in _suspects(recipe, failed_at):
        if judge(attempt(without(recipe, suspects))) == "good":
            return suspects
    while True:
        now = without(recipe, gone)
        left = [place for place in free if place not in gone]
        found = _turning(now, left, attempt, judge)
        if not found:
            return [] if not gone and excused() else _needed_at_fault(now, attempt, judge, gone)
        gone += found
        verdict = judge(attempt(without(recipe, gone)))
        if verdict == "good":
            return sorted(gone)
        if verdict == "neither":
            # What is behind it needs it: the line up to it is good.
            return sorted({*gone, *(place for place in left if place >= found[0])})


def of_one_pass(recipe: Recipe) -> list[int]:
    """The steps that plug-ins brought, if all of them are of the same pass; none where there are several passes."""
    places = _of_plugins(recipe)
    return places if len({recipe.steps[place].name for place in places}) == 1 else []


def _suspects(recipe: Recipe, failed_at: int) -> list[list[int]]:
    """What to leave out first: the step it failed at, each one of a plug-in's, and all steps of such a pass."""
    places = _of_plugins(recipe)
    alone = [place for place in enabled(recipe) if place == failed_at or place in places]
    together: dict[str, list[int]] = {}
    for place in places:
        together.setdefault(recipe.steps[place].name, []).append(place)
    return [*([place] for place in alone), *(same for same in together.values() if len(same) > 1)]


def _of_plugins(recipe: Recipe) -> list[int]:
    return [place for place in enabled(recipe) if origin(recipe.steps[place])]


def _turning(recipe: Recipe, free: Sequence[int], attempt: Try, judge: Judge) -> list[int]:
    """The step, of those that can be done without, with which the line turns bad; none where it always is."""

    def verdict(count: int) -> Verdict:
        return judge(attempt(without(recipe, free[count:])))

    if not free or verdict(0) != "good":
        return []
    low, high = turning_point(len(free), verdict)
    return list(free[low:high])


def _needed_at_fault(recipe: Recipe, attempt: Try, judge: Judge, gone: Sequence[int]) -> list[int]:
    """A step on the plainest line without which it is good."""
    places = enabled(recipe)
    bare = without(recipe, optional(recipe))
    for place in places:
        # The bare line is the faster one to try, the whole one is what has to be right.
        if judge(attempt(without(bare, [place]))) == "good" and judge(attempt(without(recipe, [place]))) == "good":
            return sorted({*gone, place})
    return []


def with_default_options(recipe: Recipe, place: int) -> Recipe:
    return recipe.with_step(place, options=())


def culprits(recipe: Recipe, places: Sequence[int]) -> tuple[Culprit, ...]:
    return tuple(Culprit(place, recipe.steps[place], origin(recipe.steps[place])) for place in places)


def origin(step: PassStep) -> str:
    """The plug-in, or script, that a pass comes from; "" for the package's own and for MLIR's."""
    kind: registrations.Kind = "graph pass" if step.level == "graph" else "MLIR pass"
    return plugins.origin((kind, step.name))


def _kind(step: PassStep) -> tuple[str, str, str]:
    return step.level, step.name, step.anchor


def _common(left: Sequence[tuple[str, str, str]], right: Sequence[tuple[str, str, str]]) -> set[int]:
    """The places in `left` of a longest common subsequence of both."""
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
