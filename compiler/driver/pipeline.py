"""The pass loop: runs the enabled passes of a recipe on a graph or a module, and notifies an observer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from buddy.compiler.codegen.calling_convention import ConventionReader, EntryConvention
from buddy.compiler.driver import diagnosis
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.passes.base import PassContext, Remark
from buddy.compiler.passes.pass_runner import StepError, own_passes, run_step
from buddy.compiler.protocol.recipe import PassStep, Recipe

State = TypeVar("State")
# Called with the number of each step before it runs, or with `LOWERING` or `CODE`, unless the result is cached.
OnStep = Callable[[int], None]
# When IR is verified: after every pass; after each pass of ours that one of MLIR's follows, since MLIR's may abort the
# process on invalid IR; never.
Verification = Literal["every", "before-mlir", "never"]


class Step(NamedTuple):
    """An enabled pass and its place in the recipe."""

    number: int
    step: PassStep


def enabled_steps(recipe: Recipe, level: str) -> list[Step]:
    """Returns the enabled passes of `recipe` on graphs (`level` is `graph`) or modules (`mlir`)."""
    steps = enumerate(recipe.steps)
    return [Step(number, step) for number, step in steps if step.level == level and step.enabled]


class Observer(Generic[State]):
    """Is notified by a pipeline, whose passes change a `State` in place. This base class stores and prints nothing."""

    def __init__(self, on_step: OnStep | None = None) -> None:
        self._on_step = on_step

    def known(self, at: Step) -> State | None:
        """Returns the cached state after a pass, which then does not run again, or `None`."""
        return None

    def before(self, at: Step, state: State) -> State:
        """Returns the state that the pass changes: `state` itself, or a copy of it."""
        if self._on_step is not None:
            self._on_step(at.number)
        return state

    def after(self, at: Step, state: State, remarks: Sequence[Remark]) -> None:
        """Is called with the state after a pass, and the pass's remarks."""

    def failure(self, at: Step, state: State, error: StepError) -> CompilationError:
        """Returns the error to raise after a pass has failed, which left `state`."""
        return CompilationError(diagnosis.of_step(error, at.step, at.number))


class EntryObserver(Observer[Any]):
    """Reads only the calling convention of the entry: `entry`, `None` until its arguments are buffers."""

    def __init__(self, operation: Any, on_step: OnStep | None = None) -> None:
        super().__init__(on_step)
        self._reader = ConventionReader()
        self._reader.read(operation)

    def after(self, at: Step, state: Any, remarks: Sequence[Remark]) -> None:
        self._reader.read(state)

    @property
    def entry(self) -> EntryConvention | None:
        return self._reader.last


def run_pipeline(
    state: State, steps: Sequence[Step], run: Callable[[State, Step], Sequence[Remark]], observer: Observer[State]
) -> State:
    """Performs all `steps` by `run`, which changes the state in place. Returns the last state.

    Raises the observer's `CompilationError` if `run` raises a `StepError`; the state may then be half rewritten.
    """
    for at in steps:
        if (known := observer.known(at)) is not None:
            state = known
            continue
        state = observer.before(at, state)
        try:
            remarks = run(state, at)
        except StepError as error:
            raise observer.failure(at, state, error) from error
        observer.after(at, state, remarks)
    return state


def run_mlir_passes(
    operation: Any,
    recipe: Recipe,
    locations: LocationSets,
    observer: Observer[Any],
    verification: Verification = "every",
) -> Any:
    """Returns the module after the MLIR passes of `recipe`. Raises `CompilationError` if one fails."""
    steps, own = enabled_steps(recipe, "mlir"), own_passes()
    following = {at.number: after.step.name for at, after in pairwise(steps)}

    def run(module: Any, at: Step) -> Sequence[Remark]:
        goes_to_mlir = at.step.name in own and following.get(at.number, at.step.name) not in own
        context = PassContext.of(recipe, locations)
        verify = verification == "every" or (verification == "before-mlir" and goes_to_mlir)
        run_step(module, at.step, context, verify)
        return context.remarks

    return run_pipeline(operation, steps, run, observer)
