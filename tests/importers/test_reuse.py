"""A model whose graph is known is not captured again, unless anything about it or its results has changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from buddy.compiler.graph import serialization
from buddy.compiler.importers.sources import load_program

SCRIPT = """\
import json, pathlib
import torch

options = json.loads(pathlib.Path({data!r}).read_text())


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, options.get("out", 3))
        self.norm = torch.nn.LayerNorm(options.get("out", 3), eps=options.get("eps", 1e-5))
        self.register_buffer("shift", torch.arange(float(options.get("out", 3))))

    def forward(self, x, scale=2, other=None):
        if options.get("negated"):
            x = -x
        y = self.norm(self.linear(x)) * scale + self.shift
        return {"hidden": y} if other is None else {"hidden": y, "sum": y + other}


torch.manual_seed(options.get("seed", 0))
model = Model().train(options.get("training", False))
example_inputs = {"x": torch.randn(options.get("rows", 2), 4), "scale": options.get("scale", 2)}
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "options.json"
    path.write_text("{}")
    return path


@pytest.fixture
def source(tmp_path: Path, data: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(SCRIPT.replace("{data!r}", repr(str(data))))
    return str(path)


@pytest.mark.parametrize("options", ["{}", '{"seed": 1}'])
def test_the_graph_of_a_model_is_used_again_with_its_present_weights_and_inputs(
    source: str, data: Path, options: str
) -> None:
    first = load_program(source)
    data.write_text(options)
    second = load_program(source, known_graph=first.known_graph)
    assert second.is_reused
    assert second.known_graph == first.known_graph
    (ours,), (theirs,) = second.graphs, load_program(source).graphs
    assert serialization.to_bytes(ours.graph) == serialization.to_bytes(theirs.graph)
    assert (ours.info, ours.table, ours.code) == (theirs.info, theirs.table, theirs.code)
    assert ours.names_of_results() == theirs.names_of_results() == ("hidden",)
    assert ours.parameters == theirs.parameters
    assert all(map(torch.equal, ours.tensors, theirs.tensors))
    assert all(map(torch.equal, ours.eager(ours.tensors), theirs.eager(theirs.tensors)))


@pytest.mark.parametrize(
    "options",
    [
        '{"out": 5}',
        '{"rows": 3}',
        '{"eps": 0.1}',
        '{"scale": 3}',
        '{"training": true}',
        '{"negated": true}',
    ],
)
def test_a_changed_model_is_captured(source: str, data: Path, options: str) -> None:
    known = load_program(source).known_graph
    assert known
    data.write_text(options)
    program = load_program(source, known_graph=known)
    assert not program.is_reused
    (graph,) = program.graphs
    (fresh,) = load_program(source).graphs
    assert graph.code == fresh.code
    assert program.known_graph != known


IN_MODULE = """
class Model(torch.nn.Module):
    def forward(self, x):
        {}


model = Model()
"""


@pytest.mark.parametrize(
    "text",
    [
        "def model(x):\n    return x + 1\n",
        IN_MODULE.format("return x + torch.tensor([1.0, 2.0])"),
        IN_MODULE.format("return torch.nn.functional.dropout(x)"),
        IN_MODULE.format("return x.add_(1)"),
        IN_MODULE.format("y = x + 1; print(y.sum()); return y * 2"),
    ],
    ids=["function", "constant", "random", "mutation", "break"],
)
def test_what_cannot_be_checked_is_captured_each_time(tmp_path: Path, text: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(f"import torch\n{text}\nexample_inputs = (torch.ones(3, 2),)\n")
    assert load_program(str(path)).known_graph == b""


@pytest.mark.parametrize("known", [b"", b"x", b"\x80"])
def test_a_damaged_description_is_ignored(source: str, known: bytes) -> None:
    assert not load_program(source, known_graph=known).is_reused
