"""Searches for the fastest recipe: the frames, and the parameters that may vary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import msgspec
from msgspec.structs import replace

from buddy.compiler.protocol.connection import Frame, Request
from buddy.compiler.protocol.pass_facts import PASSES
from buddy.compiler.protocol.recipe import OptionValue, PassStep, Recipe


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


# A choice for each variation of a space, by its index among the variation's values.
Point = tuple[int, ...]

THREADS, OPT_LEVEL, DIALECT, PARTITION = "threads", "opt-level", "dialect", "partition"
_FIELDS = {THREADS: "threads", OPT_LEVEL: "opt_level", DIALECT: "dialect", PARTITION: "partition"}
# Prefix of a node's stable name: the variation of its lowering.
LOWERING = "lowering:"

# The variations of a search for which the user names none.
USUAL = (
    *(
        Variation(f"{name}.{option}" if option else name, values)
        for name, found in PASSES.items()
        for option, values in found.tuned
    ),
    Variation(OPT_LEVEL, (2, 3)),
)


# Values of options that leave the choice to the pass.
_OWN_CHOICE = ("", 0, "auto")


class SpaceError(ValueError):
    """A variation that does not apply to the recipe; the text names it, and the valid ones."""


@dataclass(frozen=True)
class Space:
    """All recipes that differ from `base` only by `variations`."""

    base: Recipe
    variations: tuple[Variation, ...]

    def recipe(self, point: Point) -> Recipe:
        chosen = zip(self.variations, point, strict=True)
        return reduce(lambda recipe, pair: with_value(recipe, pair[0].what, pair[0].values[pair[1]]), chosen, self.base)

    def words(self, point: Point) -> tuple[str, ...]:
        """Returns a point as text, one choice after another, such as `contractions-to-kernels.rows=4`."""
        chosen = zip(self.variations, point, strict=True)
        return tuple(f"{variation.what}={value_text(variation.values[place])}" for variation, place in chosen)

    @cached_property
    def size(self) -> int:
        return math.prod(len(variation.values) for variation in self.variations)

    @cached_property
    def start(self) -> Point:
        """The point of `base` itself: its own value is the first of each variation."""
        return (0,) * len(self.variations)

    @cached_property
    def natural(self) -> Point:
        """The point at which passes choose their options themselves, as far as that is among the values."""
        return tuple(_chosen_by_pass(variation) for variation in self.variations)


def _chosen_by_pass(variation: Variation) -> int:
    if "." not in variation.what:
        return 0
    own = (place for place, value in enumerate(variation.values) if any(_same(value, each) for each in _OWN_CHOICE))
    return next(own, 0)


def space_of(base: Recipe, variations: Sequence[Variation] = ()) -> Space:
    """Returns the space around `base`, which is one of its points even if a variation does not list its value.

    Without `variations`, the usual ones that apply. Raises `SpaceError`.
    """
    if not variations:
        variations = [usual for usual in USUAL if _applies(base, usual.what)]
    if not variations:
        raise SpaceError("this recipe has none of the usual variations; name the parameters to vary")
    found = {}
    for variation in variations:
        if variation.what in found:
            raise SpaceError(f"{variation.what} is varied twice")
        own = present(base, variation.what)
        values = [own, *(value for value in variation.values if not _same(value, own))]
        with_value(base, variation.what, values[-1])
        found[variation.what] = Variation(variation.what, tuple(values))
    return Space(base, tuple(found.values()))


def _same(first: OptionValue, second: OptionValue) -> bool:
    return type(first) is type(second) and first == second


def _applies(recipe: Recipe, what: str) -> bool:
    try:
        present(recipe, what)
    except SpaceError:
        return False
    return "." not in what or recipe.steps[_step(recipe, what)].enabled


def present(recipe: Recipe, what: str) -> OptionValue:
    """Returns the value of `what` in a recipe; an option that is left to its pass is `DEFAULT`. Raises `SpaceError`."""
    if what in _FIELDS:
        own: OptionValue = getattr(recipe, _FIELDS[what])
        return own
    if what.startswith(LOWERING):
        return recipe.choice_map().get(what.removeprefix(LOWERING), DEFAULT)
    step = recipe.steps[_step(recipe, what)]
    _, dot, option = what.partition(".")
    return dict(step.options).get(option, DEFAULT) if dot else step.enabled


# The value of an option that is not given, and of a node with the default lowering.
DEFAULT = ""


def with_value(recipe: Recipe, what: str, value: OptionValue) -> Recipe:
    """Returns the recipe with `what` set to `value`. Raises `SpaceError` for a value of the wrong type."""
    if what in _FIELDS:
        own = present(recipe, what)
        if type(value) is not type(own):
            raise SpaceError(f"{what} is {value_text(own)} in the recipe; {value_text(value)} has another type")
        return replace(recipe, **{_FIELDS[what]: value})
    if what.startswith(LOWERING):
        return recipe.with_choice(what.removeprefix(LOWERING), str(value) or None)
    index, (_, dot, option) = _step(recipe, what), what.partition(".")
    if not dot:
        if not isinstance(value, bool):
            raise SpaceError(f"{what} is on or off, not {value_text(value)}")
        return recipe.with_step(index, enabled=value)
    return recipe.with_step(index, options=_with_option(recipe.steps[index], option, value))


def _with_option(step: PassStep, option: str, value: OptionValue) -> tuple[tuple[str, OptionValue], ...]:
    kept = {name: own for name, own in step.options if name != option}
    return tuple((kept if value == DEFAULT else kept | {option: value}).items())


def _step(recipe: Recipe, what: str) -> int:
    """Returns the index of the step that `what` names: `PASS`, or `PASS#2` for the second of that name."""
    name, _, number = what.partition(".")[0].partition("#")
    places = [index for index, step in enumerate(recipe.steps) if step.name == name]
    wanted = int(number) - 1 if number.isdecimal() and int(number) else 0
    if wanted < len(places):
        return places[wanted]
    if places:
        raise SpaceError(f"{what}: the recipe has {name} only {len(places)} times")
    fields = ", ".join(_FIELDS)
    raise SpaceError(f"{what}: the recipe has no such pass; {fields} and {LOWERING}NODE can be varied too")


def value_text(value: OptionValue) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "default" if value == DEFAULT else str(value)
