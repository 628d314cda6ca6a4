"""Starts functions of this project in new Python interpreters: one-shot calls, and workers for callers that block.

A function is named `module:function`, because importing it here would load what the other process is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import IO, Any, TypeVar

import msgspec

from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.processes.channel import MessagePipe
from buddy.compiler.support.processes.lifetime import (
    describe_exit,
    die_with_parent_from_start,
    kill_group,
    start_with_socket,
    with_this_thread,
)

Answer = TypeVar("Answer")
PROGRAM = "buddy.compiler.support.processes"
_TAIL = 4000


class TookTooLong(Exception):
    """A call timed out."""


class CallFailed(Exception):
    """The process of a call ended without an answer: `how`, with the end of its output in `printed`."""

    def __init__(self, function: str, how: str, printed: str) -> None:
        super().__init__(f"{function} ended with {how}" + (f": {printed.splitlines()[-1]}" if printed else ""))
        self.how, self.printed = how, printed


def python_command(function: str, *words: str, parent: int = 0) -> list[str]:
    """Returns the command that runs `function` in a new interpreter, which ends with the process `parent` (0: none).

    `words` are those of `__main__` from SHAPE on. The current folder is not on `sys.path`: a `random.py` in it must not
    break the process.
    """
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe, "-m", PROGRAM, *function.split(":"), str(parent), *words]


# ---- one-shot calls --------------------------------------------------------------------------------------------------


async def call_in_process(function: str, question: Any, answer: type[Answer], timeout: float) -> Answer:
    """Returns the `answer` of `function` to `question` without blocking the event loop.

    Its stderr is passed on to that of this process, an engine's log. Cancelling ends it. Raises `TookTooLong` after
    `timeout` seconds, and `CallFailed` if there is no answer.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *python_command(function, "call", parent=os.getpid()), stdin=pipe, stdout=pipe, stderr=pipe,
        start_new_session=True, preexec_fn=die_with_parent_from_start(),
    )  # fmt: skip
    try:
        told = await asyncio.wait_for(process.communicate(msgspec.msgpack.encode(question)), timeout)
    except asyncio.TimeoutError:
        raise TookTooLong(f"no answer within {timeout:g} s") from None
    finally:
        if process.returncode is None:
            kill_group(process.pid)
            await process.wait()
    assert process.returncode is not None
    with contextlib.suppress(OSError):
        os.write(2, told[1])
    return _answer(function, process.returncode, told, answer)


def call_and_wait(function: str, question: Any, answer: type[Answer], timeout: float) -> Answer:
    """Like `call_in_process`, for a caller that blocks; the process also ends with the thread that calls this."""
    try:
        done = subprocess.run(
            python_command(function, "call", parent=os.getpid()), input=msgspec.msgpack.encode(question),
            capture_output=True, timeout=timeout, check=False, start_new_session=True, preexec_fn=with_this_thread(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TookTooLong(f"no answer within {timeout:g} s") from None
    return _answer(function, done.returncode, (done.stdout, done.stderr), answer)


def _answer(function: str, status: int, told: tuple[bytes, bytes], answer: type[Answer]) -> Answer:
    """Decodes the output of a call."""
    found, printed = told
    how = describe_exit(status)
    if status == 0:
        try:
            return msgspec.msgpack.decode(found, type=answer)
        except msgspec.MsgspecError as error:
            how = f"an answer that is not valid ({error})"
    raise CallFailed(function, how, printed[-_TAIL:].decode(errors="replace").strip())


# ---- workers ---------------------------------------------------------------------------------------------------------


class BlockingWorker:
    """A worker in a new interpreter, for threads that wait for its messages; `replies` are the types of these.

    It ends with `end`, and with this process, not with the thread that starts it. Its stdin is empty; stdout and stderr
    go to `log`. Variables of `environment` are added to those of this process. A fork of this process does not have the
    worker. Raises `OSError` if it cannot start.
    """

    def __init__(
        self, function: str, replies: Any, log: IO[Any] | int = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        their_read, write = os.pipe()
        read, their_write = os.pipe()
        self.pipe = MessagePipe(read, write, replies)
        try:
            self._popen, self._line = start_with_socket(
                python_command(function, "pipes", str(their_read), str(their_write)), keep=(their_read, their_write),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **(environment or {})},
            )  # fmt: skip
        except BaseException:
            self.pipe.close()
            raise
        finally:
            os.close(their_read)
            os.close(their_write)
        _workers.add(self)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def send(self, message: Message) -> None:
        """Sends a message. Raises `BrokenPipeError` if the worker has ended."""
        self.pipe.send(message)

    def receive(self, timeout: float = math.inf) -> Any:
        """Returns the worker's next message, `None` at its end. Raises `TimeoutError` after `timeout` seconds."""
        return self.pipe.receive(timeout)

    def kill(self) -> None:
        """Kills the worker and all processes that it started; `receive` then returns `None`."""
        if self.alive:
            kill_group(self.pid)

    def wait(self) -> int:
        """Waits for the worker's end; returns its exit status, negative for a signal."""
        return self._popen.wait()

    def end(self, patience: float = 0.0) -> int:
        """Closes the pipes, kills the worker after `patience` seconds, and returns its exit status."""
        self.pipe.close()
        if patience:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(patience)
        self.kill()
        self._line.close()
        return self.wait()

    def release(self) -> None:
        """Closes the pipes in a fork of the owner, since only one process may use them."""
        self.pipe.close()
        self._line.close()
        self._popen.returncode = -signal.SIGKILL


_workers: weakref.WeakSet[BlockingWorker] = weakref.WeakSet()


def _release_in_fork() -> None:
    for worker in list(_workers):
        worker.release()
    _workers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_fork)


# ---- programs --------------------------------------------------------------------------------------------------------


def start_detached(function: str, words: Sequence[str], log: IO[bytes], keep: Sequence[int]) -> None:
    """Starts a function that outlives this process, in its own session; it inherits the file descriptors `keep`."""
    subprocess.Popen(
        python_command(function, "words", *words), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        pass_fds=tuple(keep), start_new_session=True,
    )  # fmt: skip
