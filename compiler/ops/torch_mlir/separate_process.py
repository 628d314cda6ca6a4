"""Runs torch-mlir's passes in a separate process, because some divide by zero or abort on unexpected input."""

from __future__ import annotations

import os
import signal
import threading
from collections import OrderedDict

from buddy.compiler.ops.utils import LoweringError, TransientLoweringError
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.support.processes.lifetime import describe_exit

# One op takes about 30 ms; the start of the process takes some seconds on a busy machine. Callers that wait for a whole
# graph have a longer limit (60 s in the verb `coverage`), so that they can report the op.
TIMEOUT_SECONDS = 25.0
# The number of modules whose results are cached.
MAX_CACHED = 256


class LowerModule(Message, frozen=True):
    """Lower a module of the torch dialect; answered by `ModuleLowered`."""

    number: int
    text: str


class ModuleLowered(Message, frozen=True):
    """The lowered module `text`, or torch-mlir's message `problem`, or in `ended` why the process gave no answer."""

    number: int
    text: str = ""
    problem: str = ""
    ended: str = ""


def lower_text(text: str) -> str:
    """Lowers a module of the torch dialect to linalg on tensors. Results and failures are cached by text.

    Raises `LoweringError` with torch-mlir's message. Raises `TransientLoweringError` if the process ended or timed out,
    which may not happen the next time.
    """
    answer = _processes[-1].answer(text)
    if answer.ended:
        raise TransientLoweringError(answer.ended)
    if answer.problem:
        raise LoweringError(answer.problem)
    return answer.text


class _Process:
    """The worker process, which the first request starts; a request also restarts the process if it has ended.

    One thread at a time sends requests. An interrupted request ends the process, so that its answer is not taken for
    that of the next request; each answer also has the number of its request.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, ModuleLowered] = OrderedDict()
        self._worker: BlockingWorker | None = None
        self._last_number = 0

    def answer(self, text: str) -> ModuleLowered:
        """Returns the answer for a module, from the cache or the process."""
        with self._lock:
            if text not in self._cache:
                self._cache[text] = self._request(text)
            self._cache.move_to_end(text)
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
            return self._cache[text]

    def _request(self, text: str, retry: bool = True) -> ModuleLowered:
        """Returns the answer, or one with the reason of a failure. With `retry`, repeats a request after a kill."""
        self._last_number += 1
        try:
            if self._worker is None or not self._worker.alive:
                self._end()
                self._worker = BlockingWorker("buddy.compiler.ops.torch_mlir.worker:serve", ModuleLowered)
            return self._send(self._worker, text)
        except TimeoutError:
            self._end()
            return ModuleLowered(self._last_number, ended=f"torch-mlir's passes took more than {TIMEOUT_SECONDS:g} s")
        except OSError:
            code = self._end(grace_seconds=5)
            # The process may have been killed while idle, which only the next request detects.
            if code == -signal.SIGKILL and retry:
                return self._request(text, retry=False)
            return ModuleLowered(self._last_number, ended=f"torch-mlir's process ended with {describe_exit(code)}")
        except BaseException:
            self._end()
            raise

    def _send(self, worker: BlockingWorker, text: str) -> ModuleLowered:
        """Sends a request to `worker` and returns the answer. Raises `TimeoutError` or another `OSError`."""
        worker.send(LowerModule(self._last_number, text))
        answer = worker.receive(TIMEOUT_SECONDS)
        if not isinstance(answer, ModuleLowered) or answer.number != self._last_number:
            raise BrokenPipeError("the answer belongs to another request")
        return answer

    def _end(self, grace_seconds: float = 0.0) -> int:
        """Ends the process, kills it after `grace_seconds`, and returns the exit code; 0 if there is no process."""
        worker, self._worker = self._worker, None
        return 0 if worker is None else worker.end(grace_seconds)


# The only process. It is in a list so that a fork can replace it.
_processes = [_Process()]


def _reset_after_fork() -> None:
    """Resets the state in a fork, which would wait forever for a lock that another thread of the parent holds."""
    _processes[:] = [_Process()]


os.register_at_fork(after_in_child=_reset_after_fork)
