"""What a call holds at its peak, and what the run's report says of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.run_report import NodeCounts
from buddy.compiler.runtime import run_and_compare
from buddy.compiler.runtime.measure import measure_peak
from tests.programs import Line

MEBIBYTE = 1 << 20


class Layer(nn.Module):
    """A transformer's layer with its norms behind the sums."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = self.first(x + self.out(mixed))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


def transformer() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer(128, 4) for _ in range(4)), nn.Linear(128, 1000)).eval(), torch.randn(1, 64, 128)


def convolutions() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 16 * 16, 10)).eval(), torch.randn(1, 3, 32, 32)


def test_the_peak_counts_what_is_held_at_one_time() -> None:
    def action() -> torch.Tensor:
        for _ in range(3):
            torch.empty(MEBIBYTE, dtype=torch.uint8)
        return torch.empty(2 * MEBIBYTE, dtype=torch.uint8)

    result, peak = measure_peak(action)
    assert result.numel() == peak == 2 * MEBIBYTE


def test_the_report_tells_peaks_of_both_sides_and_packed_weights_apart() -> None:
    torch.manual_seed(0)
    line = Line(nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64)).eval(), torch.randn(32, 64))
    artifact = line.compile().artifact
    report = run_and_compare(line.program, artifact, repeats=1, threads=1, nodes=NodeCounts(3, 0), compile_seconds=0.0)
    hidden, result = 32 * 1024 * 4, 32 * 64 * 4
    assert report.memory is not None
    assert report.memory.eager >= hidden + result
    assert hidden <= report.memory.compiled <= 1.1 * report.memory.eager
    assert report.memory.packed >= 2 * 64 * 1024 * 4


@pytest.mark.parametrize("model", [transformer, convolutions])
@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_code_needs_at_most_a_tenth_more_than_eager(model: Any, threads: int) -> None:
    line = Line(*model())
    artifact = line.compile(msgspec.structs.replace(default_recipe(), threads=threads)).artifact
    report = run_and_compare(
        line.program, artifact, repeats=0, threads=threads, nodes=NodeCounts(1, 0), compile_seconds=0.0
    )
    assert report.ok
    assert report.memory is not None
    assert report.memory.compiled <= 1.1 * report.memory.eager


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_allocated_during_a_call(threads: int) -> None:
    line = Line(*transformer())
    line.compile(msgspec.structs.replace(default_recipe(), threads=threads))
    assert "memref.alloc" not in line.text("plan-memory")
    assert "@malloc" not in line.text("translate")
