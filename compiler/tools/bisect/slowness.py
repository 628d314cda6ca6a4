"""Finds the pass that makes a program slow: the program is faster without it."""

from __future__ import annotations

from collections import Counter

from buddy.compiler.protocol import BisectionResult
from buddy.compiler.protocol.presets import presets
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.tools.bisect import nodes, reproducing, steps
from buddy.compiler.tools.bisect.timing import TimeRatio, ratio
from buddy.compiler.tools.bisect.trials import RecipeOutcome, RecipeTrials, Tell, TrialSubject

# For programs with more nodes, only the largest function is tried.
_LARGE = 96


def find_slowing_step(
    trials: RecipeTrials, whole: TrialSubject, recipe: Recipe, first: RecipeOutcome, say: Tell
) -> BisectionResult:
    """The step without which the program is `criterion.slower` times as fast; the most expensive one if several are.

    Steps that the recipe's preset does not have are tried first; if one of them is responsible, the others are not
    tried.
    """
    if not first.artifact:
        return BisectionResult(f"nothing to time: {first.told(recipe)}", recipe, first.told(recipe))
    part = _share(whole, recipe)
    for places in _candidates(recipe):
        found = {}
        for place in places:
            if not trials.time_is_up:
                say(f"without {recipe.steps[place].name}, on {len(part.part.graph.operations)} nodes", 0.5)
                gain = _gain(trials, part, recipe, place)
                if gain is not None and gain.low > trials.criterion.slower:
                    found[place] = gain
        if found:
            worst = max(found, key=lambda place: found[place].median)
            return _finding(trials, whole, part, recipe, worst, say)
    return BisectionResult(f"no pass makes it {trials.criterion.slower:g} times as slow or more", recipe)


def _share(whole: TrialSubject, recipe: Recipe) -> TrialSubject:
    """The function with most of a large program's nodes, with its real inputs; a small program itself."""
    if len(whole.part.graph.operations) <= _LARGE:
        return whole
    return next((found for found in nodes.functions_of(whole, recipe)), whole)


def _candidates(recipe: Recipe) -> tuple[list[int], list[int]]:
    """The optional steps: those that the preset of that name does not have, and the others."""
    known = presets().get(recipe.preset)
    usual = Counter((step.name, step.anchor) for step in known.recipe.steps if step.enabled) if known else Counter()
    foreign, others = list[int](), list[int]()
    for place in steps.optional_steps(recipe):
        step = recipe.steps[place]
        usual[step.name, step.anchor] -= 1
        (foreign if usual[step.name, step.anchor] < 0 or steps.origin(step) else others).append(place)
    return foreign, others


def _gain(trials: RecipeTrials, part: TrialSubject, recipe: Recipe, place: int) -> TimeRatio | None:
    """The ratio of the program's time with step `place` to that without; `None` if it cannot be measured."""
    slow, fast = trials(part, recipe), trials(part, steps.without_steps(recipe, [place]))
    if not fast.artifact or fast.artifact == slow.artifact:
        return None
    return ratio(trials, part.part, slow.artifact, fast.artifact, recipe.threads, trials.criterion.slower)


def _finding(
    trials: RecipeTrials, whole: TrialSubject, part: TrialSubject, recipe: Recipe, place: int, say: Tell
) -> BisectionResult:
    """Describes the most expensive step: its share of the whole program's time, and the nodes it slows down."""
    say("the whole program with and without it", 0.8)
    bound = trials.criterion.slower
    gain = _gain(trials, whole, recipe, place)
    blamed = steps.culprits(recipe, [place])
    name = f"{blamed[0].step.name}{blamed[0].origin and f' ({blamed[0].origin})'}"

    def slows(found: TrialSubject) -> bool:
        if trials.time_is_up:
            return False
        say(f"{name} is at fault; {len(found.part.graph.operations)} nodes with and without it", 0.9)
        told = _gain(trials, found, recipe, place)
        return told is not None and told.low > bound

    small = nodes.smallest_failing_part(part, recipe, slows)
    made = reproducing.reproducer(trials, small, recipe, place)
    confirmed = gain is not None and gain.low > 1.0
    times = f"takes {gain.median:.2f} times ({gain.low:.2f} to {gain.high:.2f}) as long" if gain is not None else ""
    return BisectionResult(
        f"{name} is at fault: with it the program {times or 'does not finish in time'}",
        steps.without_steps(recipe, [place]),
        "it is slower than without the pass",
        blamed,
        nodes=tuple(nodes.computing_nodes(small.part)),
        confirmed=confirmed,
        functions=made.functions,
        name=made.name,
        before=made.before,
        after=made.after,
        command=made.command,
    )
