"""Which steps of a recipe change its numbers, and how it is without each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from buddy.compiler.protocol.recipe import OptionValue, Recipe


class Without(NamedTuple):
    """A recipe with one thing that changes numbers taken back; `what` says which, `step` which pass does it."""

    what: str
    step: str
    recipe: Recipe


# What the pass does to numbers, and the option that takes it back; without one, the pass is switched off.
_CHANGES: dict[str, tuple[str, tuple[str, OptionValue] | None]] = {
    "flash-attention-prefill": ("attention goes block by block over its keys", None),
    "gqa-attention-fusion": ("attention reads shared heads where they are", None),
    "fuse-elementwise": ("what is between element-wise ops is never rounded to memory", None),
    "expand-math-to-polynomials": ("exp, erf, tanh and their like are polynomials", None),
    "contractions-to-blas": ("matrix products are a library's", None),
    "fuse-epilogues": ("bias and activation work on sums in registers", None),
    "fuse-rows": ("softmax and norms are one loop over rows", None),
    "convolutions-to-kernels": ("convolutions of 3x3 windows are Winograd's", ("winograd", "never")),
    "contractions-to-kernels": ("sums of products are taken block by block, fused", None),
    "vectorize-generics": ("sums are taken in lanes of vectors", None),
}


def without_each(recipe: Recipe) -> Iterator[Without]:
    """The recipe without each of the enabled steps that change numbers, in the recipe's order."""
    for index, step in enumerate(recipe.steps):
        if not step.enabled or step.name not in _CHANGES:
            continue
        what, option = _CHANGES[step.name]
        if option is None:
            yield Without(what, step.name, recipe.with_step(index, enabled=False))
        elif option not in step.options:
            others = tuple(pair for pair in step.options if pair[0] != option[0])
            changed = replace(recipe.steps[index], options=(*others, option))
            steps = (*recipe.steps[:index], changed, *recipe.steps[index + 1 :])
            yield Without(what, step.name, replace(recipe, steps=steps))
