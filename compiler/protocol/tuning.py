"""Frames of a search for the fastest recipe."""

from __future__ import annotations

import msgspec

from buddy.compiler.protocol.frame import Frame, Request
from buddy.compiler.protocol.recipe import OptionValue, Recipe


class Variation(msgspec.Struct, frozen=True):
    """Something of a recipe, and the values it may have.

    `what` is `PASS` (on or off), `PASS.OPTION`, `lowering:NODE`, or one of the recipe's fields `threads`, `opt-level`,
    `flavour`, `partition`; `PASS#2` is the second step of that name. An empty text stands for the pass's default, or
    the flavour's own lowering.
    """

    what: str
    values: tuple[OptionValue, ...]


class Tune(Request["Tuned"], frozen=True):
    """Search for the fastest recipe around `recipe`: an `Attempted` for each one tried, then `Tuned` or `Failed`.

    `jobs` processes try recipes, each on its own copy of the program; with `cluster`, the address of a Dask scheduler,
    its workers do. No new recipe is begun after `seconds`; one that takes more than `each` is given up.
    """

    recipe: Recipe
    variations: tuple[Variation, ...] = ()
    seconds: float = 60.0
    each: float = 30.0
    jobs: int = 1
    cluster: str = ""
    seed: int = 0


class Attempted(Frame, frozen=True):
    """Recipe number `number` of the search: how long a run took (`median`, in seconds) and how that is to eager's.

    `ratio` is the median of compiled over eager in paired runs, `problem` why there is none. `best` says that it is
    the fastest so far.
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
    """The end of a search: the fastest recipe, which is the one that it began with where none was clearly faster.

    `ratio` is that recipe's to eager, as it was tried; `gain` is how many times as fast as the first recipe it is, both
    run once more in turn, with the interval that holds it with 95 % certainty (1 where it is the first one, 0 where
    that cannot be timed). `tried` recipes of a space of `size` were run.
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
