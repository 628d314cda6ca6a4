"""Spreads on disk: used for the same values alone, and a verdict with them is the verdict without them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from buddy.compiler.frontend.capture import capture
from buddy.compiler.runtime.captured import CapturedGraph, Spread
from buddy.compiler.runtime.measure import compare_results, prepare_verdict, torch_threads
from buddy.compiler.runtime.sensitivity import further_spreads, measure_spreads
from buddy.compiler.support import disk_cache
from buddy.compiler.support.disk_cache import SPREADS
from tests.models import WIDTH, Amplifying


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(tmp_path_factory.mktemp("cache")))


class Wide(nn.Module):
    """`Amplifying` behind a layer of more than a mebibyte, which is large enough for its spreads to be saved."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.layers = nn.Linear(8192, WIDTH), Amplifying()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.first(x))


def captured_with(change: float = 0.0, scale: float = 1.0) -> CapturedGraph:
    model = Wide().eval()
    with torch.no_grad():
        model.first.weight[3, 5] += change
        return capture(model, (torch.linspace(-2, 2, 32 * 8192).reshape(32, 8192).cos() * scale,))[0]


def expected_of(captured: CapturedGraph) -> list[torch.Tensor]:
    assert captured.eager is not None
    with torch.no_grad():
        return captured.eager(captured.tensors)


def measured(captured: CapturedGraph) -> tuple[Spread, ...]:
    with torch.no_grad():
        return measure_spreads(captured, expected_of(captured))


def ran_in_double(captured: CapturedGraph) -> bool:
    return bool(captured.exact_results)


def same(one: Spread, other: Spread) -> bool:
    assert one.slices.keys() == other.slices.keys()
    slices = all(torch.equal(rms, other.slices[dim]) for dim, rms in one.slices.items())
    return slices and one._replace(slices={}) == other._replace(slices={})


def test_a_verdict_that_was_prepared_needs_no_run_in_double_precision() -> None:
    prepare_verdict(captured_with(), 1)
    with torch_threads(1):
        known = captured_with()
        assert measured(known)
    assert not ran_in_double(known)


def test_the_same_values_need_one_run_in_double_precision() -> None:
    first, second = captured_with(), captured_with()
    (found,), (known,) = measured(first), measured(second)
    assert ran_in_double(first)
    assert not ran_in_double(second)
    assert found.largest > 0
    assert found.slices
    assert same(found, known)


def test_further_runs_are_compared_with_double_precision_as_before() -> None:
    first, second = captured_with(), captured_with()
    measured(first)
    measured(second)
    with torch.no_grad():
        (one,), (other,) = further_spreads(first, 0), further_spreads(second, 0)
    assert ran_in_double(second)
    assert same(one, other)


@pytest.mark.parametrize("changes", [{"change": 1e-3}, {"scale": 1.5}])
def test_other_weights_or_inputs_are_measured(changes: dict[str, float]) -> None:
    measured(captured_with())
    other = captured_with(**changes)
    measured(other)
    assert ran_in_double(other)


def test_another_version_of_the_compiler_measures_again(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(captured_with())
    monkeypatch.setattr("buddy.compiler.runtime.saved_spreads.source_hash", lambda: "another")
    other = captured_with()
    measured(other)
    assert ran_in_double(other)


def test_what_cannot_be_decoded_is_measured_again() -> None:
    measured(captured_with())
    (key,) = SPREADS.list_keys()
    SPREADS.write(key, b"\xc1")
    other = captured_with()
    (found,) = measured(other)
    assert ran_in_double(other)
    assert found.largest > 0


def test_a_fault_is_found_by_saved_spreads() -> None:
    measured(captured_with())
    captured = captured_with()
    expected = expected_of(captured)
    wrong = expected[0].clone()
    wrong[:, 7] *= 1.1
    with torch.no_grad():
        (report,) = compare_results(captured, [wrong], expected, equal_nan=False)
    assert report.verdict == "mismatch"
    assert report.spread > 0


def test_what_a_script_has_registered_is_measured_again() -> None:
    @torch.library.custom_op("spreads::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled.register_fake(torch.empty_like)
    captured = capture(lambda x: torch.ops.spreads.doubled(x).cumsum(0), (torch.ones(512, 1024),))[0]
    with torch.no_grad():
        measure_spreads(captured, expected_of(captured))
    assert not SPREADS.list_keys()
