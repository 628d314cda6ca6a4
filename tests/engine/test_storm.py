"""Edits, cancels and kills in quick succession: every request ends exactly once, and the engine is as good as new."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from buddy.compiler.protocol import Cancel, Compile, Compiled, Failed, Ran, Run
from tests.support.engine_bench import Bench

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]


async def test_every_request_of_a_storm_ends_once(bench: Bench, add: Path) -> None:
    await bench.open(add)
    recipe, chance = await bench.recipe(add), random.Random(7)
    compilations: set[int] = set()
    runs: set[int] = set()
    for _ in range(60):
        request = bench.client.new_request_id()
        edited = recipe.toggled(chance.randrange(len(recipe.steps)))
        if chance.random() < 0.8:
            compilations.add(request)
            bench.client.send(Compile(request, edited))
        else:
            runs.add(request)
            bench.client.send(Run(request, edited, repeats=2))
        if chance.random() < 0.15:
            bench.client.send(Cancel(chance.choice([0, request, request - 1])))
        if chance.random() < 0.1:
            _kill(bench, chance.choice(["compiler", "host"]))
        await asyncio.sleep(chance.random() * 0.05)
    ended = await _endings(bench, compilations, runs)
    assert set(ended) == compilations | runs
    assert set(ended.values()) == {1}
    ran = await bench.ask(Run(bench.client.new_request_id(), recipe, repeats=2))
    assert isinstance(ran, Ran), ran.diagnostic
    assert ran.report.ok


def _kill(bench: Bench, module: str) -> None:
    try:
        os.kill(bench.worker_pid(module), signal.SIGKILL)
    except (ValueError, ProcessLookupError):
        return


async def _endings(bench: Bench, compilations: set[int], runs: set[int]) -> Counter[int]:
    """How often each request has ended, once all have."""
    ended: Counter[int] = Counter()

    def all_ended(frame: Any) -> bool:
        done = isinstance(frame, (Failed, Ran)) or (isinstance(frame, Compiled) and frame.request in compilations)
        if done:
            ended[frame.request] += 1
        return set(ended) >= compilations | runs

    await bench.until(all_ended)
    return ended
