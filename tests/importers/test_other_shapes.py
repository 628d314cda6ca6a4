"""Programs captured with tensors of other shapes than their scripts'."""

from __future__ import annotations

from pathlib import Path

import pytest

from buddy.compiler.importers.sources import SourceError, load_program

SCRIPT = """
import torch

table = torch.nn.Embedding(10, 8)

def model(ids, scale, *, bias):
    return table(ids) * scale + bias

example_inputs = dict(ids=torch.tensor([[1, 9]]), scale=2.0, bias=torch.ones(8))
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "shapes.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_call_takes_the_shapes_that_are_given_and_an_index_stays_one(script: str) -> None:
    (captured,) = load_program(script, shapes=("ids=3x5",)).graphs
    ids = next(tensor for tensor in captured.tensors if not tensor.is_floating_point())
    assert ids.shape == (3, 5)
    assert set(ids.reshape(-1).tolist()) <= {1, 9}
    assert captured.eager(captured.tensors)[0].shape == (3, 5, 8)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("bias=7", "the model does not accept bias=7: RuntimeError"),
        ("scale=2", "the model has no tensor argument scale; with ids=1x2, bias=8"),
        ("nosuch=2", "the model has no tensor argument nosuch"),
        ("ids=x", "'ids=x' is not a shape"),
    ],
)
def test_shapes_that_cannot_be_are_refused_with_the_reason(script: str, shape: str, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        load_program(script, shapes=(shape,))


def test_a_script_that_calls_its_model_itself_says_what_would_help(tmp_path: Path) -> None:
    path = tmp_path / "calls.py"
    path.write_text("import torch\nmodule = torch.nn.Linear(2, 2)\nmodule(torch.ones(1, 2))\n")
    with pytest.raises(SourceError, match="calls its model itself"):
        load_program(str(path), shapes=("x=2x2",))
