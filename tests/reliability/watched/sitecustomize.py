"""Loaded by Python itself in the processes of a soak: at a signal they collect garbage and report their
measurements.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import signal
from collections import Counter

_SHOWN = 60


def _tell(_signal: int, _frame: object) -> None:
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    kinds = Counter(type(thing).__qualname__ for thing in gc.get_objects())
    path = os.path.join(os.environ["BUDDY_WATCHED"], str(os.getpid()))
    with open(f"{path}.part", "w") as file:
        json.dump({"objects": kinds.total(), "kinds": dict(kinds.most_common(_SHOWN)), "in_use": in_use()}, file)
    os.replace(f"{path}.part", path)


if os.environ.get("BUDDY_WATCHED"):
    in_use = runpy.run_path(os.path.join(os.path.dirname(__file__), "in_use.py"))["in_use"]
    # A signal that nothing else uses: LLVM has handlers for both user signals.
    signal.signal(signal.SIGRTMIN + 7, _tell)
