"""Sends one request to a new process, which can be killed: for work that holds the GIL for long."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from buddy.compiler.support.processes.parent_death import die_with_parent, die_with_parent_from_start
from buddy.compiler.support.processes.worker_process import safe_path

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class TookTooLong(Exception):
    """A request timed out."""


async def call_in_process(module: str, question: Any, answer: type[Answer], timeout: float) -> Answer:
    """Runs `module` as a program that calls `serve_one_call`, and returns its answer; does not block the event loop.

    Raises `TookTooLong` after `timeout` seconds. Cancelling ends the process.
    """
    command = [sys.executable, *safe_path(), "-m", module, str(os.getpid())]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, start_new_session=True, preexec_fn=die_with_parent_from_start()
    )
    try:
        found, _ = await asyncio.wait_for(process.communicate(msgspec.msgpack.encode(question)), timeout)
        return msgspec.msgpack.decode(found, type=answer)
    except asyncio.TimeoutError:
        raise TookTooLong(f"no answer within {timeout:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def serve_one_call(kind: type[Question], answer: Callable[[Question], Any]) -> None:
    """In the new process: reads the request, of type `kind`, and writes the result of `answer`."""
    die_with_parent(int(sys.argv[1]))
    question = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=kind)
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer(question)))
