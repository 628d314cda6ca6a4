"""The comparison with eager: what counts as equal, what is reported, and that runs leave inputs alone."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch.testing._comparison import default_tolerances

from buddy.app.reports.formatting import load_text as figures_of
from buddy.compiler.frontend.capture import capture
from buddy.compiler.protocol import OutputReport
from buddy.compiler.protocol.artifact import Argument, Artifact, TensorSpec
from buddy.compiler.protocol.run_report import NodeCounts
from buddy.compiler.runtime import run_and_compare
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.compare import TOLERANCES, compare
from buddy.compiler.runtime.measure import compare_results, summarize_times
from buddy.compiler.support.timing import LoadMeter
from tests.runtime.objects import compile_object


def verdict(compiled: torch.Tensor | None, eager: torch.Tensor) -> str:
    return compare("out", compiled, eager).verdict


def test_equal_values_are_ok() -> None:
    x = torch.randn(3, 4)
    report = compare("out", x, x.clone())
    assert (report.verdict, report.max_abs, report.max_rel, report.max_ulp, report.where) == ("ok", 0, 0, 0, "")


def test_the_first_index_beyond_tolerance_is_named() -> None:
    eager = torch.zeros(2, 3, 4)
    compiled = eager.clone()
    compiled[1, 0, 2] = 1e-3
    compiled[1, 2, 2] = 1.0
    report = compare("out", compiled, eager)
    assert (report.verdict, report.where, report.max_abs) == ("mismatch", "[1, 0, 2]", 1.0)


def test_relative_differences_are_of_values_that_are_not_zero() -> None:
    report = compare("out", torch.tensor([1e-7, 2.5]), torch.tensor([0.0, 2.0]))
    assert report.max_rel == 0.25


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_one_rounding_apart_is_one_ulp_and_ok(dtype: torch.dtype) -> None:
    eager = torch.tensor([1.0, -1.0, 0.5], dtype=dtype)
    step = torch.finfo(dtype).eps
    compiled = torch.tensor([1.0 + step, -1.0, 0.5], dtype=dtype)
    report = compare("out", compiled, eager)
    assert (report.verdict, report.max_ulp) == ("ok", 1.0)


def test_ulps_count_through_zero() -> None:
    tiny = torch.tensor([torch.finfo(torch.float32).smallest_normal * 2**-23])
    assert compare("out", -tiny, tiny).max_ulp == 2.0


def test_large_sums_may_differ_by_roundings_of_their_addends() -> None:
    eager = torch.full((8,), 1000.0)
    eager[3] = 0.0
    compiled = eager.clone()
    compiled[3] = 1e-3
    assert verdict(compiled, eager) == "ok"
    assert verdict(compiled / 1000, eager / 1000) == "ok"
    compiled[3] = 1e-1
    assert verdict(compiled, eager) == "mismatch"


def test_a_difference_beyond_the_tolerance_of_small_values_is_a_mismatch() -> None:
    eager = torch.zeros(1)
    assert compare("out", torch.full((1,), 0.9e-5), eager).verdict == "ok"
    assert compare("out", torch.full((1,), 1.5e-5), eager).verdict == "mismatch"


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_integers_must_be_equal(dtype: torch.dtype) -> None:
    eager = torch.tensor([0, 1, 1], dtype=dtype)
    assert verdict(eager.clone(), eager) == "ok"
    assert verdict(torch.tensor([0, 1, 0], dtype=dtype), eager) == "mismatch"


def test_nan_equals_nan_and_infinities_only_themselves() -> None:
    eager = torch.tensor([math.nan, math.inf, -math.inf])
    report = compare("out", eager.clone(), eager, equal_nan=True)
    assert (report.verdict, report.nans, report.eager_nans, report.infs, report.max_abs) == ("ok", 1, 1, 2, 0.0)
    assert verdict(torch.tensor([math.nan, math.inf, math.inf]), eager) == "mismatch"
    assert verdict(torch.tensor([0.0, math.inf, -math.inf]), eager) == "mismatch"
    assert verdict(torch.tensor([1.0]), torch.tensor([math.inf])) == "mismatch"


def test_nan_equals_nan_only_when_asked() -> None:
    eager = torch.tensor([1.0, math.nan, math.nan, 0.0])
    report = compare("out", eager.clone(), eager)
    assert (report.verdict, report.where, report.nans, report.eager_nans) == ("nan", "[1]", 2, 2)
    fewer = torch.tensor([1.0, math.nan, 0.0, 0.0])
    report = compare("out", fewer, eager)
    assert (report.verdict, report.where, report.nans, report.eager_nans) == ("mismatch", "[2]", 1, 2)
    for asked in (False, True):
        assert compare("out", eager, torch.ones(4), equal_nan=asked).verdict == "mismatch"
        assert compare("out", torch.ones(3), torch.ones(3), equal_nan=asked).verdict == "ok"


@pytest.mark.parametrize("dtype", [*TOLERANCES, torch.float8_e5m2])
def test_of_every_kind_of_float_nan_infinities_and_signed_zeros_are_told_apart(dtype: torch.dtype) -> None:
    def of(*values: float) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)

    eager = of(1.0, math.inf, 0.0)
    assert compare("out", of(1.0, math.inf, 0.0), eager).verdict == "ok"
    assert compare("out", of(1.0, -math.inf, 0.0), eager).verdict == "mismatch"
    assert compare("out", of(1.0, 1.0, 0.0), eager).verdict == "mismatch"
    assert compare("out", of(math.nan, math.inf, 0.0), eager).verdict == "mismatch"
    assert compare("out", of(math.nan), of(math.nan)).verdict == "nan"
    assert compare("out", of(math.nan), of(math.nan), equal_nan=True).verdict == "ok"
    assert compare("out", of(1.5), of(1.0)).verdict == "mismatch"
    if not dtype.is_complex:
        report = compare("out", of(1.0, math.inf, -0.0), eager)
        assert (report.verdict, report.zero_signs, report.max_ulp) == ("ok", 1, 0.0)


def test_every_tolerance_says_where_it_is_from() -> None:
    for dtype, found in TOLERANCES.items():
        assert "assert_close" in found.source
        relative, absolute = default_tolerances(dtype)
        assert found.relative == relative
        assert found.absolute == absolute or "absolute: " in found.source
    assert default_tolerances(torch.int64) == (0.0, 0.0)


def test_the_page_has_the_same_tolerances() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "numerics.md").read_text("utf-8")
    rows = re.findall(r"^\| ([\w, ]+) \| ([\d.e-]+) \| ([\d.e-]+) \| (.*) \|$", page, re.MULTILINE)
    told = {name: (float(absolute), float(relative), source.replace("`", ""))
            for names, absolute, relative, source in rows for name in names.split(", ")}  # fmt: skip
    assert told.pop("all others")[:2] == (0.0, 0.0)
    held = {str(dtype).removeprefix("torch."): each for dtype, each in TOLERANCES.items()}
    assert told == {name: (each.absolute, each.relative, each.source) for name, each in held.items()}


def test_nan_where_eager_has_a_number_is_a_mismatch() -> None:
    report = compare("out", torch.tensor([math.nan, 1.0]), torch.ones(2))
    assert (report.verdict, report.where, report.max_abs) == ("mismatch", "[0]", math.inf)


@pytest.mark.parametrize("compiled", [None, torch.ones(3), torch.ones(2, dtype=torch.float64)])
def test_a_result_of_another_kind_is_missing(compiled: torch.Tensor | None) -> None:
    assert verdict(compiled, torch.ones(2)) == "missing"


def test_empty_and_scalar_results() -> None:
    assert verdict(torch.empty(0, 3), torch.empty(0, 3)) == "ok"
    assert verdict(torch.empty(0, 3), torch.empty(3, 0)) == "missing"
    assert verdict(torch.empty(0), torch.empty(0, dtype=torch.float64)) == "missing"
    assert compare("out", torch.tensor(2.0), torch.tensor(1.0)).where == "[]"


def test_the_histogram_counts_every_finite_value() -> None:
    report: OutputReport = compare("out", torch.arange(100.0), torch.arange(100.0))
    assert (sum(report.histogram), report.low, report.high) == (100, 0.0, 99.0)


def test_timings_are_medians_and_quartiles() -> None:
    timing = summarize_times([4.0, 1.0, 3.0, 2.0, 100.0], threads=2)
    assert (timing.median, timing.low, timing.high, timing.runs, timing.threads) == (3.0, 2.0, 4.0, 5, 2)
    assert summarize_times([], 1).runs == 0


DOUBLE = """
func.func @forward(%a: memref<4xf32>, %out: memref<4xf32>) attributes {llvm.emit_c_interface} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  scf.for %i = %c0 to %c4 step %c1 {
    %x = memref.load %a[%i] : memref<4xf32>
    %y = arith.addf %x, %x : f32
    memref.store %y, %TARGET[%i] : memref<4xf32>
  }
  return
}
"""


def _artifact(target: str) -> Artifact:
    spec = TensorSpec((4,), "f32")
    image = compile_object(DOUBLE.replace("TARGET", target), "forward")
    return Artifact("forward", (image,), (Argument(0, spec),), (spec,))


def test_a_run_beside_eager() -> None:
    captured = capture(lambda x: x * 2, (torch.tensor([1.0, 2.0, 3.0, 4.0]),))[0]
    told: list[float] = []
    report = run_and_compare(
        captured, _artifact("out"), repeats=5, threads=1, nodes=NodeCounts(1, 0), compile_seconds=0.5,
        on_progress=lambda _text, done: told.append(done),
    )  # fmt: skip
    assert report.ok
    assert (report.compiled.runs, report.eager.runs, report.nodes_compiled, report.compile_seconds) == (5, 5, 1, 0.5)
    assert report.ratio == pytest.approx(report.compiled.median / report.eager.median)
    assert told[-1] == 1.0


def test_a_run_tells_how_busy_the_machine_was() -> None:
    captured = capture(lambda x: x * 2, (torch.tensor([1.0, 2.0, 3.0, 4.0]),))[0]
    report = run_and_compare(
        captured, _artifact("out"), repeats=2, threads=1, nodes=NodeCounts(1, 0), compile_seconds=0.5
    )
    assert report.load is not None
    assert report.load.cores >= 1
    assert report.load.others == -1.0 or 0.0 <= report.load.others <= os.cpu_count()  # type: ignore[operator]


def test_what_is_computed_meanwhile_by_another_process_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("buddy.compiler.support.timing._MIN_SECONDS", 3600.0)
        assert LoadMeter().load().others == -1.0, "too short to tell"
    if not Path("/proc/stat").exists():
        pytest.skip("the system does not tell how busy it is")
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        begin = time.process_time()
        meter = LoadMeter()
        while time.process_time() < begin + 0.6:
            pass
        found = meter.load()
        other.kill()
    assert found.others >= 0.1
    assert found.disturbs
    assert figures_of(found).startswith(f"machine: load {found.average:.2f} on {found.cores} core")


def test_that_a_process_waited_for_a_core_is_told_of_any_while_however_short() -> None:
    if not Path("/proc/self/schedstat").exists() or not hasattr(os, "sched_setaffinity"):
        pytest.skip("the system does not tell who waits")
    own = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(own)})
        with subprocess.Popen(
            [sys.executable, "-c", "print('on', flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
        ) as other:
            assert other.stdout is not None
            other.stdout.readline()
            meter, begin = LoadMeter(in_this_process=False), time.process_time()
            while time.process_time() < begin + 0.1:
                pass
            found = meter.load()
            other.kill()
    finally:
        os.sched_setaffinity(0, own)
    assert found.others == -1.0
    assert 0.1 < found.waited < 1.0
    assert found.disturbs
    assert f"{found.waited:.0%} of the run waited for a CPU" in figures_of(found)


def test_nan_on_both_sides_is_not_ok_and_neither_is_what_returns_nothing() -> None:
    nan = captured_with(torch.tensor([1.0, math.nan, 3.0, 4.0]))
    told = [
        run_and_compare(
            nan, _artifact("out"), repeats=1, threads=1, nodes=NodeCounts(1, 0), compile_seconds=0.0, equal_nan=asked
        )
        for asked in (False, True)
    ]
    assert [(each.ok, each.wrong, each.word) for each in told] == [(False, True, "NaN"), (True, False, "ok")]
    nothing = replace(told[1], outputs=())
    assert (nothing.ok, nothing.wrong, nothing.word) == (False, False, "not compared")
    assert "no tensor" in nothing.not_compared


def test_results_that_eager_lacks_are_not_passed_over() -> None:
    captured = captured_with(torch.ones(4))
    (one,) = captured.eager(captured.tensors)  # type: ignore[misc]
    assert [each.verdict for each in compare_results(captured, [one, one], [one], False)] == ["ok", "missing"]
    assert [each.verdict for each in compare_results(captured, [], [one], False)] == ["missing"]
    assert [each.verdict for each in compare_results(captured, [one[:2]], [one], False)] == ["missing"]


def captured_with(x: torch.Tensor) -> CapturedGraph:
    return capture(lambda x: x * 2, (x,))[0]


def test_code_that_writes_to_its_input_is_found_out() -> None:
    captured = capture(lambda x: x * 2, (torch.tensor([1.0, 2.0, 3.0, 4.0]),))[0]
    report = run_and_compare(
        captured, _artifact("a"), repeats=1, threads=1, nodes=NodeCounts(1, 0), compile_seconds=0.0
    )
    assert not report.ok
    assert not report.inputs_unchanged
    assert "x" in report.notes[0]
