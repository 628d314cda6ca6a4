"""Worker process that compiles objects.

A module that cannot be compiled ends the process, and the requester compiles it itself to get the error. It also ends
after `IDLE` seconds without requests, to free its memory.
"""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

from buddy.compiler.codegen.objects.emit import emit, new_context
from buddy.compiler.codegen.objects.workers import CompileObject, ObjectCompiled
from buddy.compiler.support.processes.channel import Channel, serves

IDLE = 60.0


@serves(CompileObject)
def serve(channel: Channel) -> None:
    context = new_context()
    gc.freeze()
    idle = _end_later()
    while (request := channel.receive()) is not None:
        idle.cancel()
        seconds = emit(Path(request.path).read_bytes(), request.level, Path(request.path + ".o"), context)
        channel.send(ObjectCompiled(request.number, seconds))
        idle = _end_later()
    idle.cancel()


def _end_later() -> threading.Timer:
    timer = threading.Timer(IDLE, os._exit, (0,))
    timer.daemon = True
    timer.start()
    return timer
