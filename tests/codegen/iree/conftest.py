"""Engines of the real kind, and IREE where it is installed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from buddy.compiler.codegen.iree.options import missing_packages
from tests.support.engine_bench import Bench, started


@pytest.fixture(scope="session")
def iree() -> None:
    """IREE, or the reason why there is none."""
    if problem := missing_packages():
        pytest.skip(problem)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Bench]:
    """A started engine; nothing of it may be left at the end."""
    async with started() as found:
        yield found
