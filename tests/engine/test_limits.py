"""How much memory the processes of an engine may take, and what becomes of one that asks for more."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from buddy.compiler.engine.limits import LEAST, machine_memory, memory_cap

GIB = 2**30


@pytest.mark.parametrize(
    ("said", "machine", "cap"),
    [
        ("", 10 * GIB, 9 * GIB),
        ("", GIB, 0),
        ("", 0, 0),
        ("2.5", 10 * GIB, 5 * GIB // 2),
        ("64", 10 * GIB, 64 * GIB),
        ("0", 10 * GIB, 0),
    ],
)
def test_the_cap_is_what_was_said_or_nine_tenths_of_the_machine(said: str, machine: int, cap: int) -> None:
    assert memory_cap(said, machine) == cap


@pytest.mark.parametrize("said", ["much", "-1", "0.2", "nan", "inf"])
def test_what_is_no_cap_is_told_and_not_used(said: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert memory_cap(said, 10 * GIB) == 9 * GIB
    assert f"BUDDY_MEMORY={said} is not used" in caplog.text


def test_this_machine_has_memory() -> None:
    assert machine_memory() > LEAST


def test_a_process_at_its_cap_cannot_allocate_and_goes_before_the_workbench() -> None:
    code = """
import pathlib, subprocess, sys
from buddy.compiler.engine.limits import take_limits
take_limits()
print(pathlib.Path("/proc/self/oom_score_adj").read_text().strip())
try:
    bytearray(2 << 30)
except MemoryError:
    print("no more")
# What it starts is under the same cap.
print(subprocess.run([sys.executable, "-c", "bytearray(2 << 30)"], stderr=subprocess.PIPE).returncode)
"""
    environment = {**os.environ, "BUDDY_MEMORY": "1"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert found.stdout.split("\n")[:3] == ["300", "no more", "1"], found.stderr
