"""`buddy-tui export` as a user starts it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Verb = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_program_is_written_and_nothing_is_written_over(cli: Verb, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    words = ("export", "samples/arith_add.py", "-o", str(folder), "--kind", "object,mlir", "--kind", "asm", "--json")
    done = cli(*words, "--target", "riscv64", "--stage", "canonicalize#1")
    assert not done.returncode, done.stderr
    told = json.loads(done.stdout)
    assert told["folder"] == str(folder)
    assert told["files"] == {name: (folder / name).stat().st_size for name in told["files"]}
    names = {"arith_add.o", "arith_add.s", "arith_add.h", "arith_add.c", "arith_add.mlir", "main.c", "README.md"}
    assert names <= set(told["files"])
    assert "fadd.s" in (folder / "arith_add.s").read_text()
    assert "--target riscv64" in (folder / "README.md").read_text()
    again = cli("export", "samples/arith_add.py", "-o", str(folder), "--kind", "asm")
    assert again.returncode == 1
    assert "holds arith_add.s" in again.stderr
    assert "--force" in again.stderr


def test_what_cannot_be_exported_is_one_message(cli: Verb, tmp_path: Path) -> None:
    words = ("export", "samples/arith_add.py", "-o", str(tmp_path / "out"))
    done = cli(*words, "--kind", "exe")
    assert done.returncode == 2
    assert "unknown kind 'exe'" in done.stderr
    done = cli(*words, "--target", "vax")
    assert done.returncode == 1
    assert "unknown target 'vax'" in done.stderr
    done = cli(*words, "--eager", "add*")
    assert done.returncode == 1
    assert "nodes run in eager PyTorch" in done.stderr
    assert not any("Traceback" in text for text in (done.stdout, done.stderr))
    assert not (tmp_path / "out").exists()
