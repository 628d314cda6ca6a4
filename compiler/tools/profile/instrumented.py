"""Adds the step that counts time to a recipe."""

from __future__ import annotations

from msgspec.structs import replace

from buddy.compiler.protocol.pass_facts import facts
from buddy.compiler.protocol.recipe import PassStep, Recipe

COUNTING = "count-cycles"


def with_counting(recipe: Recipe) -> Recipe:
    """`recipe` with its counting step enabled, or with one inserted after memory planning, else before loops are
    lowered.

    Returns the same recipe if it counts already.
    """
    steps = list(recipe.steps)
    for index, step in enumerate(steps):
        if step.name == COUNTING:
            return recipe if step.enabled else recipe.with_step(index, enabled=True)
    on = [(index, facts(step.name)) for index, step in enumerate(steps) if step.enabled]
    # At this point functions have their memory, and loops are not yet split.
    behind = [index for index, known in on if known.plans_memory]
    lowering = [index for index, known in on if known.lowers] or [len(steps)]
    place = behind[-1] + 1 if behind else lowering[0]
    phase = steps[place - 1].phase if place else ""
    return replace(recipe, steps=(*steps[:place], PassStep(COUNTING, phase=phase), *steps[place:]))


def without_counting(recipe: Recipe) -> Recipe:
    """`recipe` without counting."""
    steps = (replace(step, enabled=False) if step.name == COUNTING else step for step in recipe.steps)
    return replace(recipe, steps=tuple(steps))
