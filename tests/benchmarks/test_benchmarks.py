"""The benchmarks run, say what they measured as JSON, and measure what they claim to."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from buddy.compiler.tools.bench import worker
from tests.conftest import RunPython

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def timing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`support.timing`, as the scripts of the folder import it."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import support.timing

    yield support.timing
    for name in [name for name in sys.modules if name.partition(".")[0] == "support"]:
        del sys.modules[name]


def test_calls_are_timed_in_turn_and_no_call_always_comes_first(timing: Any) -> None:
    order: list[str] = []
    seconds = timing.in_turn({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert order == list("ababbaab")
    assert [len(found) for found in seconds.values()] == [3, 3]


def test_a_call_takes_what_it_takes(timing: Any) -> None:
    start = time.perf_counter()
    found = timing.seconds_of(lambda: time.sleep(0.02))
    assert 0.02 <= found <= time.perf_counter() - start


def test_ratios_are_taken_pair_by_pair(timing: Any) -> None:
    """A slow minute doubles both times of a pair and leaves their ratio."""
    assert timing.summarize_ratios([1.0, 2.0, 10.0], [2.0, 4.0, 20.0]) == {
        "median": 0.5,
        "low": 0.5,
        "high": 0.5,
        "runs": 3,
    }


def test_one_value_is_its_own_spread(timing: Any) -> None:
    assert timing.median_and_quartiles([0.123456]) == {"median": 0.1235, "low": 0.1235, "high": 0.1235, "runs": 1}


def results(run_python: RunPython, script: str, *options: str) -> dict[str, Any]:
    done = run_python(f"benchmarks/{script}.py", "--tiny", "--repeats", "1", *options, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip()
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.full("a benchmark script, of which matmul.py and kernels.py always run")
def test_lines_of_inductor_lead_to_nodes(run_python: RunPython) -> None:
    (found,) = results(run_python, "inductor_lines", "bert")["models"].values()
    for part in ("kernels", "wrapper"):
        assert found[part]["with_nodes"] >= 0.95 * found[part]["lines"] > 0
    assert found["pairs"] >= found["fused"] > 0


@pytest.mark.slow
@pytest.mark.full("a benchmark script, of which matmul.py and kernels.py always run")
def test_bert_is_compiled_as_a_whole_and_agrees_with_eager(run_python: RunPython) -> None:
    found = results(run_python, "bert", "--runs", "1")
    assert found["nodes"]["eager"] == 0
    assert found["met"]["max_abs"]
    ends = found["seconds_from_a_warm_engine"]
    assert 0 < ends["captured"] < ends["compiled"] < ends["first_result"]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "key"), [("matmul", "sizes"), ("kernels", "cases")])
def test_products_are_measured_beside_numpy_and_torch(run_python: RunPython, script: str, key: str) -> None:
    for figures in results(run_python, script)[key].values():
        assert set(figures["gflops"]) == {"ours", "numpy", "torch"}
        assert figures["max_abs"] < 1e-4


@pytest.mark.slow
@pytest.mark.full("a benchmark script, of which matmul.py and kernels.py always run")
def test_convolutions_are_measured_beside_torch_in_both_memory_formats(run_python: RunPython) -> None:
    cases = results(run_python, "convolutions")["cases"]
    for name, figures in cases.items():
        others = {"direct", "winograd 4x4"} if "48->48" in name else set()
        assert set(figures["gflops"]) == {"ours", "torch", "torch, channels last"} | others
        assert figures["ok"]
        assert figures["max_abs"] < 1e-5
        assert figures["of_peak"] > 0


@pytest.mark.slow
@pytest.mark.full("a benchmark script, of which matmul.py and kernels.py always run")
def test_calls_are_measured_beyond_dynamo_alone(run_python: RunPython) -> None:
    for model in results(run_python, "calls")["models"].values():
        assert model["same"]
        assert set(model["seconds"]) == {"eager", "dynamo", "inductor", "ours"}
        assert model["cost"]["ours"]["median"] == pytest.approx(
            model["seconds"]["ours"]["median"] - model["seconds"]["dynamo"]["median"], rel=1e-2, abs=1e-8
        )


@pytest.mark.slow
@pytest.mark.full("a benchmark script, of which matmul.py and kernels.py always run")
def test_gradients_are_measured_beside_eager_and_inductor(run_python: RunPython) -> None:
    for layer in results(run_python, "gradients")["layers"].values():
        assert layer["different"] == []
        for part in ("forward", "backward"):
            assert all(layer[part]["seconds"][side]["median"] > 0 for side in ("ours", "inductor", "eager"))
            assert layer[part]["ratio"]["median"] > 0


@pytest.mark.slow
@pytest.mark.full("a benchmark script, of which matmul.py and kernels.py always run")
def test_an_edit_shows_from_the_stage_behind_it(run_python: RunPython) -> None:
    found = results(run_python, "toggle")["seconds"]
    assert found["op"]["first"] == "lower"
    assert 0 < found["early pass"]["reused"] < found["late pass"]["reused"] < found["late pass"]["stages"]
    for name in ("late pass", "early pass", "op"):
        assert found[name]["shown"]["median"] < found[name]["whole"]["median"]


@pytest.mark.slow
@pytest.mark.full("a benchmark script, of which matmul.py and kernels.py always run")
def test_memory_is_told_beside_eagers_for_chosen_models(run_python: RunPython) -> None:
    (figures,) = results(run_python, "memory", "lstm")["models"].values()
    assert 0 < figures["arena"] <= figures["compiled"]
    assert figures["ratio"] == round(figures["compiled"] / figures["eager"], 3)


@pytest.mark.slow
@pytest.mark.full("a benchmark script, of which matmul.py and kernels.py always run")
def test_memory_of_training_steps_has_gradients_and_what_is_kept(run_python: RunPython) -> None:
    (figures,) = results(run_python, "training_memory", "mlp")["models"].values()
    parameters = 4 * sum((n + 1) * m for n, m in [(256, 512), (512, 512), (512, 10)])
    for side in ("buddy", "eager", "inductor"):
        assert 0 <= figures[side]["held"] <= figures[side]["peak"]
        assert figures[side]["peak"] >= parameters
    assert figures["ratio"] == round(figures["buddy"]["peak"] / figures["inductor"]["peak"], 3)


@pytest.mark.slow
@pytest.mark.full("a benchmark script, of which matmul.py and kernels.py always run")
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from /proc")
def test_memory_of_a_large_model_is_that_of_all_processes(run_python: RunPython) -> None:
    ways = results(run_python, "large_model", "buddy released", "run")["ways"]
    (released,), (run,) = ways["buddy released"], ways["run"]
    # A run also counts buffers, such as the frequencies of the rotary positions.
    assert 0 < released["weights"] <= run["weights"] == run["parts"]["weights"] < 1.01 * released["weights"]
    assert released["peak"] == max(released["peaks"].values()) > released["weights"]
    assert {"imports", "model", "first call"} <= released["peaks"].keys()


@pytest.mark.slow
@pytest.mark.full("a benchmark script, of which matmul.py and kernels.py always run")
def test_times_of_a_large_model_are_those_of_interleaved_calls(run_python: RunPython) -> None:
    ways = results(run_python, "large_model_times", "buddy", "buddy released", "--repeats", "2")["ways"]
    assert list(ways) == ["buddy", "buddy released"]
    for times in ways.values():
        assert len(times["later"]) == 2
        assert 0 < min(times["later"]) < times["first"]


def test_cpu_time_of_a_call_has_no_waits() -> None:
    def call() -> None:
        time.sleep(0.03)
        sum(range(2_000_000))

    durations, busy = worker.seconds_per_call(call), worker.seconds_per_call(call, "cpu")
    assert 0 < busy < durations - 0.02


@pytest.mark.parametrize(("seconds", "calls"), [(0.05, range(1, 2)), (0.001, range(3, 31))])
def test_a_turn_is_one_long_call_or_many_short_ones(
    seconds: float, calls: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[float] = []
    monkeypatch.setattr(worker, "time", SimpleNamespace(perf_counter=lambda: sum(made)))
    assert worker.seconds_per_call(lambda: made.append(seconds)) == pytest.approx(seconds)
    assert len(made) in calls
