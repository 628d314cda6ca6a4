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
    said = {remark["step"]: remark["text"] for remark in node["remarks"]}
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
    assert done.stdout.splitlines()[1].startswith("act/gelu.0 · aten.gelu.default · ")
    assert "step" in done.stdout.splitlines()[2]


def test_the_text_names_the_graph_of_each_node(cli: Verb) -> None:
    done = cli("why", "samples/two_models.py", "add*")
    assert done.returncode == 0, done.stderr
    starts = [block.splitlines()[0] for block in done.stdout.split("\n\n")]
    assert [start.split(",")[0] for start in starts if start.startswith("graph ")] == ["graph 0", "graph 2"]
    assert len(starts) == done.stdout.count("\nstep ")


def test_a_note_says_why_there_are_no_remarks_of_llvm(cli: Verb) -> None:
    done = cli("why", "samples/arith_add.py", "add", "--preset", "gpu")
    (note,) = [line for line in done.stderr.splitlines() if "LLVM's remarks are not available" in line]
    assert len(note.partition("not available: ")[2]) > len("a separate process"), note
