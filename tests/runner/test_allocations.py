"""What a call holds at its peak, and what the run's report says of it."""

from __future__ import annotations

import torch
from torch import nn

from buddy.compiler.runner import run_and_compare
from buddy.compiler.runner.allocations import with_peak
from tests.programs import Line

MEBIBYTE = 1 << 20


def test_the_peak_counts_what_is_held_at_one_time() -> None:
    def action() -> torch.Tensor:
        for _ in range(3):
            torch.empty(MEBIBYTE, dtype=torch.uint8)
        return torch.empty(2 * MEBIBYTE, dtype=torch.uint8)

    result, peak = with_peak(action)
    assert result.numel() == peak == 2 * MEBIBYTE


def test_the_report_tells_peaks_of_both_sides_and_packed_weights_apart() -> None:
    torch.manual_seed(0)
    line = Line(nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64)).eval(), torch.randn(32, 64))
    artifact = line.compile().artifact
    report = run_and_compare(line.program, artifact, repeats=1, threads=1, nodes=(3, 0), compile_seconds=0.0)
    hidden, result = 32 * 1024 * 4, 32 * 64 * 4
    assert report.memory is not None
    assert report.memory.eager >= hidden + result
    assert hidden <= report.memory.compiled <= 1.1 * report.memory.eager
    assert report.memory.packed >= 2 * 64 * 1024 * 4
