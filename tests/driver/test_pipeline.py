"""The pass loop: what an observer is called with, and which IR is verified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from buddy.compiler.driver import pipeline
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.driver.pipeline import NumberedStep, Observer, enabled_steps, run_mlir_passes, run_pipeline
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops.lowering import new_context
from buddy.compiler.passes.base import Remark
from buddy.compiler.passes.pass_runner import PassRunError
from buddy.compiler.protocol.recipe import PassStep, Recipe

RECIPE = Recipe(steps=(PassStep("cse"), PassStep("slice-parts", "graph", ""), PassStep("sccp", enabled=False),
                       PassStep("canonicalize")))  # fmt: skip


class Recorder(Observer[list[str]]):
    """Knows the state after some steps, and gives each of the others a copy to work on."""

    def __init__(self, cached_state: dict[int, list[str]]) -> None:
        super().__init__(lambda number: self.calls.append(f"on_step {number}"))
        self.calls: list[str] = []
        self._known = cached_state

    def cached_state(self, numbered: NumberedStep) -> list[str] | None:
        return self._known.get(numbered.number)

    def before(self, numbered: NumberedStep, state: list[str]) -> list[str]:
        return [*super().before(numbered, state)]

    def after(self, numbered: NumberedStep, state: list[str], remarks: Sequence[Remark]) -> None:
        self.calls.append(f"after {numbered.number} {state} {[remark.text for remark in remarks]}")


def append_name(state: list[str], numbered: NumberedStep) -> list[Remark]:
    state.append(numbered.step.name)
    return [Remark(numbered.step.name, (), "done")]


def test_only_enabled_steps_of_the_level_run() -> None:
    assert [numbered.number for numbered in enabled_steps(RECIPE, "mlir")] == [0, 3]
    assert [numbered.number for numbered in enabled_steps(RECIPE, "graph")] == [1]


def test_an_observer_follows_each_pass_and_may_have_it_work_on_a_copy() -> None:
    observer, start = Recorder({}), ["start"]
    assert run_pipeline(start, enabled_steps(RECIPE, "mlir"), append_name, observer) == ["start", "cse", "canonicalize"]
    assert start == ["start"]
    assert observer.calls == [
        "on_step 0", "after 0 ['start', 'cse'] ['done']",
        "on_step 3", "after 3 ['start', 'cse', 'canonicalize'] ['done']",
    ]  # fmt: skip


def test_a_pass_whose_result_is_known_does_not_run() -> None:
    observer = Recorder({0: ["known"]})
    assert run_pipeline([], enabled_steps(RECIPE, "mlir"), append_name, observer) == ["known", "canonicalize"]
    assert observer.calls[0] == "on_step 3"


def test_a_failing_pass_ends_the_pipeline_with_its_number() -> None:
    def fail(_state: list[str], numbered: NumberedStep) -> list[Remark]:
        raise PassRunError(f"{numbered.step.name} failed")

    with pytest.raises(CompilationError, match="cse failed") as failure:
        run_pipeline([], enabled_steps(RECIPE, "mlir"), fail, Observer())
    assert failure.value.diagnostic.step == 0


@pytest.mark.parametrize(
    ("verification", "verified"), [("every", [0, 1, 2]), ("before-mlir", [1]), ("never", [])]
)  # fmt: skip
def test_the_ir_that_is_verified(monkeypatch: pytest.MonkeyPatch, verification: Any, verified: list[int]) -> None:
    """Of the passes tile-dynamic, fuse-rows and canonicalize, the last is MLIR's."""
    seen: list[bool] = []
    run_step = pipeline.run_pass

    def note(operation: Any, step: PassStep, context: Any, verify: bool) -> None:
        seen.append(verify)
        run_step(operation, step, context, verify)

    monkeypatch.setattr(pipeline, "run_pass", note)
    recipe = Recipe(steps=tuple(map(PassStep, ("tile-dynamic", "fuse-rows", "canonicalize"))))
    with new_context():
        module = ir.Module.parse("func.func @f() { return }").operation
    run_mlir_passes(module, recipe, LocationSets(), Observer(), verification)
    assert [number for number, verify in enumerate(seen) if verify] == verified
