"""The pass loop: runs the enabled passes of a recipe on a graph or a module, followed by an observer."""

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
# Called with the number of each step before it runs, or with `LOWERING` or `CODE`, unless the result is known already.
OnStep = Callable[[int], None]
# Which passes leave IR that is verified: every one; ours that one of MLIR's follows, since those abort the process, or
# worse, on IR that does not verify; none.
Verification = Literal["every", "before-mlir", "never"]


class Step(NamedTuple):
    """An enabled pass and its place in the recipe."""

    number: int
    step: PassStep


def enabled_steps(recipe: Recipe, level: str) -> list[Step]:
    """The passes of `recipe` that run, on graphs (`graph`) or modules (`mlir`)."""
    steps = enumerate(recipe.steps)
    return [Step(number, step) for number, step in steps if step.level == level and step.enabled]


class Observer(Generic[State]):
    """Follows a pipeline, whose passes change a `State` in place. This one keeps no stage and prints nothing."""

    def __init__(self, on_step: OnStep | None = None) -> None:
        self._on_step = on_step

    def known(self, at: Step) -> State | None:
        """The state after a pass, where it has run before on the same; the pass does not run again then."""
        return None

    def before(self, at: Step, state: State) -> State:
        """What the pass is to change: `state` itself, or a copy of it."""
        if self._on_step is not None:
            self._on_step(at.number)
        return state

    def after(self, at: Step, state: State, remarks: Sequence[Remark]) -> None:
        """The pass has left `state`, and remarked on some of it."""

    def failure(self, at: Step, state: State, error: StepError) -> CompilationError:
        """What to raise after a pass has failed, with `state` as it left it."""
        return CompilationError(diagnosis.of_step(error, at.step, at.number))


class EntryObserver(Observer[Any]):
    """Keeps nothing of a module but how its entry is called: `entry`, `None` while it has no buffers for arguments."""

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
    """The state after all `steps`, each of which `run` performs in place.

    Raises the observer's `CompilationError` when `run` raises a `StepError`; the state may then be half rewritten.
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
    """The module after the MLIR passes of `recipe`. Raises `CompilationError` when one fails."""
    steps, own = enabled_steps(recipe, "mlir"), own_passes()
    following = {at.number: after.step.name for at, after in pairwise(steps)}

    def run(module: Any, at: Step) -> Sequence[Remark]:
        goes_to_mlir = at.step.name in own and following.get(at.number, at.step.name) not in own
        context = PassContext.of(recipe, locations)
        verify = verification == "every" or (verification == "before-mlir" and goes_to_mlir)
        run_step(module, at.step, context, verify)
        return context.remarks

    return run_pipeline(operation, steps, run, observer)
