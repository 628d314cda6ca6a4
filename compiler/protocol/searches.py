"""Frames of searches: bisections, which find the cause of a failure, of wrong results or of slow code, and tuning.

Tuning searches for the fastest recipe; `Space` is the set of recipes that it searches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec
from msgspec.structs import replace

from buddy.compiler.protocol.connection import Frame, Request
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.pass_facts import PASSES
from buddy.compiler.protocol.recipe import PRECISIONS, OptionValue, PassStep, Precision, Recipe

# ---- bisections ------------------------------------------------------------------------------------------------------


FailureKind = Literal["any", "fails", "differs", "slower"]


class Criterion(msgspec.Struct, frozen=True, omit_defaults=True):
    """What counts as wrong.

    The `kind` "fails" is an error or a crash, "differs" are results that differ from eager, "any" is one of these two,
    and "slower" is slow code. `tolerance` is multiplied with the tolerance of each element type. A pass is the culprit
    of slow code if disabling it gives at least the speedup `slower`. `step_seconds` is the limit for one step of a
    trial (a pass, lowering, code generation, the run), `seconds` the limit for all trials.
    """

    kind: FailureKind = "any"
    tolerance: float = 1.0
    slower: float = 1.1
    step_seconds: float = 20.0
    seconds: float = 300.0


class Bisect(Request["Bisected"], frozen=True):
    """Find what makes the program of `recipe` wrong; answered by `Progress`, then `Bisected` or `Failed`."""

    recipe: Recipe
    criterion: Criterion = Criterion()


class Culprit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A responsible step of the recipe: its `index`, and the plug-in that it comes from (`origin`), if any."""

    index: int = msgspec.field(name="place")
    step: PassStep
    origin: str = ""


class WrongLowering(msgspec.Struct, frozen=True, omit_defaults=True):
    """A lowering that is wrong by itself: the lowering of op class `op` by `registry`, for these nodes.

    `correct` are the other lowerings, which give correct results.
    """

    op: str
    registry: str
    nodes: tuple[str, ...]
    origin: str = ""
    correct: tuple[str, ...] = msgspec.field(default=(), name="right")


class BisectionResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a bisection.

    `summary` is the result in a sentence. `failure` describes the failure, if any. `steps` are the responsible
    passes; if no pass is responsible, `lowerings` are the responsible lowerings. `nodes` are those of the smallest
    subgraph that fails by itself on its real inputs; `in_eager` is the smallest set of nodes that must run in eager for
    the whole program to be right, where equal layers count as one. `recipe` gives right results; `confirmed` says that
    this was tried on the whole program. `before` is the module of `nodes` before the culprit pass, `after` the output
    of the pass, `functions` the functions in which the two differ, and `command` runs that pass on the file `name`.
    """

    summary: str = msgspec.field(name="told")
    recipe: Recipe
    failure: str = msgspec.field(default="", name="wrong")
    steps: tuple[Culprit, ...] = ()
    lowerings: tuple[WrongLowering, ...] = ()
    nodes: tuple[str, ...] = ()
    in_eager: tuple[str, ...] = ()
    confirmed: bool = False
    functions: tuple[str, ...] = ()
    name: str = ""
    before: str = ""
    after: str = ""
    command: str = ""
    trials: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


class Bisected(Frame, frozen=True):
    """The result of the bisection."""

    request: int
    finding: BisectionResult


# ---- tuning ----------------------------------------------------------------------------------------------------------


class Variation(msgspec.Struct, frozen=True):
    """A parameter of a recipe, and the values to try.

    `parameter` is one of: `PASS` (on or off), `PASS.OPTION`, `lowering:NODE`, `precision:NODE`, or one of the
    recipe's fields `threads`, `opt-level`, `dialect`, `partition`, `precision`; `PASS#2` is the second step of that
    name. The value "" stands for the pass's default, the dialect's default lowering, or the precision of all products.
    """

    parameter: str
    values: tuple[OptionValue, ...]


class Tune(Request["Tuned"], frozen=True):
    """Search for the fastest recipe among those that differ from `recipe` by `variations`.

    Answered by an `Attempted` for each recipe that is tried, then `Tuned` or `Failed`. `jobs` processes try recipes,
    each on a copy of the program; with `cluster`, the address of a Dask scheduler, the workers of the cluster try them.
    No recipe is started after `seconds` seconds; a recipe that takes more than `recipe_seconds` is stopped.

    `max_error` limits the error of the result: the root mean square of the differences of an output from eager,
    relative to that of eager's output. If `max_error` is set and there are no `variations`, the search chooses the
    precision of each matrix product. It first measures the time that each precision saves and the error that it causes
    alone; `Progress` reports these measurements.
    """

    recipe: Recipe
    variations: tuple[Variation, ...] = ()
    seconds: float = 60.0
    recipe_seconds: float = 30.0
    jobs: int = 1
    cluster: str = ""
    seed: int = 0
    max_error: float | None = None


def default_seconds(max_error: float | None, variations: Sequence[Variation]) -> float:
    """Returns the default time limit of a search in seconds; a search for the precision of each product needs more."""
    return 300.0 if max_error is not None and not variations else 60.0


class PrecisionEffect(msgspec.Struct, frozen=True):
    """The effect of computing one node in `precision`.

    `saved` is the number of seconds that it saves in a run, negative if the node takes longer. `error` is the greatest
    error of an output, in the unit of `Tune.max_error`, if only this node is computed in `precision`; -1 if it was not
    measured.
    """

    precision: Precision
    saved: float
    error: float = -1.0


class NodePrecision(msgspec.Struct, frozen=True):
    """A matrix product in a search for precisions.

    `seconds` is its time in f32, `precision` the precision in the resulting recipe, and `effects` are the effects of
    all precisions. Times are averages over all products of the same kind and shapes.
    """

    node: str
    seconds: float
    precision: Precision
    effects: tuple[PrecisionEffect, ...]

    @property
    def effect(self) -> PrecisionEffect | None:
        """The effect of the precision of the result, or `None` for f32."""
        return next((effect for effect in self.effects if effect.precision == self.precision), None)


class FrontPoint(msgspec.Struct, frozen=True):
    """A point of the Pareto front of error and time: the estimated error of a recipe, and the seconds that it saves."""

    error: float
    saved: float


class Attempted(Frame, frozen=True):
    """The result for recipe number `number` of the search.

    `median` and `eager` are the median times of a run of compiled code and of eager, in seconds. `ratio` is the median
    of their ratios in paired runs; if it was not measured, `problem` is the reason. `best` marks the fastest recipe so
    far. `elapsed` is the time in seconds since the search started. `error` is the greatest error of an output, in the
    unit of `Tune.max_error`; it is measured only in reduced precisions, otherwise -1.
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
    error: float = -1.0


class Tuned(Frame, frozen=True):
    """The end of a search: the fastest recipe, or the first one if none was clearly faster.

    `ratio` is the time of that recipe relative to eager, as measured in the search; `gain` is its speedup over the
    first recipe, from final interleaved runs of both, with the 95 % confidence interval `gain_low` to `gain_high`. The
    gain of the first recipe is 1, that of a recipe that cannot be timed is 0. Of the `size` recipes of the space,
    `tried` were run.

    A search for the precision of each product has a `size` equal to `tried`. Its `nodes` are the products, and its
    `front` has the estimates for the recipes that a greedy choice visits, from all products in f32 to the fastest
    precision of each.
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
    nodes: tuple[NodePrecision, ...] = ()
    front: tuple[FrontPoint, ...] = ()


# A recipe of a space: for each variation, the index of the chosen value.
Point = tuple[int, ...]

# The value of a parameter that the recipe does not set.
DEFAULT = ""
# The parameters that are fields of a recipe, with the names of the fields.
THREADS, OPT_LEVEL, DIALECT, PARTITION = "threads", "opt-level", "dialect", "partition"
PRECISION = "precision"
_FIELDS = {
    THREADS: "threads", OPT_LEVEL: "opt_level", DIALECT: "dialect", PARTITION: "partition", PRECISION: "precision",
}  # fmt: skip
# The prefixes of variations of one node's lowering or precision; the node's stable name follows.
_LOWERING_PREFIX, _PRECISION_PREFIX = "lowering:", "precision:"

# The variations of a search if the user names none.
USUAL_VARIATIONS = (
    *(
        Variation(f"{name}.{option}" if option else name, values)
        for name, pass_facts in PASSES.items()
        for option, values in pass_facts.tuned
    ),
    Variation(OPT_LEVEL, (2, 3)),
)

# Values of an option with which the pass chooses the value itself.
_CHOSEN_BY_PASS = ("", 0, "auto")


class SpaceError(BuddyError, ValueError):
    """A variation does not apply to the recipe, or none of the usual variations does."""


@dataclass(frozen=True)
class Space:
    """All recipes that differ from `base` only by `variations`."""

    base: Recipe
    variations: tuple[Variation, ...]

    def recipe(self, point: Point) -> Recipe:
        """Returns the recipe at a point."""
        recipe = self.base
        for variation, index in zip(self.variations, point, strict=True):
            recipe = with_value(recipe, variation.parameter, variation.values[index])
        return recipe

    def words(self, point: Point) -> tuple[str, ...]:
        """Returns a text for each choice of a point, such as `contractions-to-kernels.rows=4`."""
        return tuple(
            f"{variation.parameter}={value_text(variation.values[index])}"
            for variation, index in zip(self.variations, point, strict=True)
        )

    @cached_property
    def size(self) -> int:
        return math.prod(len(variation.values) for variation in self.variations)

    @cached_property
    def start(self) -> Point:
        """The point of `base` itself: `space_of` puts the value of `base` first in each variation."""
        return (0,) * len(self.variations)

    @cached_property
    def natural(self) -> Point:
        """The point at which passes choose their options themselves, or use the value of `base` if they cannot."""
        return tuple(_index_chosen_by_pass(variation) for variation in self.variations)


def _index_chosen_by_pass(variation: Variation) -> int:
    """Returns the index of the value with which the pass chooses itself; without one, 0: the value of the base."""
    is_pass_option = "." in variation.parameter
    if not is_pass_option:
        return 0
    for index, value in enumerate(variation.values):
        if any(_is_same(value, automatic) for automatic in _CHOSEN_BY_PASS):
            return index
    return 0


def space_of(base: Recipe, variations: Sequence[Variation] = ()) -> Space:
    """Returns the space of recipes that differ from `base` by `variations`, by default the usual ones that apply.

    The value of `base` is added to each variation, as its first value. Raises `SpaceError`.
    """
    if not variations:
        variations = [usual for usual in USUAL_VARIATIONS if _applies(base, usual.parameter)]
    if not variations:
        raise SpaceError("this recipe has none of the usual variations; name the parameters to vary")
    by_parameter = {}
    for variation in variations:
        if variation.parameter in by_parameter:
            raise SpaceError(f"{variation.parameter} is varied twice")
        base_value = current_value(base, variation.parameter)
        values = [base_value, *(value for value in variation.values if not _is_same(value, base_value))]
        with_value(base, variation.parameter, values[-1])  # raises if the type of the values is wrong
        by_parameter[variation.parameter] = Variation(variation.parameter, tuple(values))
    return Space(base, tuple(by_parameter.values()))


def _is_same(first: OptionValue, second: OptionValue) -> bool:
    """Returns whether two values are equal and of one type: in Python, `True` also equals 1."""
    return type(first) is type(second) and first == second


def _applies(recipe: Recipe, parameter: str) -> bool:
    """Returns whether the recipe has the parameter. The pass of an option must also be enabled."""
    try:
        current_value(recipe, parameter)
    except SpaceError:
        return False
    return "." not in parameter or recipe.steps[_step_index(recipe, parameter)].enabled


def current_value(recipe: Recipe, parameter: str) -> OptionValue:
    """Returns the value of `parameter` in a recipe, `DEFAULT` if the recipe does not set it.

    Raises `SpaceError` if the recipe has no such parameter.
    """
    if parameter in _FIELDS:
        field: OptionValue = getattr(recipe, _FIELDS[parameter])
        return field
    if parameter.startswith(_LOWERING_PREFIX):
        return recipe.choice_map().get(parameter.removeprefix(_LOWERING_PREFIX), DEFAULT)
    if parameter.startswith(_PRECISION_PREFIX):
        node = parameter.removeprefix(_PRECISION_PREFIX)
        return next((choice.precision for choice in recipe.precisions if choice.node == node), DEFAULT)
    step = recipe.steps[_step_index(recipe, parameter)]
    _, dot, option = parameter.partition(".")
    return dict(step.options).get(option, DEFAULT) if dot else step.enabled


def with_value(recipe: Recipe, parameter: str, value: OptionValue) -> Recipe:
    """Returns the recipe with `parameter` set to `value`. Raises `SpaceError` for a value of the wrong type."""
    if (parameter == PRECISION or parameter.startswith(_PRECISION_PREFIX)) and value not in (*PRECISIONS, DEFAULT):
        raise SpaceError(f"{parameter}: unknown precision {value_text(value)}; known: {', '.join(PRECISIONS)}")
    if parameter.startswith(_PRECISION_PREFIX):
        return recipe.with_precision(parameter.removeprefix(_PRECISION_PREFIX), value or None)  # type: ignore[arg-type]
    if parameter in _FIELDS:
        current = current_value(recipe, parameter)
        if type(value) is not type(current):
            raise SpaceError(
                f"{parameter} is {value_text(current)} in the recipe; {value_text(value)} has another type"
            )
        return replace(recipe, **{_FIELDS[parameter]: value})
    if parameter.startswith(_LOWERING_PREFIX):
        return recipe.with_choice(parameter.removeprefix(_LOWERING_PREFIX), str(value) or None)
    index, (_, dot, option) = _step_index(recipe, parameter), parameter.partition(".")
    if not dot:
        if not isinstance(value, bool):
            raise SpaceError(f"{parameter} is on or off, not {value_text(value)}")
        return recipe.with_step(index, enabled=value)
    return recipe.with_step(index, options=_with_option(recipe.steps[index], option, value))


def _with_option(step: PassStep, option: str, value: OptionValue) -> tuple[tuple[str, OptionValue], ...]:
    """Returns the options of a step with `option` set to `value`; without `option` if `value` is `DEFAULT`."""
    others = {name: other for name, other in step.options if name != option}
    return tuple((others if value == DEFAULT else others | {option: value}).items())


def _step_index(recipe: Recipe, parameter: str) -> int:
    """Returns the index of the step that `parameter` names: `PASS`, or `PASS#2` for the second of that name."""
    name, _, number = parameter.partition(".")[0].partition("#")
    indices = [index for index, step in enumerate(recipe.steps) if step.name == name]
    occurrence = int(number) - 1 if number.isdecimal() and int(number) else 0
    if occurrence < len(indices):
        return indices[occurrence]
    if indices:
        raise SpaceError(f"{parameter}: {name} occurs only {len(indices)} times in the recipe")
    fields = ", ".join(_FIELDS)
    raise SpaceError(
        f"{parameter}: the recipe has no such pass; {fields}, {_LOWERING_PREFIX}NODE and {_PRECISION_PREFIX}NODE "
        "can be varied too"
    )


def value_text(value: OptionValue) -> str:
    """Returns the text for a value in messages: `on`, `off`, `default` or the value itself."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "default" if value == DEFAULT else str(value)
