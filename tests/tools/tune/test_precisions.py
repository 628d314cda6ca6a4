"""The choice of precisions within an error: the greedy steps, and a search whose error is not the estimated one."""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any

import pytest

from buddy.compiler.protocol import Attempted, Frame, Progress, Tune, Tuned
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import PRECISIONS, Precision
from buddy.compiler.protocol.searches import NodePrecision, PrecisionEffect
from buddy.compiler.support.processes.jobs import JobFailed
from buddy.compiler.tools.tune.precisions import (
    PrecisionSearch,
    PrecisionStep,
    choose_within,
    estimated_front,
    greedy_steps,
)
from buddy.compiler.tools.tune.processes import (
    CompareRecipes,
    ErrorsMeasured,
    MeasuredError,
    MeasureErrors,
    NodesTimed,
    RecipesCompared,
    RecipeTried,
    TimedProduct,
    TimeNodes,
    TryRecipe,
    TuningRequest,
)


def product(name: str, **effects: tuple[float, float]) -> NodePrecision:
    """A product of 10 s in f32; `effects` are the seconds saved and the error of each precision, named without "-"."""
    precisions: dict[str, Precision] = {"bf16": "bf16", "bf16x3": "bf16x3", "int8": "int8-dynamic"}
    return NodePrecision(
        name, 10.0, "f32", tuple(PrecisionEffect(precisions[key], *values) for key, values in effects.items())
    )


def test_steps_are_in_the_order_of_time_per_squared_error() -> None:
    a, b = product("a", bf16=(4.0, 0.1), int8=(6.0, 0.3)), product("b", bf16=(4.0, 0.2))
    steps = greedy_steps([a, b])
    assert [(step.node, step.precision) for step in steps] == [("a", "bf16"), ("b", "bf16"), ("a", "int8-dynamic")]
    assert [step.saved for step in steps] == [4.0, 4.0, 2.0]
    assert steps[2].squared_error == pytest.approx(0.09 - 0.01)


def test_a_precision_that_another_one_beats_is_no_step() -> None:
    (step,) = greedy_steps([product("a", bf16x3=(1.0, 0.2), bf16=(4.0, 0.1))])
    assert step == PrecisionStep("a", "bf16", pytest.approx(0.01), 4.0)
    assert greedy_steps([product("a", bf16=(-1.0, 0.1), int8=(3.0, math.inf), bf16x3=(2.0, -1.0))]) == []


def test_a_budget_of_errors_is_kept_and_cheaper_steps_follow_those_that_do_not_fit() -> None:
    nodes = [product(f"n{i}", bf16=(5.0 - i, 0.1 + 0.05 * i)) for i in range(4)]
    steps = greedy_steps(nodes)
    for budget in (0.0, 0.1, 0.2, 0.3, 1.0):
        chosen = choose_within(steps, budget)
        errors = [node.effects[0].error for node in nodes if node.node in chosen]
        assert math.sqrt(sum(error**2 for error in errors)) <= budget + 1e-9
    assert choose_within(steps, math.inf) == {node.node: "bf16" for node in nodes}
    large_first = greedy_steps([product("large", bf16=(9.9, 0.3)), product("small", bf16=(0.01, 0.05))])
    assert choose_within(large_first, 0.1) == {"small": "bf16"}


def test_the_front_rises_from_f32_to_the_fastest() -> None:
    front = estimated_front(greedy_steps([product("a", bf16=(4.0, 0.3)), product("b", bf16=(1.0, 0.4))]))
    assert [(point.error, point.saved) for point in front] == [(0.0, 0.0), (0.3, 4.0), (pytest.approx(0.5), 5.0)]


# ---- searches --------------------------------------------------------------------------------------------------------


class Program:
    """Answers for a program of `count` products, whose errors add up to `factor` times the estimate.

    A product takes 10 ms in f32, of a run of 100 ms; the first ones save more time.
    """

    def __init__(self, count: int = 8, factor: float = 1.0) -> None:
        self.factor, self.names = factor, [f"n{i}" for i in range(count)]
        self.errors = {
            (name, precision): error * (1 + i)
            for i, name in enumerate(self.names)
            for precision, error in (("bf16", 1e-3), ("int8-dynamic", 4e-3))
        }
        self.seconds = dict.fromkeys(PRECISIONS, 10e-3) | {"bf16": 5e-3, "int8-dynamic": 3e-3, "bf16x3": 20e-3}
        self.asked: list[TuningRequest] = []

    async def ask(self, request: TuningRequest) -> Any:
        self.asked.append(request)
        if isinstance(request, TimeNodes):
            precision = request.recipe.precision
            return NodesTimed(
                tuple(
                    TimedProduct(n, n, "" if precision == "f32" else precision, self.seconds[precision])
                    for n in self.names
                )
            )
        if isinstance(request, MeasureErrors):
            known = request.pairs[: 5 * sum(isinstance(one, MeasureErrors) for one in self.asked)]
            return ErrorsMeasured(
                tuple(MeasuredError(p.node, p.precision, self.errors[p.node, p.precision]) for p in known)
            )
        if isinstance(request, CompareRecipes):
            return RecipesCompared(1.5, 1.4, 1.6)
        error, ratio = self.measure(request)
        problem = f"error {error}" if request.max_error is not None and error > request.max_error else ""
        return RecipeTried(0.0 if problem else ratio, ratio, 1.0, 0.1, problem, error)

    def measure(self, request: TryRecipe) -> tuple[float, float]:
        chosen = {name: request.recipe.precision_of(name) for name in self.names}
        errors = [self.errors[pair] for pair in chosen.items() if pair in self.errors]
        saved = sum(self.seconds["f32"] - self.seconds[precision] for precision in chosen.values())
        return (self.factor * math.sqrt(sum(e**2 for e in errors)) if errors else -1.0), 1.0 - saved / 0.1


def search(program: Program, max_error: float, seconds: float = 60.0) -> tuple[Tuned, list[Frame]]:
    frames: list[Frame] = []
    frame = Tune(0, default_recipe(), seconds=seconds, max_error=max_error)
    return asyncio.run(PrecisionSearch(frame, frames.append).run([program])), frames


@pytest.mark.parametrize("factor", [0.25, 1.0, 3.0])
def test_the_true_error_decides_whatever_the_estimate_says(factor: float) -> None:
    program = Program(factor=factor)
    found, frames = search(program, 1e-2)
    error, ratio = program.measure(TryRecipe(found.recipe, 1.0, 1.0))
    assert 0.65e-2 <= error <= 1e-2  # the next step of the last case has 1.1e-2
    tries = [frame for frame in frames if isinstance(frame, Attempted)]
    assert ratio == min(one.ratio for one in tries if not one.problem) < 0.95
    assert len(tries) <= 11
    assert found.gain == 1.5
    precisions = {node.node: node.precision for node in found.nodes}
    assert precisions == {name: found.recipe.precision_of(name) for name in program.names}
    said = [frame.activity for frame in frames if isinstance(frame, Progress)]
    assert "timing products in bf16" in said
    assert "errors of single products, 5/16" in said
    assert any(what.startswith("recipe 2: ") for what in said)


def test_a_larger_error_is_never_slower() -> None:
    ratios = [
        Program().measure(TryRecipe(search(Program(), error)[0].recipe, 1.0, 1.0))[1] for error in (1e-4, 4e-3, 1.0)
    ]
    assert ratios[0] == 1.0
    assert all(first > second for first, second in itertools.pairwise(ratios))


def test_only_precisions_that_save_time_are_measured() -> None:
    program = Program()
    search(program, 1e-2)
    asked = {pair.precision for one in program.asked if isinstance(one, MeasureErrors) for pair in one.pairs}
    assert asked == {"bf16", "int8-dynamic"}
    program.seconds = dict.fromkeys(program.seconds, 10e-3)
    program.asked.clear()
    found, _ = search(program, 1e-2)
    assert not any(isinstance(one, MeasureErrors) for one in program.asked)
    assert found.recipe == default_recipe()
    assert "no precision within reach makes a product faster here" in found.notes


class Lost:
    async def ask(self, request: TuningRequest) -> Any:
        raise ConnectionError("killed")


def test_another_process_goes_on_for_one_that_is_lost() -> None:
    frame = Tune(0, default_recipe(), seconds=60.0, max_error=1e-2)
    found = asyncio.run(PrecisionSearch(frame, lambda _: None).run([Lost(), Program()]))
    assert "a process that tries recipes was lost: killed" in found.notes
    with pytest.raises(JobFailed, match="the processes that try recipes exited"):
        asyncio.run(PrecisionSearch(frame, lambda _: None).run([Lost()]))


class Late:
    async def ask(self, request: TuningRequest) -> Any:
        return RecipeTried(problem="not done in 30 s")


def test_a_search_whose_recipes_all_fail_ends_with_the_reason() -> None:
    frame = Tune(0, default_recipe(), seconds=60.0, max_error=1e-2)
    attempts: list[Frame] = []
    with pytest.raises(JobFailed, match="all products in f32 fails: not done in 30 s") as caught:
        asyncio.run(PrecisionSearch(frame, attempts.append).run([Late()]))
    assert "--each" in caught.value.diagnostic.todo
    assert sum(isinstance(frame, Attempted) for frame in attempts) == 2


def test_errors_that_there_is_no_time_for_are_named() -> None:
    program = Program(count=40)
    found, _ = search(program, 1e-2, seconds=1e-6)
    assert any("errors were not measured: give more time" in note for note in found.notes)
    assert any(note.startswith("not enough time to measure") for note in found.notes)
