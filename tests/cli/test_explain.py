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
    done = cli("explain", str(script), "--json")
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


def test_the_text_has_a_section_for_each_kind(cli: Verb, script: Path) -> None:
    done = cli("explain", str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 graphs, 6 nodes compiled")
    titles = ("Nodes in eager", "Graph breaks", "Guards")
    assert [done.stdout.find(title) > 0 for title in titles] == [True] * 3
    assert "here" not in done.stdout.splitlines(), "the script's own output goes to stderr"


@pytest.mark.full("runs a profile")
def test_a_measurement_gives_shares(cli: Verb, script: Path) -> None:
    done = cli("explain", str(script), "--json", "--measure")
    assert done.returncode == 0, done.stderr
    (eager,) = [row for row in json.loads(done.stdout)["rows"] if row["kind"] == "eager"]
    assert 0 < eager["share"] < 1
