"""Engines of the real kind."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from buddy.compiler.protocol import Cancel
from tests.support.engine_bench import Bench, started

ADD = """\
import torch

print("the script ran")


def model(x, y):
    return x + y


example_inputs = (torch.ones(4, {width}), torch.ones(4, {width}))
"""
_widths = itertools.count(4)


@pytest.fixture
def add(tmp_path: Path) -> Path:
    """A script with one small graph, which no other test has compiled."""
    path = tmp_path / "add.py"
    path.write_text(ADD.format(width=next(_widths)))
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Bench]:
    """A started engine; nothing of it may be left at the end."""
    async with started() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def bench(engine: Bench) -> Bench:
    """The module's engine, with nothing under way and no frames left from the test before."""
    engine.client.send(Cancel(0))
    await engine.presets()
    await engine.quiet()
    return engine
