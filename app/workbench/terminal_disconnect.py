"""Exits when the terminal disconnects. Without a signal, reads from a closed terminal would never end."""

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
    """Whether the terminal is disconnected."""
    if not hasattr(select, "poll"):
        return False
    look = select.poll()
    look.register(descriptor, 0)  # hang-ups and errors are told unasked
    return bool(look.poll(0))


async def leave_with_terminal(bench: Workbench) -> None:
    """Exit when the terminal disconnects. Does nothing if standard input is not a terminal."""
    if sys.__stdin__ is None or not sys.__stdin__.isatty():
        return
    descriptor = sys.__stdin__.fileno()
    while not is_gone(descriptor):
        await asyncio.sleep(LOOK)
    bench.exit(HUNG_UP, return_code=HUNG_UP)
