"""Runs torch-mlir's passes in a separate process: some of them divide by zero or abort on unexpected input."""

from __future__ import annotations

import os
import signal
import threading
from collections import OrderedDict

from buddy.compiler.ops.utils import LoweringError, TransientLoweringError
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.support.processes.lifetime import describe_exit

# One op takes about 30 ms, and starting a process some seconds on a busy machine. The limit is below that of callers
# which wait for a whole graph (coverage waits 60 s), so that they can report the op.
SECONDS = 25.0
MAX_KNOWN = 256


class LowerModule(Message, frozen=True):
    """Lower a module of the torch dialect; answered by `ModuleLowered`."""

    number: int
    text: str


class ModuleLowered(Message, frozen=True):
    """The module on tensors, or torch-mlir's message, or in `ended` why the process gave no answer."""

    number: int
    text: str = ""
    problem: str = ""
    ended: str = ""


def lowered(text: str) -> str:
    """Lowers a module of the torch dialect to linalg on tensors. Results and failures are cached by text.

    Raises `LoweringError` with torch-mlir's message, and `TransientLoweringError` if its process ended or timed out,
    which may not happen again.
    """
    answer = _torch_mlir[-1].answer(text)
    if answer.ended:
        raise TransientLoweringError(answer.ended)
    if answer.problem:
        raise LoweringError(answer.problem)
    return answer.text


class _Process:
    """The worker process, started by the first request and restarted after it ends.

    One thread at a time sends requests. An interrupted request ends the process, so that no stale answer is left in the
    pipe; each answer also names its request.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, ModuleLowered] = OrderedDict()
        self._worker: BlockingWorker | None = None
        self._asked = 0

    def answer(self, text: str) -> ModuleLowered:
        with self._lock:
            if text not in self._known:
                self._known[text] = self._ask(text)
            self._known.move_to_end(text)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
            return self._known[text]

    def _ask(self, text: str, again: bool = True) -> ModuleLowered:
        self._asked += 1
        try:
            if self._worker is None or not self._worker.alive:
                self._end()
                self._worker = BlockingWorker("buddy.compiler.ops.torch_mlir.worker:serve", ModuleLowered)
            return self._told(self._worker, text)
        except TimeoutError:
            self._end()
            return ModuleLowered(self._asked, ended=f"its passes took more than {SECONDS:g} s")
        except OSError:
            code = self._end(5)
            # It may have been killed while idle, which only the next request detects.
            if code == -signal.SIGKILL and again:
                return self._ask(text, again=False)
            return ModuleLowered(self._asked, ended=f"its passes ended with {describe_exit(code)}")
        except BaseException:
            self._end()
            raise

    def _told(self, worker: BlockingWorker, text: str) -> ModuleLowered:
        worker.send(LowerModule(self._asked, text))
        answer = worker.receive(SECONDS)
        if not isinstance(answer, ModuleLowered) or answer.number != self._asked:
            raise BrokenPipeError("the answer is not to this request")
        return answer

    def _end(self, patience: float = 0.0) -> int:
        """Ends the process, by a kill after `patience` seconds, and returns its exit code."""
        worker, self._worker = self._worker, None
        return 0 if worker is None else worker.end(patience)


_torch_mlir = [_Process()]


def _forked() -> None:
    """Resets the state in a fork: it must not wait for a lock that another thread of the parent holds."""
    _torch_mlir[:] = [_Process()]


os.register_at_fork(after_in_child=_forked)
