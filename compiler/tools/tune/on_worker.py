"""Runs on a cluster's worker: passes questions to a separate process that has the program loaded.

The worker itself imports neither torch nor MLIR and runs no compiled code, so a recipe cannot crash it. Each of its
threads has a separate process, which stays for the next question.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from typing import Any

import msgspec

from buddy.compiler.protocol.worker_messages import Refused, Trouble
from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.tools.tune.messages import (
    Beginning,
    CompareRecipes,
    RecipesCompared,
    RecipeTried,
    TryRecipe,
    TuningMessage,
)

_mine = threading.local()


def answer_tune_request(begin: bytes, question: bytes) -> bytes:
    """The answer to a `TryRecipe` or `CompareRecipes` about the program of `begin`; all as MessagePack."""
    asked = msgspec.msgpack.decode(question, type=TryRecipe | CompareRecipes)
    process = getattr(_mine, "process", None)
    if process is None or process.begin != begin or not process.alive:
        if process is not None:
            _mine.process = None
            process.close()
        process = _mine.process = RecipeTrier(begin)
    return msgspec.msgpack.encode(process.ask(asked))


class RecipeTrier:
    """A process that tries recipes on the program of `begin`, which is a `Beginning`.

    Raises `RuntimeError` if the process exits before it has loaded the program, and in `ask` if it exits during a
    question.
    """

    def __init__(self, begin: bytes) -> None:
        self.begin = begin
        # Its stderr is the log of the cluster's worker.
        self._worker = BlockingWorker("buddy.compiler.tools.tune.worker:serve", TuningMessage, log=2)
        atexit.register(self.close)
        try:
            self._refused = self._heard(msgspec.msgpack.decode(begin, type=Beginning))
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        return self._worker.alive

    @property
    def refusal(self) -> str:
        """The reason why the process cannot load the program, "" if it has loaded it."""
        return str(self._refused.diagnostic) if isinstance(self._refused, Refused) else ""

    def ask(self, question: TryRecipe | CompareRecipes) -> Any:
        found = self._refused if isinstance(self._refused, Refused) else self._heard(question)
        if isinstance(found, Refused):
            kind = RecipeTried if isinstance(question, TryRecipe) else RecipesCompared
            return kind(problem=str(found.diagnostic))
        return found

    def _heard(self, message: Any) -> Any:
        found = None
        with contextlib.suppress(BrokenPipeError):
            self._worker.send(message)
            while isinstance(found := self._worker.receive(), Trouble):
                continue
        if found is None:
            raise RuntimeError(f"the process that tries recipes exited with {self._worker.wait()}")
        return found

    def close(self) -> None:
        atexit.unregister(self.close)
        self._worker.end()
