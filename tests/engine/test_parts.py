"""Extracts in the engine: one more graph of the program, also after the host was lost; a search that is cancelled."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest

from buddy.compiler.protocol import Bisect, Cancel, Criterion, Extract, Failed, Progress, Ran, Run

from tests.support.engine_bench import Bench  # isort: skip  (stands beside this file)
from tests.support.engine_processes import forked_from_host, gone  # isort: skip

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SCRIPT = """\
import torch


def model(x):
    return torch.relu(torch.sin(x) + 1)


example_inputs = (torch.linspace(-3, 3, 34),)
"""


async def test_an_extract_is_a_graph_and_outlives_the_host(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "waves.py"
    script.write_text(SCRIPT)
    await bench.open(script)
    recipe = await bench.recipe(script)
    found = await bench.client.request(Extract(0, recipe, ("relu", "add")))
    assert found.graph == 1
    assert [row.name for row in found.info.rows] == ["sin", "add", "relu", "output"]
    again = await bench.client.request(Extract(0, recipe, ("relu", "add")))
    assert again.graph == 1

    own = msgspec.structs.replace(recipe, graph=1)
    os.kill(bench.worker_pid("host"), signal.SIGKILL)
    ran = await bench.ask(Run(bench.client.new_request_id(), own, 1))
    assert isinstance(ran, Ran)
    assert ran.report.ok


async def test_a_search_is_cancelled_and_the_engine_goes_on(bench: Bench, tmp_path: Path) -> None:
    """The process that searches goes with its request, even where it is stopped; the host was free meanwhile."""
    script = tmp_path / "waves.py"
    script.write_text(SCRIPT)
    await bench.open(script)
    recipe = await bench.recipe(script)
    search = Bisect(bench.client.new_request_id(), recipe, Criterion("slower"))
    bench.client.send(search)
    await bench.until(lambda f: isinstance(f, Progress) and f.request == search.request and "without" in f.activity)
    # It stands still, so it is under way for as long as the run takes, and hears nothing.
    searching = forked_from_host(bench.pid)
    assert searching
    for pid in searching:
        os.kill(pid, signal.SIGSTOP)
    assert isinstance(await bench.ask(Run(bench.client.new_request_id(), recipe, 1)), Ran)
    bench.client.send(Cancel(search.request))
    ended = await bench.end_of(search.request)
    assert isinstance(ended, Failed)
    assert ended.cancelled
    assert await gone(*searching)
