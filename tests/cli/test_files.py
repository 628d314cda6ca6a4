"""Verbs on files that are not scripts: a run without a reference, steps that are switched off, what cannot be asked."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Finished = Callable[..., subprocess.CompletedProcess[str]]

LOOPS = """
func.func @scaled(%x: memref<8xf32>, %y: memref<8xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %k = arith.constant 2.0 : f32
  scf.for %i = %c0 to %c8 step %c1 {
    %u = memref.load %x[%i] : memref<8xf32>
    %p = arith.mulf %k, %u : f32
    memref.store %p, %y[%i] : memref<8xf32>
  }
  return
}
"""


@pytest.fixture
def loops(tmp_path: Path) -> str:
    path = tmp_path / "loops.txt"
    path.write_text(LOOPS)
    return str(path)


@pytest.mark.slow
def test_a_run_without_a_reference_is_not_called_right(cli: Finished, loops: str) -> None:
    done = cli("run", loops, "--json", "--repeats", "2", "--seed", "3")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ok"] is None
    (graph,) = found["graphs"]
    assert (graph["name"], graph["ok"], graph["compared"]) == ("scaled", None, False)
    (output,) = graph["outputs"]
    assert (output["name"], output["verdict"]) == ("arg1_written", "unchecked")
    assert output["deviation"] > 0
    assert graph["eager"]["runs"] == 0


@pytest.mark.slow
def test_steps_that_the_program_is_past_are_off(cli: Finished, loops: str) -> None:
    done = cli("stages", loops, "--json")
    assert done.returncode == 0, done.stderr
    names = [stage["name"] for stage in json.loads(done.stdout)["graphs"][0]["stages"]]
    assert "one-shot-bufferize" not in names
    assert names[-2:] == ["translate", "codegen"]
    assert {"symbol-dce", "plan-memory", "convert-scf-to-cf"} <= set(names)


@pytest.mark.slow
def test_what_needs_a_reference_says_so(cli: Finished, loops: str) -> None:
    done = cli("bisect", loops)
    assert done.returncode != 0
    assert "has no eager program" in done.stderr


@pytest.mark.slow
def test_a_file_of_another_kind_is_one_message(cli: Finished, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"\x7fELF" + bytes(60))
    done = cli("run", str(path))
    assert done.returncode == 2
    assert "is an object file or a library, which contains no program" in done.stderr
    assert "Traceback" not in done.stderr
