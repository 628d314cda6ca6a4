"""Folders for a moment: named after their process, and swept when that has been killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from buddy.compiler.support.files import remove_leftovers, scratch_folder

LEAVES = """
import os, signal
from buddy.compiler.support.files import scratch_folder
kept = scratch_folder("test")
print(kept.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_a_folder_and_the_next_one_removes_it(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    left = subprocess.run([sys.executable, "-c", LEAVES], env=environment, capture_output=True, text=True)
    assert left.returncode == -signal.SIGKILL
    folder = Path(left.stdout.strip())
    assert folder.parent == tmp_path
    assert folder.is_dir()
    remove_leftovers(tmp_path, "other")
    assert folder.is_dir()
    remove_leftovers(tmp_path, "test")
    assert not folder.exists()


def test_what_lives_and_what_is_named_otherwise_stays(tmp_path: Path) -> None:
    mine, others = tmp_path / f"buddy-test-{os.getpid()}-abc", tmp_path / "buddy-test-notes"
    for folder in (mine, others):
        folder.mkdir()
    remove_leftovers(tmp_path, "test")
    assert mine.is_dir()
    assert others.is_dir()
    with scratch_folder("test") as made:
        assert f"-{os.getpid()}-" in made
    assert not Path(made).exists()


FULL = """
import resource, tempfile
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    tempfile.gettempdir()
except FileNotFoundError:
    from buddy.compiler.support.files import ensure_temporary_folder
    ensure_temporary_folder()
    print(tempfile.gettempdir())
"""


def test_a_process_that_begins_on_a_full_disk_has_a_temporary_folder(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", FULL], env=environment, capture_output=True, text=True).stdout
    assert said == f"{tmp_path}\n"
