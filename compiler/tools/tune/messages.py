"""The messages between a search and the processes that try recipes."""

from __future__ import annotations

from typing import Any

import msgspec

from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.worker_messages import Done, FailureReply, LoadProgram, LogText, Message, Reply


class LoadForTuning(Message, frozen=True):
    """Load a program to try recipes on its graph number `graph`; answered by `Done` or `FailureReply`."""

    load: LoadProgram
    graph: int


class LoadBundle(Message, frozen=True):
    """Read a graph and its tensors from `folder`, which `write_bundle` wrote; answered by `Done` or `FailureReply`."""

    folder: str


class TryRecipe(Message, frozen=True):
    """Compile a recipe, run it and compare it with eager; answered by `RecipeTried`.

    The time limit is `timeout` seconds. `bound` is the best ratio to eager so far, infinity for the first recipe. Eager
    always uses `eager_threads` threads, so that the ratios of all recipes are comparable. A recipe whose results differ
    from eager's by more than `max_error` is not timed.
    """

    recipe: Recipe
    timeout: float
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
    timeout: float


class RecipesCompared(Reply, frozen=True):
    """The ratio of the time of the first recipe to that of the second, with its 95 % confidence interval.

    If a recipe failed, `problem` is the reason.
    """

    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    problem: str = ""


class TimeNodes(Message, frozen=True):
    """Compile a recipe with counters and run it for about `seconds`; answered by `NodesTimed`."""

    recipe: Recipe
    timeout: float
    seconds: float = 1.0


class TimedProduct(msgspec.Struct, frozen=True):
    """The time of a node that multiplies, in seconds; `kind` is its op and shapes, `precision` as in `Assignment`."""

    node: str
    kind: str
    precision: str
    seconds: float


class NodesTimed(Reply, frozen=True):
    """The nodes that multiply float32, without those whose code is timed for another node.

    If the recipe failed, `problem` is the reason.
    """

    products: tuple[TimedProduct, ...] = ()
    problem: str = ""


class MeasuredError(msgspec.Struct, frozen=True, order=True):
    """The error of the outputs if `node` alone is computed in `precision`; -1 if it is not known."""

    node: str
    precision: str
    error: float = -1.0


class MeasureErrors(Message, frozen=True):
    """Compute the program in eager with one node at a time in a precision; answered by `ErrorsMeasured`.

    Measures for about `seconds`, in the order of `pairs`. Errors that were measured before, for the same program,
    weights and inputs, are read from the disk.
    """

    pairs: tuple[MeasuredError, ...]
    seconds: float


class ErrorsMeasured(Reply, frozen=True):
    """The errors that are known, among them `reused` from the disk; or the `problem`, if the program fails in eager."""

    errors: tuple[MeasuredError, ...] = ()
    reused: int = 0
    problem: str = ""


# The first message to a process that tries recipes, the later ones, and its answers.
LoadMessage = LoadForTuning | LoadBundle
TuningRequest = TryRecipe | CompareRecipes | TimeNodes | MeasureErrors
TuningMessage = Done | RecipeTried | RecipesCompared | NodesTimed | ErrorsMeasured | LogText | FailureReply
ANSWERS: dict[type[Message], Any] = {
    TryRecipe: RecipeTried, CompareRecipes: RecipesCompared, TimeNodes: NodesTimed, MeasureErrors: ErrorsMeasured,
}  # fmt: skip
