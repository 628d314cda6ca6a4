"""torch-mlir's passes in a process of their own: some of them divide by zero or abort on what they do not expect."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from functools import lru_cache
from typing import Any

from buddy.compiler.engine.lifeline import describe_exit
from buddy.compiler.engine.process import safe_path
from buddy.compiler.ops.utils import LoweringError

# One op takes some 30 ms; a machine that is busy may take long to start the process.
SECONDS = 60.0


@lru_cache(maxsize=256)
def lowered(text: str) -> str:
    """A module of torch's dialect as linalg on tensors.

    Raises `LoweringError` with what torch-mlir says, or how its process ended.
    """
    answer = _process().ask(text)
    if "error" in answer:
        raise LoweringError(answer["error"])
    return str(answer["text"])


class _Process:
    """The process, started when first asked; where it ends, the next question starts another."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._process: Any = None

    def ask(self, text: str) -> dict[str, str]:
        if self._process is None or self._process.poll() is not None:
            self._start()
        try:
            self._process.stdin.write(json.dumps({"text": text}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return self._ended()
        ready, _, _ = select.select([self._process.stdout], [], [], SECONDS)
        if not ready:
            self._process.kill()
            return {"error": f"its passes took more than {SECONDS:g} s"}
        line = self._process.stdout.readline()
        return dict(json.loads(line)) if line else self._ended()

    def _start(self) -> None:
        command = [sys.executable, *safe_path(), "-m", "buddy.compiler.ops.torch_mlir.worker"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)

    def _ended(self) -> dict[str, str]:
        code = self._process.wait()
        return {"error": f"its passes ended with {describe_exit(code)}"}


_processes: list[_Process] = []


def _process() -> _Process:
    """This process's own; a fork does not share its parent's, whose answers it would steal."""
    if not _processes or _processes[-1].owner != os.getpid():
        _processes[:] = [_Process()]
    return _processes[-1]
