"""`buddy-tui why` as a user starts it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

Verb = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_fate_of_a_node_from_capture_to_machine_code(cli: Verb) -> None:
    done = cli("why", "samples/mlp.py", "gelu", "--json")
    assert done.returncode == 0, done.stderr
    ((node,),) = [graph["nodes"] for graph in json.loads(done.stdout)["graphs"]]
    said = {one["who"]: one["text"] for one in node["fate"]}
    assert list(said)[:2] == ["capture", "lowering"]
    assert said["lowering"] == "by linalg in @forward"
    assert "became a polynomial" in said["expand-math-to-polynomials"]
    assert "epilogue" in said["contractions-to-kernels"]
    assert "@matmul" in said["machine code"]
    assert list(said)[-1] == "machine code"


def test_why_a_compilation_ended_at_a_node(cli: Verb) -> None:
    done = cli("why", "samples/mlp.py", "addmm", "--dialect", "tosa", "--disable", "tosa-to-linalg", "--json")
    (graph,) = json.loads(done.stdout)["graphs"]
    assert done.returncode == 1
    assert graph["error"]["node"]
    assert "Traceback" not in done.stderr


def test_a_node_that_is_not_there_is_said(cli: Verb) -> None:
    done = cli("why", "samples/mlp.py", "nothing_7")
    assert done.returncode == 2
    assert "unknown node 'nothing_7'" in done.stderr


def test_a_module_names_its_only_node_and_the_node_is_named_by_it(cli: Verb) -> None:
    done = cli("why", "samples/mlp.py", "act")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("act/gelu.0 · aten.gelu.default · ")
    assert "step" in done.stdout.splitlines()[1]
