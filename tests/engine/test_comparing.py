"""Differences of stages, as the client gets them from the engine."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from buddy.app.session.client import RequestFailed
from buddy.compiler.protocol import Cancel, Compare, Compile, Stage
from tests.support.engine_bench import PATIENCE, Bench
from tests.support.engine_processes import children, command, gone

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = """\
import torch


def model(x, y):
    for k in range(150):
        x = x * y + k
    return x


example_inputs = (torch.ones(4, 5), torch.ones(4, 5))
"""


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script whose stages are too long to be compared within the engine's own process."""
    path = tmp_path_factory.mktemp("long") / "long.py"
    path.write_text(LONG)
    return path


async def compiled(bench: Bench, source: Path) -> dict[str, Stage]:
    await bench.open(source)
    answer = await bench.ask(Compile(bench.client.new_request_id(), await bench.recipe(source)))
    return {stage.name: stage for stage in answer.stages}


async def lines(bench: Bench, stage: Stage) -> list[str]:
    return (await bench.client.fetch_text(stage.text)).split("\n")[: stage.lines]


async def test_a_difference_leads_from_the_one_stage_to_the_other(bench: Bench, add: Path) -> None:
    stages = await compiled(bench, add)
    one, other = stages["lower"], stages["one-shot-bufferize"]
    before, after = await lines(bench, one), await lines(bench, other)
    for how in ("line", "structural"):
        found = await bench.client.request(Compare(0, one.text, other.text, how, "mlir"))
        assert (found.before_lines, found.after_lines) == (one.lines, other.lines)
        assert found.hunks
        made = list(before)
        for start, removed, place, added in reversed(found.hunks):
            made[start : start + removed] = after[place : place + added]
        assert len(made) == len(after)
        assert made == after or how == "structural"


async def test_a_stage_does_not_differ_from_itself(bench: Bench, add: Path) -> None:
    stages = await compiled(bench, add)
    text = stages["lower"].text
    assert (await bench.client.request(Compare(0, text, text, "line", "mlir"))).hunks == ()


async def test_a_text_that_is_not_kept_is_an_error_of_that_request(bench: Bench, add: Path) -> None:
    stages = await compiled(bench, add)
    with pytest.raises(RequestFailed, match="no longer stored"):
        await bench.client.request(Compare(0, "0123", stages["lower"].text, "line", "mlir"))


def comparing(bench: Bench) -> list[int]:
    """The processes that compare texts for the engine."""
    return [pid for pid in children(bench.pid) if "compute_difference" in command(pid)]


async def under_way(bench: Bench) -> list[int]:
    """Those processes, once there is one."""
    end = asyncio.get_running_loop().time() + PATIENCE
    while not (found := comparing(bench)):
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.005)
    return found


async def test_long_texts_are_compared_apart_and_the_engine_answers_meanwhile(bench: Bench, long: Path) -> None:
    stages = await compiled(bench, long)
    one, other = stages["fx"], max(stages.values(), key=lambda stage: stage.lines)
    request = bench.client.new_request_id()
    bench.client.send(Compare(request, one.text, other.text, "structural"))
    (apart,) = await under_way(bench)
    os.kill(apart, signal.SIGSTOP)
    for _ in range(10):
        await bench.client.fetch_lines(other.text, 0, 10)
    os.kill(apart, signal.SIGCONT)
    assert (await bench.end_of(request)).hunks
    assert comparing(bench) == []


async def test_a_comparison_ends_when_it_is_cancelled_or_no_longer_waited_for(bench: Bench, long: Path) -> None:
    stages = await compiled(bench, long)
    one, other = stages["fx"], max(stages.values(), key=lambda stage: stage.lines)
    request = bench.client.new_request_id()
    bench.client.send(Compare(request, other.text, one.text, "structural"))
    bench.client.send(Cancel(request))
    assert (await bench.end_of(request)).cancelled
    waiting = asyncio.ensure_future(bench.client.request(Compare(0, other.text, one.text, "structural", "mlir")))
    apart = await under_way(bench)
    assert not waiting.done()
    waiting.cancel()
    assert await gone(*apart)
