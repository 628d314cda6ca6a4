"""What is told of an installation, and that the small program it tries really goes the whole way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def doctor(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "buddy.app.cli", "doctor", *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, env={**os.environ, **variables}
    )


def test_a_whole_installation_is_told_of_and_tried() -> None:
    done = doctor(API_TOKEN="do-not-tell", TERM="xterm-256color")
    assert done.returncode == 0, done.stderr
    assert re.search(r"result +\d+ stages, the same numbers as eager, [\d.]+ s", done.stdout)
    for fact in ("Python     3", "torch 2", "CPU  ", "TERM=xterm-256color", "web  "):
        assert fact in done.stdout
    assert "do-not-tell" not in done.stdout + done.stderr
    assert str(Path.home()) + "/" not in done.stdout


def test_without_an_engine_it_still_tells_what_is_here() -> None:
    done = doctor("--engine", "no-such-program")
    assert done.returncode == 1
    assert "Python     3" in done.stdout
    assert "no-such-program" in done.stderr
    assert "Traceback" not in done.stderr
