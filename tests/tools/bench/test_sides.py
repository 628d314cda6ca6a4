"""The sides of a benchmark: what they cannot compile as asked is refused, and not measured as something else."""

from __future__ import annotations

import pytest
import torch

from buddy.compiler.tools.bench.plan import TORCHSCRIPT
from buddy.compiler.tools.bench.sides import prepare_side
from buddy.compiler.tools.bench.subjects import Inputs, LoadedModel, SideError


def test_torchscript_refuses_to_quantise_a_function() -> None:
    weight = torch.randn(8, 8)
    inputs: Inputs = ((torch.randn(2, 8),), {})
    loaded = LoadedModel(lambda x: x @ weight, (inputs,))
    with pytest.raises(SideError, match="only modules are quantised"):
        prepare_side(TORCHSCRIPT, loaded, "int8-dynamic", 1)
