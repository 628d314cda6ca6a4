"""The messages between a search and the processes that try recipes."""

from __future__ import annotations

from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.worker_messages import Done, LoadProgram, Message, Refused, Reply, Trouble


class LoadForTuning(Message, frozen=True):
    """Load a program to try recipes on its graph number `graph`; answered by `Done`."""

    load: LoadProgram
    graph: int


class LoadBundle(Message, frozen=True):
    """Read a graph and its tensors from the folder `folder`, written by `write_bundle`; answered by `Done`."""

    folder: str


class TryRecipe(Message, frozen=True):
    """Compile a recipe, run it and compare it with eager; answered by `RecipeTried`.

    The time limit is `each` seconds. `bound` is the best ratio to eager so far, infinity before the first. Eager always
    uses `eager_threads` threads, so that ratios of recipes are comparable.
    """

    recipe: Recipe
    each: float
    bound: float
    eager_threads: int = 1


class RecipeTried(Reply, frozen=True):
    """The median ratio of compiled to eager time in paired runs, and both times in seconds; or the problem."""

    ratio: float = 0.0
    median: float = 0.0
    eager: float = 0.0
    compile_seconds: float = 0.0
    problem: str = ""


class CompareRecipes(Message, frozen=True):
    """Run two recipes interleaved; answered by `RecipesCompared`."""

    first: Recipe
    second: Recipe
    each: float


class RecipesCompared(Reply, frozen=True):
    """The ratio of the first time to the second, with its 95 % confidence interval."""

    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    problem: str = ""


Beginning = LoadForTuning | LoadBundle
TuningRequest = TryRecipe | CompareRecipes
TuningMessage = Done | RecipeTried | RecipesCompared | Trouble | Refused
