"""What a search says to the processes that try recipes, and what these answer."""

from __future__ import annotations

from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.worker_messages import Done, Load, Message, Refused, Reply, Trouble


class Begin(Message, frozen=True):
    """Load a program to try recipes on, of which graph number `graph` is meant: `Done`."""

    load: Load
    graph: int


class BeginHanded(Message, frozen=True):
    """Read a graph and its tensors from the folder `folder`, as `handed.write` left them there: `Done`."""

    folder: str


class Attempt(Message, frozen=True):
    """Compile a recipe, run it and compare with eager: `AttemptDone`.

    It gets `each` seconds; `bound` is the best ratio to eager so far, infinity before there is one. Eager is timed on
    `eager_threads` threads, however many the recipe has: ratios of recipes can be compared then.
    """

    recipe: Recipe
    each: float
    bound: float
    eager_threads: int = 1


class AttemptDone(Reply, frozen=True):
    """The median of compiled over eager in paired runs, both in seconds, or why there is none."""

    ratio: float = 0.0
    median: float = 0.0
    eager: float = 0.0
    compile_seconds: float = 0.0
    problem: str = ""


class Duel(Message, frozen=True):
    """Run two recipes in turn: `DuelDone`."""

    first: Recipe
    second: Recipe
    each: float


class DuelDone(Reply, frozen=True):
    """How many times as long the first takes, with the interval that holds it with 95 % certainty."""

    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    problem: str = ""


Beginning = Begin | BeginHanded
TuningRequest = Attempt | Duel
TuningMessage = Done | AttemptDone | DuelDone | Trouble | Refused
