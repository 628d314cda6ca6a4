"""`extract` and `bisect` as a user starts them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Verb = Callable[..., "subprocess.CompletedProcess[str]"]
PLUGIN = """\
from dataclasses import dataclass
from buddy.compiler.mlir.walk import find_ops
from buddy.compiler.passes.base import MlirPass, register


@register
@dataclass(frozen=True)
class Flip(MlirPass):
    name = "cse"
    summary = "flips signs"

    def run(self, root, context):
        for op in find_ops(root, "arith.subf")[-1:]:
            left, right = op.operands
            op.operands[0], op.operands[1] = right, left
"""
SCRIPT = "import torch\n\nmodel, example_inputs = lambda x, y: (x - y) * 2, (torch.ones(4, 6), torch.rand(4, 6))\n"

TWO_GRAPHS = """\
import torch

torch.compile(lambda x: x.exp() + 1)(torch.ones(4))
torch.compile(lambda x: x.sin() * 2)(torch.ones(4))
"""


@pytest.mark.slow
def test_a_node_is_extracted_run_and_saved_and_the_script_is_a_source(cli: Verb, tmp_path: Path) -> None:
    done = cli("extract", "samples/mlp.py", "gelu", "-o", str(tmp_path / "part.py"), "--json", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ok"]
    assert found["extracted"] == ["act/gelu.0"]
    assert found["files"] == [str(tmp_path / "part.py"), str(tmp_path / "part.npz")]
    again = cli("run", str(tmp_path / "part.py"), "--json", "--repeats", "1")
    assert json.loads(again.stdout)["ok"], again.stderr


@pytest.mark.slow
def test_of_several_graphs_the_one_with_the_node_is_taken(cli: Verb, tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO_GRAPHS)
    done = cli("extract", str(script), "sin", "--json", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["extracted"] == ["sin.0"]
    assert "graph 1 of 0 (" in done.stderr


def test_a_node_that_is_none_is_refused(cli: Verb) -> None:
    done = cli("extract", "samples/addmm.py", "admm")
    assert done.returncode == 1
    assert "did you mean addmm" in done.stderr
    assert cli("extract", "samples/addmm.py", "addmm", "-o", "part.txt").returncode == 2


@pytest.mark.slow
def test_a_pass_at_fault_is_found_and_the_recipe_that_is_written_is_right(cli: Verb, tmp_path: Path) -> None:
    plugin, script, folder = tmp_path / "flip.py", tmp_path / "script.py", tmp_path / "out"
    plugin.write_text(PLUGIN)
    script.write_text(SCRIPT)
    done = cli("bisect", str(script), "--plugin", str(plugin), "-o", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["told"] == "cse (flip.py) is at fault"
    assert found["confirmed"]
    assert found["nodes"] == ["sub.0"]
    assert {path.name for path in folder.iterdir()} == {"right.toml", "reduced.mlir", "reduced.after.mlir"}
    right = cli("run", str(script), "--recipe", str(folder / "right.toml"), "--trust", "--json", "--repeats", "1")
    assert json.loads(right.stdout)["ok"], right.stderr


def test_a_program_that_is_right_has_nothing_at_fault(cli: Verb) -> None:
    done = cli("bisect", "samples/arith_add.py")
    assert done.returncode == 0, done.stderr
    assert "nothing to search for" in done.stdout
