"""The passes of a recipe that change numerics, and the recipe without each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from buddy.compiler.protocol.pass_facts import facts
from buddy.compiler.protocol.recipe import Recipe


class NumericsVariant(NamedTuple):
    """A recipe without one change of numerics: `what` describes the change, `step` is the pass that makes it."""

    what: str
    step: str
    recipe: Recipe


def without_each(recipe: Recipe) -> Iterator[NumericsVariant]:
    """The recipe without each enabled pass that changes numerics, in recipe order."""
    for index, step in enumerate(recipe.steps):
        numbers = facts(step.name).numbers
        if not step.enabled or numbers is None:
            continue
        what, option = numbers.how, numbers.without
        if option is None:
            yield NumericsVariant(what, step.name, recipe.with_step(index, enabled=False))
        elif option not in step.options:
            others = tuple(pair for pair in step.options if pair[0] != option[0])
            changed = replace(recipe.steps[index], options=(*others, option))
            steps = (*recipe.steps[:index], changed, *recipe.steps[index + 1 :])
            yield NumericsVariant(what, step.name, replace(recipe, steps=steps))
