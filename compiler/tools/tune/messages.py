"""The messages between a search and the processes that try recipes."""

from __future__ import annotations

from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.worker_messages import Done, LoadProgram, Message, Refused, Reply, Trouble


class LoadForTuning(Message, frozen=True):
    """Load a program to try recipes on its graph number `graph`; answered by `Done`, or `Refused` with the reason."""

    load: LoadProgram
    graph: int


class LoadBundle(Message, frozen=True):
    """Read a graph and its tensors from `folder`, which `write_bundle` wrote; answered by `Done` or `Refused`."""

    folder: str


class TryRecipe(Message, frozen=True):
    """Compile a recipe, run it and compare it with eager; answered by `RecipeTried`.

    The time limit is `each` seconds. `bound` is the best ratio to eager so far, infinity for the first recipe. Eager
    always uses `eager_threads` threads, so that the ratios of all recipes are comparable. A recipe whose results differ
    from eager's by more than `max_error` is not timed.
    """

    recipe: Recipe
    each: float
    bound: float
    eager_threads: int = 1
    max_error: float | None = None


class RecipeTried(Reply, frozen=True):
    """The median ratio of compiled to eager time in paired runs, and the median times of both in seconds.

    If the recipe failed, `problem` is the reason. `error` is as in `Attempted`.
    """

    ratio: float = 0.0
    median: float = 0.0
    eager: float = 0.0
    compile_seconds: float = 0.0
    problem: str = ""
    error: float = -1.0


class CompareRecipes(Message, frozen=True):
    """Run two recipes interleaved; answered by `RecipesCompared`."""

    first: Recipe
    second: Recipe
    each: float


class RecipesCompared(Reply, frozen=True):
    """The ratio of the time of the first recipe to that of the second, with its 95 % confidence interval.

    If a recipe failed, `problem` is the reason.
    """

    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    problem: str = ""


LoadMessage = LoadForTuning | LoadBundle
TuningRequest = TryRecipe | CompareRecipes
TuningMessage = Done | RecipeTried | RecipesCompared | Trouble | Refused
