"""The client of a side's process. Imports neither torch nor MLIR."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

from buddy.compiler.tools.bench.plan import BenchSubject

START_SECONDS = 1800.0


class ContestantError(Exception):
    """A side could not be prepared, or its process exited; the text is the reason."""


class Contestant:
    """One side of a subject in a separate process, with empty caches, on `threads` threads."""

    def __init__(self, side: str, subject: BenchSubject, threads: int, folder: Path) -> None:
        self.side = side
        job = {"side": side, "source": subject.source, "arguments": list(subject.arguments), "threads": threads}
        self._caches = tempfile.TemporaryDirectory(prefix="buddy-bench-", ignore_cleanup_errors=True)
        self._log: TextIO = (folder / f"{subject.name}-{threads}-{side}.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "buddy.compiler.tools.bench.worker", json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **_environment(threads, self._caches.name)},
        )

    def report(self) -> dict[str, Any]:
        """The report of the preparation, once it is done. Raises `ContestantError`."""
        found = self._answer()
        if "error" in found:
            raise ContestantError(str(found["error"]))
        return found

    def seconds(self) -> float:
        """The duration of one call. Raises `ContestantError`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ContestantError(f"its process has exited ({error})") from error
        return float(self._answer()["seconds"])

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()
        self._caches.cleanup()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise ContestantError(f"its process exited with status {code}; see {self._log.name}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _environment(threads: int, caches: str) -> dict[str, str]:
    """The same number of threads for every library, and an empty cache."""
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    fresh = {"BUDDY_CACHE": caches, "TORCHINDUCTOR_CACHE_DIR": caches, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    return {**counts, **fresh}
