"""The messages between a search and the processes that try recipes."""

from __future__ import annotations

from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.worker_messages import Done, Load, Message, Refused, Reply, Trouble


class Begin(Message, frozen=True):
    """Load a program to try recipes on its graph number `graph`; answered by `Done`."""

    load: Load
    graph: int


class BeginHanded(Message, frozen=True):
    """Read a graph and its tensors from the folder `folder`, written by `handed.write`; answered by `Done`."""

    folder: str


class Attempt(Message, frozen=True):
    """Compile a recipe, run it and compare it with eager; answered by `AttemptDone`.

    It may take `each` seconds; `bound` is the best ratio to eager so far, infinity before there is one. Eager always
    uses `eager_threads` threads, so that ratios of recipes are comparable.
    """

    recipe: Recipe
    each: float
    bound: float
    eager_threads: int = 1


class AttemptDone(Reply, frozen=True):
    """The median ratio of compiled to eager time in paired runs, both times in seconds, or the reason if it is
    missing.
    """

    ratio: float = 0.0
    median: float = 0.0
    eager: float = 0.0
    compile_seconds: float = 0.0
    problem: str = ""


class Duel(Message, frozen=True):
    """Run two recipes interleaved; answered by `DuelDone`."""

    first: Recipe
    second: Recipe
    each: float


class DuelDone(Reply, frozen=True):
    """The ratio of the first time to the second, with its 95 % confidence interval."""

    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    problem: str = ""


Beginning = Begin | BeginHanded
TuningRequest = Attempt | Duel
TuningMessage = Done | AttemptDone | DuelDone | Trouble | Refused
