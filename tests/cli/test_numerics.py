"""`buddy-tui numerics`: a planted fault is named and saved as a script; what comes of it is one JSON object."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import RunPython

pytestmark = pytest.mark.slow

MODEL = """\
import torch


def model(x):
    return torch.softmax(torch.nn.functional.gelu(x @ x) + x, -1).log() * x


example_inputs = (torch.linspace(-2, 2, 64).reshape(8, 8),)
"""
FAULT = """\
from buddy.compiler.ops import linalg, scalar
from buddy.compiler.ops.elementwise import lower_expression


@linalg.ops_registry.lowering("GeluOp")
def gelu(node, symbol_table):
    return lower_expression(node, symbol_table, lambda x: 0.5 * x * (1 + scalar.tanh(x)))
"""


def test_a_wrong_lowering_of_a_plug_in_is_named_and_saved(run_warm: RunPython, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "wrong.py").write_text(FAULT)
    words = ["numerics", "model.py:model", "--plugin", "wrong.py", "--json", "--save", "node.py"]
    done = run_warm("-m", "buddy_tui", *words, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    (graph,) = told["graphs"]
    assert (graph["first"]["node"], graph["first"]["by"]) == ("gelu.0", "own")
    assert not told["ok"]
    wrong = [node["node"] for node in graph["nodes"] if node["own"] and node["own"]["share_of_tolerance"] > 1]
    assert wrong == ["gelu.0"]
    assert "gelu" in (tmp_path / "node.py").read_text()
    assert (tmp_path / "node.npz").exists()


def test_what_no_program_can_be_asked_is_refused_in_a_line(run_warm: RunPython, tmp_path: Path) -> None:
    done = run_warm("-m", "buddy_tui", "numerics", "model.py", "--save", "node.txt", cwd=tmp_path)
    assert done.returncode == 2
    assert "give a name that ends in .py" in done.stderr
