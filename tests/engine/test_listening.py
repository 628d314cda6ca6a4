"""Processes that connect to the engine, and when it lets go of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from buddy.compiler.engine.connection import ListeningSocket
from buddy.compiler.protocol import Progress


@pytest.mark.asyncio
@pytest.mark.parametrize("steps", range(6))
async def test_a_process_that_connects_at_the_last_moment_is_let_go_of(steps: int) -> None:
    """`steps` is how far the event loop has got with the connection when the job is cancelled."""
    with socket.socket(socket.AF_UNIX) as process:
        async with ListeningSocket(Progress) as listening:
            waiting = asyncio.create_task(listening.accept_peer())
            await asyncio.sleep(0)
            process.connect(listening.address)
            for _ in range(steps):
                await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
        process.settimeout(0)
        for _ in range(12_000):
            await asyncio.sleep(0.01)
            try:
                assert process.recv(1) == b""
            except BlockingIOError:
                continue
            except ConnectionResetError:
                pass
            return
    raise AssertionError("it is still connected")
