"""What `--log` writes: what the engine does, and nothing of what a program prints, is given or computes with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import os, sys
import torch
print("printed-secret", os.environ["SOME_TOKEN"], sys.argv[1])
def model(x):
    return x * 31.4159  # a-constant-of-mine
example_inputs = (torch.full((3,), 27.1828),)
"""
SECRETS = ("printed-secret", "token-of-mine", "argument-of-mine", "a-constant-of-mine", "27.18", "31.41", "85.39")


@pytest.mark.slow
def test_a_log_holds_no_printout_argument_input_or_result_unless_every_detail_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    for level, printed in (("info", False), ("debug", True)):
        log = tmp_path / level
        words = ["run", str(tmp_path / "script.py"), "--repeats", "1", "--log", str(log), "--log-level", level]
        done = subprocess.run(
            [sys.executable, "-m", "buddy.app.cli", *words, "--", "--key=argument-of-mine"], cwd=ROOT,
            env={**os.environ, "SOME_TOKEN": "token-of-mine"}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        text = log.read_text("utf-8")
        assert "worker" in text, "something is logged"
        assert [secret in text for secret in SECRETS] == [printed] * 3 + [False] * (len(SECRETS) - 3)
        assert log.stat().st_mode & 0o077 == 0
