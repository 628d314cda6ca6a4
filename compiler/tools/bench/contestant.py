"""The client of a side's process, and their messages. Imports neither torch nor MLIR."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any, TextIO

from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.tools.bench.plan import BenchSubject


class PrepareSide(Message, frozen=True):
    """Prepare the script `source` for a side; answered by `SidePrepared` or `SideFailed`."""

    side: str
    source: str
    arguments: tuple[str, ...]
    threads: int


class SidePrepared(Message, frozen=True):
    report: dict[str, Any]


class SideFailed(Message, frozen=True):
    error: str


class TimeBlock(Message, frozen=True):
    """Time a block of calls; answered by `BlockTimed`."""


class BlockTimed(Message, frozen=True):
    """The median seconds of a block's calls."""

    seconds: float


class ContestantError(Exception):
    """A side could not be prepared, or its process exited; the text is the reason."""


class Contestant:
    """One side of a subject in a separate process, with empty caches, on `threads` threads."""

    def __init__(self, side: str, subject: BenchSubject, threads: int, folder: Path) -> None:
        self.side = side
        self._caches = tempfile.TemporaryDirectory(prefix="buddy-bench-", ignore_cleanup_errors=True)
        self._log: TextIO = (folder / f"{subject.name}-{threads}-{side}.log").open("w")
        self._worker = BlockingWorker(
            "buddy.compiler.tools.bench.worker:serve", SidePrepared | SideFailed | BlockTimed, self._log,
            _environment(threads, self._caches.name),
        )  # fmt: skip
        self._send(PrepareSide(side, subject.source, subject.arguments, threads))

    def report(self) -> dict[str, Any]:
        """The report of the preparation, once it is done. Raises `ContestantError`."""
        found = self._answer()
        if isinstance(found, SideFailed):
            raise ContestantError(found.error)
        return dict(found.report)

    def seconds(self) -> float:
        """The duration of one call. Raises `ContestantError`."""
        self._send(TimeBlock())
        return float(self._answer().seconds)

    def close(self) -> None:
        self._worker.end()
        self._log.close()
        self._caches.cleanup()

    def _send(self, message: Message) -> None:
        # A process that has exited gives no answer either.
        with contextlib.suppress(BrokenPipeError):
            self._worker.send(message)

    def _answer(self) -> Any:
        found = self._worker.receive()
        if found is None:
            raise ContestantError(f"its process exited with status {self._worker.wait()}; see {self._log.name}")
        return found


def _environment(threads: int, caches: str) -> dict[str, str]:
    """The same number of threads for every library, and an empty cache."""
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    fresh = {"BUDDY_CACHE": caches, "TORCHINDUCTOR_CACHE_DIR": caches, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    return {**counts, **fresh}
