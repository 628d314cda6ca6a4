"""The sides of a benchmark: what they cannot compile as asked is refused, and not measured as something else."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from buddy.compiler.frontend import backend
from buddy.compiler.tools.bench.plan import OURS, TORCHSCRIPT
from buddy.compiler.tools.bench.sides import prepare_side
from buddy.compiler.tools.bench.subjects import Inputs, LoadedModel, SideError


def test_torchscript_refuses_to_quantise_a_function() -> None:
    weight = torch.randn(8, 8)
    inputs: Inputs = ((torch.randn(2, 8),), {})
    loaded = LoadedModel(lambda x: x @ weight, (inputs,))
    with pytest.raises(SideError, match="only modules are quantised"):
        prepare_side(TORCHSCRIPT, loaded, "int8-dynamic", 1)


def test_compile_times_of_training_count_the_backward_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: dict[str, float] = {}
    compile_aten = backend.compile_aten

    def timed(aten: Any, settings: Any) -> Any:
        start = time.perf_counter()
        try:
            return compile_aten(aten, settings)
        finally:
            seconds.setdefault(aten.kind, time.perf_counter() - start)

    monkeypatch.setattr(backend, "compile_aten", timed)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters())
    loaded = LoadedModel(model, (((torch.randn(2, 8),), {}),), "training", lambda y: y.square().mean(), optimizer)
    prepared = prepare_side(OURS, loaded, "f32", 1)
    assert seconds.keys() == {"forward", "backward"}
    assert prepared.aten_seconds >= sum(seconds.values())
    assert prepared.compile_seconds >= prepared.aten_seconds
