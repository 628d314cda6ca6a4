"""`buddy-tui explain` as a user starts it: what is not compiled, and why."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Verb = Callable[..., "subprocess.CompletedProcess[str]"]
SCRIPT = """\
import torch

@torch.library.custom_op("explained::my_scale", mutates_args=())
def my_scale(x: torch.Tensor) -> torch.Tensor:
    return x * 2.0

@my_scale.register_fake
def _(x):
    return torch.empty_like(x)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x, n):
        x = my_scale(x) * n
        print("here")
        if x.sum() > 0:
            x = x + 1
        return self.head(x)

net = torch.compile(Net().eval(), backend="buddy")
with torch.no_grad():
    net(torch.ones(2, 8), 3)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(SCRIPT)
    return path


def test_nodes_in_eager_breaks_and_guards(cli: Verb, script: Path) -> None:
    done = cli("explain", str(script), "--json", "--only", "fallbacks")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["summary"] == "3 graphs, 6 nodes compiled, 1 in eager (my_scale), 2 graph breaks"
    (eager,) = [row for row in found["rows"] if row["kind"] == "eager"]
    assert (eager["node"], eager["line"], eager["bytes"]) == ("my_scale.0", f"{script}:17", 64)
    assert "has no op class" in eager["reason"]
    breaks = [(row["graph"], row["line"], row["fix"]) for row in found["rows"] if row["kind"] == "break"]
    assert [place[:2] for place in breaks] == [(0, f"{script}:18"), (1, f"{script}:19")]
    assert "print" in breaks[0][2]
    assert "torch.where" in breaks[1][2]
    guards = {row["name"]: row.get("line", "") for row in found["rows"] if row["kind"] == "guard"}
    assert guards["n == 3"] == f"{script}:17"
    assert guards["x is float32 [2, 8]"] == ""
    assert not any("weight" in condition for condition in guards)
    assert "dynamo" not in found


def test_the_text_has_a_section_for_each_kind(cli: Verb, script: Path) -> None:
    done = cli("explain", str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 graphs, 6 nodes compiled")
    titles = ("Nodes in eager", "Graph breaks", "Guards", "3 functions compiled 3 times")
    assert [done.stdout.find(title) > 0 for title in titles] == [True] * 4
    assert "here" not in done.stdout.splitlines(), "the script's own output goes to stderr"


@pytest.mark.full("runs a profile")
def test_a_measurement_gives_shares(cli: Verb, script: Path) -> None:
    done = cli("explain", str(script), "--json", "--measure")
    assert done.returncode == 0, done.stderr
    (eager,) = [row for row in json.loads(done.stdout)["rows"] if row["kind"] == "eager"]
    assert 0 < eager["share"] < 1


RECOMPILING = """\
import torch

def scale(x, n):
    return x * n

f = torch.compile(scale, backend="eager", dynamic=False)
f(torch.ones(2, 4), 2)
f(torch.ones(2, 8), 2)
f(torch.ones(2, 8), 3)
"""
TRACE = Path(__file__).parents[1] / "tools" / "explain" / "data" / "trace"


def test_recompilations_have_the_values_before_and_after(cli: Verb, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text(RECOMPILING)
    done = cli("explain", str(script), "--only", "recompilations")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 function compiled 3 times in ")
    assert f"scale at {script}:3: 3 compilations" in done.stdout
    assert "2: failed guard size(1) of x is 4, x: [2, 4] -> [2, 8] (read at net.py:4, called at net.py:8" in done.stdout
    assert "3: failed guard n == 2, n: 2 -> 3 (read at net.py:4, called at net.py:9" in done.stdout
    assert "fix: make n a tensor" in done.stdout


def test_a_script_that_raises_is_reported_up_to_its_error(cli: Verb, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text(f"{RECOMPILING}raise ValueError('too bad')\n")
    done = cli("explain", str(script), "--only", "recompilations", "--json")
    assert done.returncode == 1
    assert f"error: {script} raised ValueError: too bad\n  where: {script}:10" in done.stderr
    found = json.loads(done.stdout)["dynamo"]
    assert found["summary"].endswith("2 recompilations, 0 graph breaks")
    (_, second, _) = found["compiles"]
    failure = second["failures"][0]
    assert (failure["kind"], failure["before"], failure["after"]) == ("size", "[2, 4]", "[2, 8]")


def test_a_script_without_compiled_functions_is_said_to_have_none(cli: Verb, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text("import torch\nprint(torch.ones(2))\n")
    done = cli("explain", str(script), "--only", "recompilations")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "no function was compiled: the script calls nothing that torch.compile returned\n"


def test_the_trace_of_another_run_is_explained(cli: Verb, tmp_path: Path) -> None:
    done = cli("explain", "--trace", str(TRACE))
    assert done.returncode == 0, done.stderr
    assert "2: failed guard SCALE == 3, SCALE: 3 -> 4" in done.stdout
    assert "recompile_limit reached by step" in done.stdout.splitlines()[0]
    done = cli("explain", "--trace", str(TRACE), "--json")
    assert json.loads(done.stdout)["limits"][0]["limit"] == 2
    done = cli("explain", "--trace", str(tmp_path))
    assert done.returncode == 1
    assert "holds no trace" in done.stderr
    assert "TORCH_TRACE=DIR" in done.stderr


def test_a_source_or_a_trace_is_required(cli: Verb, tmp_path: Path) -> None:
    done = cli("explain")
    assert done.returncode == 2
    assert "SOURCE or --trace PATH is required" in done.stderr
    assert cli("explain", "net.py", "--trace", str(tmp_path)).returncode == 2
