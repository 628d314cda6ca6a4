"""How much memory the processes of an engine may take, and what becomes of one that asks for more."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from buddy.compiler.support.processes.lifetime import MIN_LIMIT_BYTES, group_limits, machine_memory, memory_limit

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
    assert memory_limit(said, machine) == cap


@pytest.mark.parametrize("said", ["much", "-1", "0.2", "nan", "inf"])
def test_what_is_no_cap_is_told_and_not_used(said: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert memory_limit(said, 10 * GIB) == 9 * GIB
    assert f"BUDDY_MEMORY={said} is ignored" in caplog.text


def test_this_machine_has_memory() -> None:
    assert machine_memory() > MIN_LIMIT_BYTES


@pytest.mark.parametrize(
    ("own", "limits", "found"),
    [
        ("0::/job/step\n", {"job/step/memory.max": "max", "job/memory.max": "300", "memory.max": "900"}, [300, 900]),
        ("0::/docker/1\n", {"memory.max": "500"}, [500]),
        ("1:cpu:/a\n4:memory:/a/b\n0::/\n", {"memory/a/memory.limit_in_bytes": "7", "cpu/a/memory.max": "1"}, [7]),
        ("", {"memory.max": "5"}, []),
    ],
)
def test_control_groups_limit_all_that_is_in_them(
    own: str, limits: dict[str, str], found: list[int], tmp_path: Path
) -> None:
    for name, text in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(own)
    assert list(group_limits(tmp_path / "own", tmp_path)) == found
    assert list(group_limits(tmp_path / "none", tmp_path)) == []


def test_a_process_at_its_cap_cannot_allocate_and_goes_before_the_workbench() -> None:
    code = """
import pathlib, subprocess, sys
from buddy.compiler.support.processes.lifetime import limit_memory
limit_memory()
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
    score = max(300, int(Path("/proc/self/oom_score_adj").read_text()))
    assert found.stdout.split("\n")[:3] == [str(score), "no more", "1"], found.stderr


def test_a_lower_limit_and_a_higher_score_stay() -> None:
    code = """
import pathlib, resource
from buddy.compiler.support.processes.lifetime import limit_memory
score = pathlib.Path("/proc/self/oom_score_adj")
score.write_text("900")
resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, resource.getrlimit(resource.RLIMIT_DATA)[1]))
limit_memory()
print(resource.getrlimit(resource.RLIMIT_DATA)[0], score.read_text())
"""
    environment = {**os.environ, "BUDDY_MEMORY": "4"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert found.stdout.split() == [str(3 << 30), "900"], found.stderr
