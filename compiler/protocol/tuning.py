"""Frames of a search for the fastest recipe."""

from __future__ import annotations

import msgspec

from buddy.compiler.protocol.frame import Frame, Request
from buddy.compiler.protocol.recipe import OptionValue, Recipe


class Variation(msgspec.Struct, frozen=True):
    """A parameter of a recipe, and its possible values.

    `what` is `PASS` (on or off), `PASS.OPTION`, `lowering:NODE`, or one of the recipe's fields `threads`, `opt-level`,
    `dialect`, `partition`; `PASS#2` is the second step of that name. An empty text stands for the pass's default, or
    the dialect's default lowering.
    """

    what: str
    values: tuple[OptionValue, ...]


class Tune(Request["Tuned"], frozen=True):
    """Search for the fastest recipe around `recipe`.

    Answered by an `Attempted` for each one tried, then `Tuned` or `Failed`.

    `jobs` processes try recipes, each on a copy of the program; with `cluster`, the address of a Dask scheduler, its
    workers do. No new recipe is started after `seconds`; a recipe that takes more than `each` seconds is stopped.
    """

    recipe: Recipe
    variations: tuple[Variation, ...] = ()
    seconds: float = 60.0
    each: float = 30.0
    jobs: int = 1
    cluster: str = ""
    seed: int = 0


class Attempted(Frame, frozen=True):
    """Recipe number `number` of the search: the median time of a run (`median`, in seconds) and its ratio to eager's.

    `ratio` is the median of compiled over eager in paired runs, `problem` the reason if it is missing. `best` marks the
    fastest so far.
    """

    request: int
    number: int
    choices: tuple[str, ...]
    ratio: float = 0.0
    median: float = 0.0
    eager: float = 0.0
    compile_seconds: float = 0.0
    problem: str = ""
    best: bool = False
    elapsed: float = 0.0


class Tuned(Frame, frozen=True):
    """The end of a search: the fastest recipe, or the first one if none was clearly faster.

    `ratio` is that recipe's time relative to eager, as it was tried; `gain` is its speedup over the first recipe, from
    final interleaved runs of both, with the 95 % confidence interval (1 if it is the first one, 0 if it cannot be
    timed). `tried` recipes of a space of `size` were run.
    """

    request: int
    recipe: Recipe
    choices: tuple[str, ...]
    tried: int
    size: int
    ratio: float
    gain: float
    gain_low: float
    gain_high: float
    seconds: float
    notes: tuple[str, ...] = ()
