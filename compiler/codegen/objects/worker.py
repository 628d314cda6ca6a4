"""Worker process that compiles objects: `python -m buddy.compiler.codegen.objects.worker`.

A request is a line `NUMBER LEVEL PATH`: compile the module in the file `PATH` to the object `PATH.o`. The answer is a
line with the number and the seconds. A module that cannot be compiled ends the process, and the requester compiles it
itself to get the error. It also ends with its input, and after `IDLE` seconds without requests, to free its memory.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path

from buddy.compiler.codegen.objects.emit import emit, new_context

IDLE = 60.0


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    # Output of LLVM must not mix with the answers.
    os.dup2(2, 1)
    context = new_context()
    gc.freeze()
    idle = _end_later()
    for line in sys.stdin:
        idle.cancel()
        number, level, path = line.rstrip("\n").split(" ", 2)
        seconds = emit(Path(path).read_bytes(), int(level), Path(path + ".o"), context)
        answers.write(f"{number} {seconds:.6f}\n")
        answers.flush()
        idle = _end_later()
    idle.cancel()
    return 0


def _end_later() -> threading.Timer:
    timer = threading.Timer(IDLE, os._exit, (0,))
    timer.daemon = True
    timer.start()
    return timer


if __name__ == "__main__":
    sys.exit(main())
