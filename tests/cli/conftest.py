"""A verb of the command line as a user starts it: in a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Finished = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def verb(run_python: Finished) -> Finished:
    """`verb("run", "samples/addmm.py")`: the finished process of `buddy-tui run samples/addmm.py`."""
    return lambda *words: run_python("-m", "buddy.app.cli", *words)
