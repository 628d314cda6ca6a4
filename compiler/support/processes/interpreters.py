"""Starts functions of this project in new Python interpreters: one-shot calls, and workers for callers that block.

A function is named `module:function`, because this process must not import its module.
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

from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.processes.channel import MessagePipe
from buddy.compiler.support.processes.lifetime import (
    LifetimePipe,
    describe_exit,
    kill_group,
    run_owned,
    start_with_pipe,
)

Answer = TypeVar("Answer")
_MAIN_PACKAGE = "buddy.compiler.support.processes"
_MAX_TAIL_BYTES = 4000


class TookTooLong(BuddyError):
    """A call timed out."""


class CallFailed(BuddyError):
    """The process of a call ended without a valid answer. `how` describes its end, `printed` the end of its stderr."""

    def __init__(self, function: str, how: str, printed: str) -> None:
        super().__init__(f"{function} ended with {how}" + (f": {printed.splitlines()[-1]}" if printed else ""))
        self.how, self.printed = how, printed


def python_command(function: str, *arguments: str, parent: int = 0) -> list[str]:
    """Returns the command that runs `function` in a new interpreter.

    If `parent` is not 0, the interpreter ends with that process. `arguments` are those of `__main__` from SHAPE on. The
    current folder is not on `sys.path`: a `random.py` there would break the process.
    """
    safe_path = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe_path, "-m", _MAIN_PACKAGE, *function.split(":"), str(parent), *arguments]


# ---- one-shot calls --------------------------------------------------------------------------------------------------


async def call_in_process(function: str, argument: object, answer_type: type[Answer], timeout: float) -> Answer:
    """Returns the result of `function` for `argument`, without blocking the event loop.

    Writes the stderr of the process to the stderr of this process, an engine's log. Cancelling the call kills the
    process. Raises `TookTooLong` after `timeout` seconds, and `CallFailed` if the process gives no valid answer.
    """
    pipe, lifetime = asyncio.subprocess.PIPE, LifetimePipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *python_command(function, "call", parent=os.getpid()), stdin=pipe, stdout=pipe, stderr=pipe,
            start_new_session=True, pass_fds=(lifetime.child_end,),
        )  # fmt: skip
    except BaseException:
        lifetime.close()
        raise
    lifetime.own(process.pid, group=True)
    try:
        answer, printed = await asyncio.wait_for(process.communicate(msgspec.msgpack.encode(argument)), timeout)
    except asyncio.TimeoutError:
        raise TookTooLong(f"no answer within {timeout:g} s") from None
    finally:
        if process.returncode is None:
            kill_group(process.pid)
            await process.wait()
        lifetime.close()
    assert process.returncode is not None
    with contextlib.suppress(OSError):
        os.write(2, printed)
    return _decode_answer(function, process.returncode, answer, printed, answer_type)


def call_and_wait(function: str, argument: object, answer_type: type[Answer], timeout: float) -> Answer:
    """Like `call_in_process`, but blocks; the process is also killed if the calling thread ends."""
    command = python_command(function, "call", parent=os.getpid())
    try:
        done = run_owned(command, timeout, msgspec.msgpack.encode(argument), start_new_session=True)
    except subprocess.TimeoutExpired:
        raise TookTooLong(f"no answer within {timeout:g} s") from None
    return _decode_answer(function, done.returncode, done.stdout, done.stderr, answer_type)


def _decode_answer(function: str, status: int, answer: bytes, printed: bytes, answer_type: type[Answer]) -> Answer:
    """Returns the `answer` of a call from its stdout; `printed` is its stderr. Raises `CallFailed`."""
    how = describe_exit(status)
    if status == 0:
        try:
            return msgspec.msgpack.decode(answer, type=answer_type)
        except msgspec.MsgspecError as error:
            how = f"an answer that is not valid ({error})"
    raise CallFailed(function, how, printed[-_MAX_TAIL_BYTES:].decode(errors="replace").strip())


# ---- workers ---------------------------------------------------------------------------------------------------------


class BlockingWorker:
    """A worker in a new interpreter, for threads that wait for its messages, which are of the types `replies`.

    It is killed by `end`, or when this process ends, but not when the thread that started it ends. Its stdin is empty;
    stdout and stderr go to `log`. Variables of `environment` are added to those of this process. The worker inherits
    the file descriptors `keep`. In a fork of this process, the object is closed. Raises `OSError` if the worker cannot
    start.
    """

    def __init__(
        self, function: str, replies: object, log: IO[str] | IO[bytes] | int = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None, keep: Sequence[int] = (),
    ) -> None:  # fmt: skip
        child_read, write = os.pipe()
        read, child_write = os.pipe()
        self.pipe = MessagePipe(read, write, replies)
        try:
            self._popen, self._lifetime_pipe = start_with_pipe(
                python_command(function, "pipes", str(child_read), str(child_write)),
                keep=(child_read, child_write, *keep), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env={**os.environ, **(environment or {})},
            )  # fmt: skip
        except BaseException:
            self.pipe.close()
            raise
        finally:
            os.close(child_read)
            os.close(child_write)
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
        """Returns the worker's next message, `None` if it has ended. Raises `TimeoutError` after `timeout` seconds."""
        return self.pipe.receive(timeout)

    def kill(self) -> None:
        """Kills the worker and all processes that it started; `receive` then returns `None`."""
        if self.alive:
            kill_group(self.pid)

    def wait(self) -> int:
        """Waits for the worker's end; returns its exit status, negative for a signal."""
        return self._popen.wait()

    def end(self, timeout: float = 0.0) -> int:
        """Closes the pipes, kills the worker if it runs after `timeout` seconds, and returns its exit status."""
        self.pipe.close()
        if timeout:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(timeout)
        self.kill()
        self._lifetime_pipe.close()
        return self.wait()

    def release(self) -> None:
        """Closes the pipes in a fork of this process, since only one process may use them."""
        self.pipe.close()
        self._lifetime_pipe.close()
        self._popen.returncode = -signal.SIGKILL  # the process is no child of this one, so `alive` must not poll it


_workers: weakref.WeakSet[BlockingWorker] = weakref.WeakSet()


def _release_in_fork() -> None:
    for worker in list(_workers):
        worker.release()
    _workers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_fork)


# ---- detached processes ----------------------------------------------------------------------------------------------


def start_detached(function: str, arguments: Sequence[str], log: IO[bytes], keep: Sequence[int]) -> None:
    """Starts a function that outlives this process, in its own session; it inherits the file descriptors `keep`."""
    subprocess.Popen(
        python_command(function, "words", *arguments), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        pass_fds=tuple(keep), start_new_session=True,
    )  # fmt: skip
