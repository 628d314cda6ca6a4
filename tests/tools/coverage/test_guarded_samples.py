"""Samples in guarded memory: sound operators pass, and code that reads beyond its input is a crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

MODULE = "tests.tools.coverage.guarded_samples"
# Reads the byte behind each input, as a kernel would that rounds sizes up to whole vectors.
READS_BEHIND = """
import ctypes, runpy, sys
from buddy.compiler.runtime import LoadedProgram
call = LoadedProgram.__call__
def reads_behind(self, tensors, numbers=()):
    for tensor in tensors:
        ctypes.c_char.from_address(tensor.data_ptr() + tensor.nbytes).value
    return call(self, tensors, numbers)
LoadedProgram.__call__ = reads_behind
sys.argv = ["guarded_samples", *sys.argv[1:]]
runpy.run_module("tests.tools.coverage.guarded_samples", run_name="__main__")
"""


def test_samples_of_sound_operators_are_right_in_guarded_memory(run_python: Callable[..., Any], tmp_path: Path) -> None:
    output = tmp_path / "guarded.jsonl"
    words = ["--only", "cumsum,t", "--dtypes", "float32,complex64", "-o", str(output)]
    done = run_python("-m", MODULE, *words, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert {(one["op"], one["outcome"]) for one in found} == {(op, "compiled") for op in ("cumsum", "t")}
    assert done.stdout.strip() == f"{len(found)} compiled"


def test_a_read_behind_an_input_is_a_crash(run_python: Callable[..., Any]) -> None:
    done = run_python("-c", READS_BEHIND, "--only", "neg", "--dtypes", "int8", timeout=550)
    assert done.returncode == 1
    assert "SIGSEGV" in done.stdout
    assert done.stdout.strip().endswith("1 crash")
