"""Finds lowerings that are wrong by themselves, whatever passes follow."""

from __future__ import annotations

from collections.abc import Sequence

from buddy.compiler.graph import plugins
from buddy.compiler.graph.operation import GetItemOp, Op
from buddy.compiler.ops import registries
from buddy.compiler.protocol import WrongLowering
from buddy.compiler.protocol.recipe import EAGER, TORCH_MLIR, Recipe
from buddy.compiler.tools.bisect.steps import Judge
from buddy.compiler.tools.bisect.trials import RecipeTrials, TrialSubject

# A minimal subgraph with more nodes is too large: something else keeps its nodes together.
_MOST = 12


def wrong_lowerings(
    trials: RecipeTrials,
    whole: TrialSubject,
    small: TrialSubject,
    recipe: Recipe,
    judge: Judge,
    of_plugins: bool = False,
) -> list[WrongLowering]:
    """The responsible lowerings of nodes of `small`: with one of those nodes in eager, the result is right.

    With `of_plugins` only lowerings of plug-ins are tried.
    """
    found: list[WrongLowering] = []
    candidates = [op for op in small.part.graph.operations if not isinstance(op, GetItemOp)]
    if of_plugins:
        used = trials(small, recipe).lowered
        candidates = [op for op in candidates if _origin(used.get(op.stable, ""), op, recipe)]
    for op in candidates[:_MOST]:
        if any(op.stable in wrong.nodes for wrong in found):
            continue
        if judge(trials(small, recipe.with_choice(op.stable, EAGER))) == "good":
            found.append(_wrong(trials, whole, small, recipe, op))
    return found


def _wrong(trials: RecipeTrials, whole: TrialSubject, small: TrialSubject, recipe: Recipe, op: Op) -> WrongLowering:
    """Describes a node that is right in eager: its lowering, and the other correct lowerings."""
    name, used = type(op).__name__, trials(small, recipe).lowered.get(op.stable, "")
    used = used or _first_with(name, recipe)
    nodes = [other.stable for other in whole.part.graph.operations if type(other) is type(op)]
    right = []
    for key in (*registries(recipe.dialect), TORCH_MLIR):
        if key == used:
            continue
        tried = trials(small, recipe.with_choice(op.stable, key))
        if tried.right and tried.lowered.get(op.stable) == key:
            right.append(key)
    return WrongLowering(name, used, tuple(nodes), _origin(used, op, recipe), (*right, EAGER))


def _origin(used: str, op: Op, recipe: Recipe) -> str:
    """The plug-in of a node's lowering, by the registry `used` or the first that has one, or ""."""
    name = type(op).__name__
    return plugins.origin(("lowering", f"{used or _first_with(name, recipe)}.{name}"), ("op class", name))


def _first_with(name: str, recipe: Recipe) -> str:
    """The first registry that lowers a class."""
    return next((key for key, registry in registries(recipe.dialect).items() if name in registry), "")


def repair_lowerings(recipe: Recipe, wrong: Sequence[WrongLowering]) -> Recipe:
    """The recipe with the nodes of wrong lowerings lowered by the first correct alternative."""
    for found in wrong:
        for node in found.nodes:
            recipe = recipe.with_choice(node, found.right[0])
    return recipe


def lowering_text(wrong: WrongLowering) -> str:
    origin = f" ({wrong.origin})" if wrong.origin else ""
    count = len(wrong.nodes)
    other = f"{', '.join(wrong.right[:-1])} and eager are" if len(wrong.right) > 1 else "eager is"
    return f"the lowering of {wrong.op} by {wrong.registry}{origin} is at fault ({count} nodes); {other} right"
