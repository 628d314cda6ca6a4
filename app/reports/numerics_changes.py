"""The passes of a recipe that change numerics, and the recipe without each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from buddy.compiler.protocol.recipe import OptionValue, Recipe


class Without(NamedTuple):
    """A recipe without one change of numerics: `what` describes the change, `step` is the pass that makes it."""

    what: str
    step: str
    recipe: Recipe


# The effect of a pass on numerics, and the option that disables it; without one, the pass is disabled.
_CHANGES: dict[str, tuple[str, tuple[str, OptionValue] | None]] = {
    "flash-attention-prefill": ("attention is computed in blocks of keys", None),
    "gqa-attention-fusion": ("attention reads shared heads in place", None),
    "fuse-elementwise": ("intermediates of element-wise ops are not rounded to memory", None),
    "expand-math-to-polynomials": ("exp, erf, tanh and similar functions are polynomials", None),
    "contractions-to-blas": ("matrix products are BLAS calls", None),
    "fuse-epilogues": ("bias and activation are applied to sums in registers", None),
    "fuse-rows": ("softmax and norms are fused into one loop over rows", None),
    "convolutions-to-kernels": ("3x3 convolutions use the Winograd algorithm", ("winograd", "never")),
    "contractions-to-kernels": ("sums of products are blocked and use fused multiply-add", None),
    "vectorize-generics": ("sums are accumulated in vector lanes", None),
}


def without_each(recipe: Recipe) -> Iterator[Without]:
    """The recipe without each enabled pass that changes numerics, in recipe order."""
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
