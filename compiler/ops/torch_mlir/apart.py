"""Runs torch-mlir's passes in a separate process: some of them divide by zero or abort on unexpected input."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from typing import Any

from buddy.compiler.ops.utils import LoweringError, TransientLoweringError
from buddy.compiler.support.processes.parent_death import describe_exit, start_with_socket
from buddy.compiler.support.processes.worker_process import safe_path

# One op takes about 30 ms, and starting a process some seconds on a busy machine. The limit is below that of callers
# which wait for a whole graph (coverage waits 60 s), so that they can report the op.
SECONDS = 25.0
MAX_KNOWN = 256


def lowered(text: str) -> str:
    """Lowers a module of the torch dialect to linalg on tensors. Results and failures are cached by text.

    Raises `LoweringError` with torch-mlir's message, and `TransientLoweringError` if its process ended or timed out,
    which may not happen again.
    """
    answer = _torch_mlir[-1].answer(text)
    if "ended" in answer:
        raise TransientLoweringError(answer["ended"])
    if "error" in answer:
        raise LoweringError(answer["error"])
    return str(answer["text"])


class _Process:
    """The worker process, started by the first request and restarted after it ends.

    One thread at a time sends requests. An interrupted request ends the process, so that no stale answer is left in the
    pipe; each answer also names its request.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, dict[str, str]] = OrderedDict()
        self._process: Any = None
        self._line: Any = None
        self._asked = 0

    def answer(self, text: str) -> dict[str, str]:
        with self._lock:
            if text not in self._known:
                self._known[text] = self._ask(text)
            self._known.move_to_end(text)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
            return self._known[text]

    def _ask(self, text: str, again: bool = True) -> dict[str, str]:
        try:
            if self._process is None or self._process.poll() is not None:
                self._end(0)
                self._start()
            return self._told(text)
        except OSError:
            code = self._end(5)
            # It may have been killed while idle, which only the next request detects.
            if code == -signal.SIGKILL and again:
                return self._ask(text, again=False)
            return {"ended": f"its passes ended with {describe_exit(code)}"}
        except BaseException:
            self._end(0)
            raise

    def _told(self, text: str) -> dict[str, str]:
        self._asked += 1
        self._process.stdin.write(json.dumps({"id": self._asked, "text": text}).encode() + b"\n")
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            ready = selector.select(SECONDS)
        if not ready:
            self._end(0)
            return {"ended": f"its passes took more than {SECONDS:g} s"}
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {}
        if answer.get("id") != self._asked:
            raise BrokenPipeError("the answer is not to this request")
        return dict(answer)

    def _start(self) -> None:
        command = [sys.executable, *safe_path(), "-m", "buddy.compiler.ops.torch_mlir.worker"]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        self._process, self._line = start_with_socket(command, stdin=pipe, stdout=pipe, stderr=null)

    def let_go(self) -> None:
        """Closes the pipes in a fork: the process belongs to the parent and ends with it."""
        if self._line is not None:
            self._line.close()

    def _end(self, seconds: float) -> int:
        """Ends the process, by a kill after `seconds`, and returns its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            return int(process.wait(seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            return int(process.wait())
        finally:
            process.stdout.close()
            self._line.close()


_torch_mlir = [_Process()]


def _forked() -> None:
    """Resets the state in a fork: it must not share the parent's process, nor a lock that another thread holds."""
    _torch_mlir[-1].let_go()
    _torch_mlir[:] = [_Process()]


os.register_at_fork(after_in_child=_forked)
