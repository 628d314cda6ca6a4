"""Programs on PyTorch's lazy device: their traces as graphs, and what is said where there is no such device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from buddy.compiler.importers.sources import SourceError, lazy_trace, load_program

SCRIPT = """
import torch
from torch._lazy import ts_backend

ts_backend.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh()).eval()
x = torch.randn(2, 8)
with torch.no_grad():
    expected = model(x) * 2.5
    result = model.to("lazy")(x.to("lazy")) * 2.5
del model
"""


@pytest.mark.skipif(not hasattr(torch._C, "_lazy_ts_backend"), reason="this PyTorch has no Lazy Tensor")
def test_a_trace_is_a_graph_that_gives_what_the_program_does(tmp_path: Path) -> None:
    path = tmp_path / "lazy.py"
    path.write_text(SCRIPT + f"torch.save(expected, {str(tmp_path / 'expected.pt')!r})\n")
    program = load_program(str(path))
    (captured,) = program.graphs
    assert captured.info.name == "result"
    assert any("trace on the lazy device" in note for note in program.notes)
    targets = [row.target for row in captured.info.rows]
    assert any(target.startswith(("aten.addmm", "aten.mm")) for target in targets), targets
    assert "aten.tanh.default" in targets
    assert captured.eager is not None
    assert all(tensor.device.type == "cpu" for tensor in captured.tensors)
    torch.testing.assert_close(captured.eager(captured.tensors)[0], torch.load(tmp_path / "expected.pt"))


def test_where_there_is_no_back_end_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class OfAnother:
        """PyTorch's functions, without those of Lazy Tensor."""

    monkeypatch.setattr(lazy_trace, "is_lazy", lambda value: isinstance(value, torch.Tensor))
    monkeypatch.setattr(lazy_trace.torch, "_C", OfAnother())
    with pytest.raises(SourceError) as caught:
        lazy_trace.trace_lazily({"result": torch.ones(1)})
    assert "has no TorchScript backend of Lazy Tensor" in caught.value.diagnostic.what
    assert "TorchDynamo" in caught.value.diagnostic.todo
