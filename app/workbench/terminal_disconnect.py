"""Exits when the terminal disconnects, which may happen without a signal."""

from __future__ import annotations

import asyncio
import select
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from buddy.app.workbench.app import Workbench

# Seconds between checks of the terminal.
POLL_SECONDS = 1.0
# The exit code that a shell reports for SIGHUP.
SIGHUP_EXIT_CODE = 129


def is_disconnected(descriptor: int) -> bool:
    """Whether the terminal is disconnected."""
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(descriptor, 0)  # disconnects and errors are always reported
    return bool(poll.poll(0))


async def exit_on_disconnect(bench: Workbench) -> None:
    """Exit when the terminal disconnects. Does nothing if standard input is not a terminal."""
    if sys.__stdin__ is None or not sys.__stdin__.isatty():
        return
    descriptor = sys.__stdin__.fileno()
    while not is_disconnected(descriptor):
        await asyncio.sleep(POLL_SECONDS)
    bench.exit(SIGHUP_EXIT_CODE, return_code=SIGHUP_EXIT_CODE)
