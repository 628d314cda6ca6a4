"""Passes that abort or never end: which one it is, is said, and what waits for it can be ended."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from buddy.compiler.protocol import Bisect, Cancel, Compile, Compiled, Criterion, Failed, Open, Progress
from buddy.compiler.protocol.recipe import PassStep, PluginFile, Recipe

from tests.support.engine_bench import Bench  # isort: skip  (stands beside this file)
from tests.support.engine_processes import forked_from_host, gone  # isort: skip

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

PLUGIN = Path(__file__).resolve().parents[1] / "reliability" / "broken_passes.py"
SCRIPT = """\
import torch


def model(x):
    return torch.relu(torch.sin(x) + 1)


example_inputs = (torch.linspace(-3, 3, 34),)
"""
TALKS = """\
import os
from dataclasses import dataclass

from buddy.compiler.passes.base import MlirPass, register


@register
@dataclass(frozen=True)
class Talks(MlirPass):
    name = "talks"
    summary = "says something to stderr, as libraries in C do"

    def run(self, root, context):
        os.write(2, b"something about this recipe\\n")
"""


async def opened(bench: Bench, folder: Path, *more: Path) -> Recipe:
    script = folder / "waves.py"
    script.write_text(SCRIPT)
    plugins = tuple(PluginFile(str(path)) for path in (PLUGIN, *more))
    captured = await bench.ask(Open(bench.client.new_request_id(), str(script), plugins=plugins))
    return msgspec.structs.replace(await bench.recipe(script), plugins=captured.plugins)


def with_steps(recipe: Recipe, *steps: PassStep) -> Recipe:
    return msgspec.structs.replace(recipe, steps=steps)


async def test_a_crash_is_of_the_pass_that_ran_wherever_graph_passes_stand(bench: Bench, tmp_path: Path) -> None:
    recipe = await opened(bench, tmp_path)
    graph = [step for step in recipe.steps if step.level == "graph"]
    assert graph
    rest = [step for step in recipe.steps if step.level != "graph"]
    mixed = with_steps(recipe, rest[0], PassStep("broken-aborts"), *graph, *rest[1:])
    failed = await bench.ask(Compile(bench.client.new_request_id(), mixed))
    assert isinstance(failed, Failed)
    assert "the compiler crashed (SIGABRT" in failed.diagnostic.what
    assert (failed.diagnostic.where, failed.diagnostic.step) == ("pass broken-aborts (step 2)", 1)
    told = [frame.activity for frame in bench.seen if isinstance(frame, Progress) and frame.request == failed.request]
    on = sum(step.enabled for step in mixed.steps)
    assert told[-1] == f"pass {sum(step.enabled for step in graph) + 2}/{on} broken-aborts"
    assert told.index("lowering") < len(told) - 2


@pytest.mark.parametrize("crash", ["broken-aborts", "broken-aborts-deep-down"])
async def test_the_last_words_of_a_crash_are_those_of_its_recipe(bench: Bench, tmp_path: Path, crash: str) -> None:
    (tmp_path / "talks.py").write_text(TALKS)
    recipe = await opened(bench, tmp_path, tmp_path / "talks.py")
    talks, aborts = PassStep("talks"), PassStep(crash)

    async def ending_of(*steps: PassStep) -> Compiled | Failed:
        return await bench.ask(Compile(bench.client.new_request_id(), with_steps(recipe, *recipe.steps, *steps)))

    assert isinstance(await ending_of(talks), Compiled)
    silent, talkative = await ending_of(aborts), await ending_of(talks, aborts)
    assert isinstance(silent, Failed)
    assert isinstance(talkative, Failed)
    assert "the compiler crashed (SIGABRT" in silent.diagnostic.what
    assert (silent.diagnostic.detail, talkative.diagnostic.detail) == ("", "something about this recipe")


async def test_a_pass_that_never_ends_is_named_and_can_be_ended(bench: Bench, tmp_path: Path) -> None:
    recipe = await opened(bench, tmp_path)
    compile_it = Compile(
        bench.client.new_request_id(), with_steps(recipe, *recipe.steps, PassStep("broken-never-ends"))
    )
    bench.client.send(compile_it)
    on = sum(step.enabled for step in recipe.steps) + 1
    named = f"pass {on}/{on} broken-never-ends"
    await bench.until(lambda frame: isinstance(frame, Progress) and frame.activity == named)
    compiler = bench.worker_pid("compiler")
    bench.client.send(Cancel(compile_it.request))
    assert (await bench.end_of(compile_it.request)).cancelled
    assert await gone(compiler)
    assert isinstance(await bench.ask(Compile(bench.client.new_request_id(), recipe)), Compiled)


async def test_a_search_that_is_stuck_in_a_pass_is_cancelled(bench: Bench, tmp_path: Path) -> None:
    recipe = await opened(bench, tmp_path)
    stuck = with_steps(recipe, *recipe.steps, PassStep("broken-never-ends"))
    search = Bisect(bench.client.new_request_id(), stuck, Criterion(step_seconds=600.0))
    bench.client.send(search)
    await bench.until(lambda frame: isinstance(frame, Progress) and frame.request == search.request)
    # No other step of so small a program takes that long.
    searching: list[int] = []
    while not any(computed(pid) > 3.0 for pid in searching):
        await asyncio.sleep(0.1)
        searching = forked_from_host(bench.pid)
    bench.client.send(Cancel(search.request))
    assert (await bench.end_of(search.request)).cancelled
    assert await gone(*searching)


def computed(pid: int) -> float:
    """The seconds that a process has computed, 0 where it is gone."""
    try:
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11]
    except OSError:
        return 0.0
    return int(ticks) / os.sysconf("SC_CLK_TCK")
