"""torch-mlir's passes in a process of their own: some of them divide by zero or abort on what they do not expect."""

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
from buddy.compiler.support.processes.parent_death import describe_exit, start_on_line
from buddy.compiler.support.processes.worker_process import safe_path

# One op takes some 30 ms, and a process some seconds to start on a busy machine. Whoever waits for a whole program, as
# coverage does for 60 s, still learns which op it was.
SECONDS = 25.0
MAX_KNOWN = 256


def lowered(text: str) -> str:
    """A module of torch's dialect as linalg on tensors. What came of a text is remembered, failures too.

    Raises `LoweringError` with what torch-mlir says, and `TransientLoweringError` where its process ended or was
    silent, which the same text need not lead to again.
    """
    answer = _torch_mlir[-1].answer(text)
    if "ended" in answer:
        raise TransientLoweringError(answer["ended"])
    if "error" in answer:
        raise LoweringError(answer["error"])
    return str(answer["text"])


class _Process:
    """The process, started when first asked; where it ends, the next question starts another.

    One thread at a time asks. Whatever interrupts a question ends the process, so that no answer is left in the pipe
    for the next one; each answer also says which question it is to.
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
            # It may have been killed while nobody asked it anything, which only the asking shows.
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
            raise BrokenPipeError("there is no answer to this question")
        return dict(answer)

    def _start(self) -> None:
        command = [sys.executable, *safe_path(), "-m", "buddy.compiler.ops.torch_mlir.worker"]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        self._process, self._line = start_on_line(command, stdin=pipe, stdout=pipe, stderr=null)

    def let_go(self) -> None:
        """In a fork: the process is its parent's, and ends with that one."""
        if self._line is not None:
            self._line.close()

    def _end(self, seconds: float) -> int:
        """How the process ended; it is killed where it has not in `seconds`."""
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
    """A fork shares neither its parent's process, whose answers it would steal, nor a lock that nobody releases."""
    _torch_mlir[-1].let_go()
    _torch_mlir[:] = [_Process()]


os.register_at_fork(after_in_child=_forked)
