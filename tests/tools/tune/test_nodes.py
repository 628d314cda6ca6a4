"""The error and the time of single products: the same as of the whole program with one product in a precision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.graph_interpreter import compute_results
from buddy.compiler.runtime.measure import error_of_results
from buddy.compiler.support import disk_cache
from buddy.compiler.tools.tune import nodes
from buddy.compiler.tools.tune.processes import MeasuredError, MeasureErrors, TimeNodes
from tests.programs import captured

PAIRS = tuple(
    MeasuredError(node, precision)
    for node in ("mm.0", "mm.1", "mm.2")
    for precision in ("bf16", "bf16x3", "int8-dynamic")
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(tmp_path / "cache"))


def program(scale: float = 1.0) -> CapturedGraph:
    first, second, third = (nn.Parameter(scale * torch.randn(32, 32)) for _ in range(3))
    return captured(lambda x: (torch.relu(x @ first) @ second, x @ third), torch.randn(16, 32))


def request(pairs: tuple[MeasuredError, ...] = PAIRS, seconds: float = 60.0) -> MeasureErrors:
    return MeasureErrors(pairs, seconds)


@pytest.mark.parametrize("kept_bytes", [1 << 30, 0])
def test_errors_are_those_of_the_whole_program(kept_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the values of all nodes are kept or not."""
    monkeypatch.setattr(nodes, "_MAX_STORED_BYTES", kept_bytes)
    graph = program()
    measured = nodes.ErrorMeter(graph).measure(request()).errors
    assert [(one.node, one.precision) for one in measured] == [(one.node, one.precision) for one in PAIRS]
    plain = compute_results(graph.graph, graph.tensors)
    for one in measured:
        changed = compute_results(graph.graph, graph.tensors, (), {one.node: one.precision})
        assert one.error == pytest.approx(error_of_results(changed, plain))
    by_precision = {one.precision: one.error for one in measured if one.node == "mm.0"}
    assert 0 < by_precision["bf16x3"] < 1e-4 < by_precision["bf16"] < by_precision["int8-dynamic"]


def test_a_search_that_was_stopped_goes_on_with_the_errors_on_the_disk() -> None:
    graph = program()
    first = nodes.ErrorMeter(graph).measure(request(seconds=0.0))
    assert (len(first.errors), first.reused) == (1, 0)
    second = nodes.ErrorMeter(graph).measure(request())
    assert (len(second.errors), second.reused) == (len(PAIRS), 1)
    assert nodes.ErrorMeter(graph).measure(request()).reused == len(PAIRS)
    other = nodes.ErrorMeter(program(scale=0.5)).measure(request())
    assert other.reused == 0, "they are of other weights"


def test_an_element_that_is_no_longer_finite_is_an_infinite_error() -> None:
    weights = nn.Parameter(torch.eye(8))
    graph = captured(lambda x: x @ weights, torch.full((8, 8), 3.4e38))
    (one,) = nodes.ErrorMeter(graph).measure(request((MeasuredError("mm.0", "bf16"),))).errors
    assert one.error == float("inf")


def test_products_are_timed_in_the_whole_program() -> None:
    graph = captured(lambda x: torch.relu(x @ x) @ x, torch.randn(96, 96))
    (first, second) = nodes.time_products(graph, TimeNodes(default_recipe(), 60.0, 0.01)).products
    assert (first.node, second.node, first.precision) == ("mm.0", "mm.1", "")
    assert first.kind == second.kind
    assert 1e-6 < first.seconds < 1
