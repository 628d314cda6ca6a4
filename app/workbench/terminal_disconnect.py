"""Leaving with the terminal: one that is gone, where no signal says so, is read from without end."""

from __future__ import annotations

import asyncio
import select
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from buddy.app.workbench.app import Workbench

# Seconds between looks at the terminal.
LOOK = 1.0
# As a shell counts what SIGHUP has ended.
HUNG_UP = 129


def is_gone(descriptor: int) -> bool:
    """Whether nobody is at the other end of a terminal any more."""
    if not hasattr(select, "poll"):
        return False
    look = select.poll()
    look.register(descriptor, 0)  # hang-ups and errors are told unasked
    return bool(look.poll(0))


async def leave_with_terminal(bench: Workbench) -> None:
    """Leave once the terminal has hung up; where standard input is none, that never happens."""
    if sys.__stdin__ is None or not sys.__stdin__.isatty():
        return
    descriptor = sys.__stdin__.fileno()
    while not is_gone(descriptor):
        await asyncio.sleep(LOOK)
    bench.exit(HUNG_UP, return_code=HUNG_UP)
