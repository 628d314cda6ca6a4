"""`buddy-tui trace` as a user starts it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Verb = Callable[..., "subprocess.CompletedProcess[str]"]
TWO_GRAPHS = """\
import torch

torch.compile(lambda x: x.exp() + 1)(torch.ones(4))
torch.compile(lambda x: x.sin() * 2)(torch.ones(4))
"""


def test_a_node_is_followed_through_every_stage_and_a_line_leads_back(cli: Verb) -> None:
    done = cli("trace", "samples/mlp.py", "gelu", "--json")
    assert done.returncode == 0, done.stderr
    (graph,) = json.loads(done.stdout)["graphs"]
    (node,) = graph["nodes"]
    assert (node["name"], node["module"]) == ("gelu", "act")
    assert "mlp.py:" in node["location"]
    stages = {stage["stage"]: stage for stage in node["stages"]}
    assert all(stage["own"] for stage in node["stages"])
    assert "aten.gelu" in stages["fx"]["lines"][0]["text"]
    assert any("math.erf" in line["text"] for line in stages["lower"]["lines"])
    found = next(line for line in stages["codegen"]["lines"] if not line["derived"])
    done = cli("trace", "samples/mlp.py", f"asm:{found['line']}", "--json")
    (graph,) = json.loads(done.stdout)["graphs"]
    assert "gelu" in {node["name"] for node in graph["nodes"]}


def test_a_python_line_leads_to_its_nodes(cli: Verb) -> None:
    with open("samples/mlp.py", encoding="utf-8") as file:
        number = next(k for k, line in enumerate(file, 1) if "self.act(" in line)
    done = cli("trace", "samples/mlp.py", f"mlp.py:{number}")
    assert done.returncode == 0, done.stderr
    assert "aten.gelu.default" in done.stdout


def test_a_node_of_a_later_graph_is_found(cli: Verb, tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO_GRAPHS)
    done = cli("trace", str(script), "sin", "--json")
    assert done.returncode == 0, done.stderr
    (graph,) = json.loads(done.stdout)["graphs"]
    assert [node["name"] for node in graph["nodes"]] == ["sin"]
    assert graph["graph"] == 1


def test_coverage_of_every_stage(cli: Verb) -> None:
    done = cli("trace", "samples/mlp.py", "--coverage", "--json")
    (graph,) = json.loads(done.stdout)["graphs"]
    assert {stage["of"] for stage in graph["coverage"]} == {"ops", "bytes"}
    for stage in graph["coverage"]:
        assert stage["nowhere"] == 0, stage
        assert stage["direct"] > 0
    assert sum(stage["lost"] for stage in graph["coverage"] if stage["stage"] == "canonicalize") > 0


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nothing_7", "unknown node 'nothing_7'"),
        ("asm:999999", "has lines 1 to"),
        ("nowhere:3", "unknown stage 'nowhere'"),
        ("mlp.py:1", "no node of graph 0 comes from"),
    ],
)
def test_what_is_not_there_is_said(cli: Verb, target: str, message: str) -> None:
    done = cli("trace", "samples/mlp.py", target)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


SMALL = """\
import torch

def model(x):
    return torch.nn.functional.gelu(x)

example_inputs = (torch.ones({shape}),)
"""


def test_a_node_stands_beside_torch_mlirs(cli: Verb, tmp_path: Path) -> None:
    script = tmp_path / "small.py"
    script.write_text(SMALL.format(shape="4, 3"))
    done = cli("trace", str(script), "gelu", "--beside", "torch-mlir-tosa", "--json")
    assert done.returncode == 0, done.stderr
    (graph,) = json.loads(done.stdout)["graphs"]
    ours, theirs = graph["pipelines"]
    assert (ours["pipeline"], theirs["pipeline"]) == ("this compiler", "torch-mlir to tosa")
    ((toplevel,), phases) = (pipeline["nodes"][0]["stages"] for pipeline in (ours, theirs))
    assert any("math.erf" in line["text"] for line in toplevel["lines"])
    assert [stage["phase"] for stage in phases] == ["imported", "torch-backend", "tosa"]
    for stage, op in zip(phases, ("torch.aten.gelu", "torch.aten.gelu", "tosa.erf"), strict=True):
        assert any(op in line["text"] for line in stage["lines"])


def test_what_torch_mlir_refuses_is_said_beside_what_there_is(cli: Verb, tmp_path: Path) -> None:
    script = tmp_path / "small.py"
    script.write_text(SMALL.format(shape="0, 3"))
    done = cli("trace", str(script), "gelu", "--beside", "torch-mlir")
    assert done.returncode == 1
    assert "torch-mlir to linalg: an input has no elements" in done.stderr
    assert "linalg.generic" in done.stdout
    assert cli("trace", str(script), "--beside", "torch-mlir").returncode == 2
