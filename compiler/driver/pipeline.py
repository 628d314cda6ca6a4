"""Runs the enabled passes of a recipe on a graph or a module, and notifies an observer of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from buddy.compiler.codegen.calling_convention import ConventionReader, EntryConvention
from buddy.compiler.driver import diagnosis
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.passes.base import PassContext, Remark
from buddy.compiler.passes.pass_runner import PassRunError, own_passes, run_pass
from buddy.compiler.protocol.recipe import PassStep, Recipe

if TYPE_CHECKING:
    from buddy.compiler.mlir.bindings import ir

State = TypeVar("State")
# Called before each part of a compilation that is not cached: with a number of a step, `LOWERING_STEP` or `CODE_STEP`.
OnStep = Callable[[int], None]
# When IR is verified: after every pass; before each of MLIR's passes that follows one of ours, because MLIR's passes
# may abort the process on invalid IR; or never.
Verification = Literal["every", "before-mlir", "never"]


class NumberedStep(NamedTuple):
    """An enabled pass, and its index among the steps of the recipe (`number`)."""

    number: int
    step: PassStep


def enabled_steps(recipe: Recipe, level: str) -> list[NumberedStep]:
    """Returns the enabled passes of `recipe` on graphs (`level` is `graph`) or modules (`mlir`)."""
    steps = enumerate(recipe.steps)
    return [NumberedStep(number, step) for number, step in steps if step.level == level and step.enabled]


class Observer(Generic[State]):
    """Is notified by a pipeline, whose passes change a `State` in place. This base class stores nothing."""

    def __init__(self, on_step: OnStep | None = None) -> None:
        self._on_step = on_step

    def cached_state(self, numbered: NumberedStep) -> State | None:
        """Returns the cached state after a pass, or `None`. A pass with a cached state does not run."""
        return None

    def before(self, numbered: NumberedStep, state: State) -> State:
        """Returns the state that the pass changes: `state` itself, or a copy of it."""
        if self._on_step is not None:
            self._on_step(numbered.number)
        return state

    def after(self, numbered: NumberedStep, state: State, remarks: Sequence[Remark]) -> None:
        """Receives the state after a pass, and the pass's remarks."""

    def failure(self, numbered: NumberedStep, state: State, error: PassRunError) -> CompilationError:
        """Returns the error to raise for a pass that has failed and left `state`."""
        return CompilationError(diagnosis.of_step(error, numbered.step, numbered.number))


class EntryObserver(Observer[Any]):
    """Reads the entry's calling convention (`entry`) after each pass; `None` until the arguments are buffers."""

    def __init__(self, operation: ir.Operation, on_step: OnStep | None = None) -> None:
        super().__init__(on_step)
        self._reader = ConventionReader()
        self._reader.read(operation)

    def after(self, numbered: NumberedStep, state: ir.Operation, remarks: Sequence[Remark]) -> None:
        self._reader.read(state)

    @property
    def entry(self) -> EntryConvention | None:
        return self._reader.last


def run_pipeline(
    state: State,
    steps: Sequence[NumberedStep],
    run: Callable[[State, NumberedStep], Sequence[Remark]],
    observer: Observer[State],
) -> State:
    """Runs all `steps` with `run`, which changes the state in place, and returns the last state.

    If `run` raises a `PassRunError`, raises the observer's `CompilationError`; the state may then be half rewritten.
    """
    for numbered in steps:
        cached_state = observer.cached_state(numbered)
        if cached_state is not None:
            state = cached_state
            continue
        state = observer.before(numbered, state)
        try:
            remarks = run(state, numbered)
        except PassRunError as error:
            raise observer.failure(numbered, state, error) from error
        observer.after(numbered, state, remarks)
    return state


def run_mlir_passes(
    operation: ir.Operation,
    recipe: Recipe,
    locations: LocationSets,
    observer: Observer[Any],
    verification: Verification = "every",
) -> ir.Operation | None:
    """Returns the module after the MLIR passes of `recipe`, which change `operation` unless `observer` copies it.

    Raises `CompilationError` if a pass fails.
    """
    steps, own_names = enabled_steps(recipe, "mlir"), own_passes()
    next_pass = {numbered.number: following.step.name for numbered, following in pairwise(steps)}

    def run(module: ir.Operation, numbered: NumberedStep) -> Sequence[Remark]:
        name = numbered.step.name
        # The last pass precedes no other pass: it counts as its own successor.
        precedes_mlir_pass = name in own_names and next_pass.get(numbered.number, name) not in own_names
        context = PassContext.of(recipe, locations)
        verify = verification == "every" or (verification == "before-mlir" and precedes_mlir_pass)
        run_pass(module, numbered.step, context, verify)
        return context.remarks

    return run_pipeline(operation, steps, run, observer)
