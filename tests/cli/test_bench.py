"""`buddy-tui bench`: real processes side by side on small programs, and suites that are wrong."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from buddy.compiler.tools.bench import report, session
from buddy.compiler.tools.bench.plan import BenchPlan, BenchPlanError, BenchSubject, check_sides, read_suite
from buddy.compiler.tools.bench.report import geometric_mean, interval

ROOT = Path(__file__).resolve().parents[2]
Bench = Callable[..., "subprocess.CompletedProcess[str]"]
SMALL = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU()).eval()
example_inputs = torch.randn(4, 16)
"""


@pytest.fixture
def bench(cli: Callable[..., subprocess.CompletedProcess[str]]) -> Bench:
    return lambda *words: cli("bench", *words)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "small.py"
    path.write_text(SMALL)
    return path


@pytest.mark.slow
def test_a_script_is_timed_beside_eager_and_written_down(bench: Bench, script: Path, tmp_path: Path) -> None:
    done = bench(script, "--sides", "eager", "--rounds", "5", "-o", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((tmp_path / "out" / "bench.json").read_text())
    (subject,) = found["subjects"]
    assert set(subject["sides"]) == {"buddy", "eager"}
    assert subject["flops"] == 2 * 4 * 16 * 8
    assert subject["fastest"] == "eager"
    assert subject["interval"][0] <= subject["ratio"] <= subject["interval"][1]
    assert subject["sides"]["buddy"]["error_of"] < 1e-5
    assert 0 < subject["sides"]["buddy"]["aten_seconds"] <= subject["sides"]["buddy"]["compile_seconds"]
    assert found["limits"]["1"]["gflops"] > 1
    assert "| small |" in (tmp_path / "out" / "bench.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_another_runtime_is_a_side(script: Path, tmp_path: Path, runtime: str) -> None:
    for package in (runtime, "onnx", "onnxscript"):
        pytest.importorskip(package)
    plan = BenchPlan((BenchSubject("small", str(script)),), ("buddy", runtime), rounds=5)
    (found,) = session.run(plan, tmp_path)
    (subject,) = found["subjects"]
    assert subject["sides"][runtime]["error_of"] < 1e-5
    assert subject["sides"][runtime]["seconds"]["median"] > 0
    assert runtime not in subject["faster_than"], "a runtime packs weights: only frozen code is compared with it"


@pytest.mark.slow
@pytest.mark.full("compiles three times; one whose results are wrong is always tried")
def test_a_side_that_fails_is_named_and_the_others_are_timed(script: Path, tmp_path: Path) -> None:
    broken = BenchSubject("broken", str(script.with_name("absent.py")))
    plan = BenchPlan((broken, BenchSubject("small", str(script))), ("buddy", "eager"), rounds=5)
    first, found = session.run(plan, tmp_path)
    assert [subject["name"] for subject in first["subjects"]] == ["broken"]
    failed, timed = found["subjects"]
    assert "absent.py" in failed["sides"]["buddy"]["error"]
    assert failed["ratio"] is None
    assert timed["ratio"] > 0
    assert found["summary"]["1"]["not_timed"] == ["broken"]
    text = report.markdown(found)
    assert "- broken, eager:" in text


@pytest.mark.slow
def test_wrong_results_are_not_timed(tmp_path: Path) -> None:
    path = tmp_path / "random.py"
    path.write_text("import torch\nmodel = torch.nn.Dropout(0.5).train()\nexample_inputs = torch.ones(64)\n")
    (found,) = session.run(BenchPlan((BenchSubject("random", str(path)),), ("eager",), rounds=5), tmp_path)
    assert "differ from eager" in found["subjects"][0]["sides"]["eager"]["error"]


@pytest.mark.full("a benchmark run three times")
def test_an_interrupted_benchmark_goes_on(bench: Bench, script: Path, tmp_path: Path) -> None:
    suite, out = tmp_path / "suite.toml", tmp_path / "out"
    suite.write_text("".join(f'[[subject]]\nname = "{name}"\nsource = "{script}"\n' for name in ("first", "second")))
    options = ("--sides", "eager", "--rounds", "5", "-o", out)
    assert bench(suite, "--only", "first", *options).returncode == 0
    (measured,) = json.loads((out / "bench.json").read_text())["subjects"]
    assert bench(suite, *options, "--resume").returncode == 0
    found = json.loads((out / "bench.json").read_text())
    assert [subject["name"] for subject in found["subjects"]] == ["first", "second"]
    assert found["subjects"][0] == measured
    assert found["summary"]["1"]["models"] == 2
    done = bench(suite, "--resume", "--sides", "eager,inductor", "-o", out)
    assert done.returncode == 2
    assert "was measured with other sides" in done.stderr


def test_what_is_wrong_with_a_suite_is_said(bench: Bench, tmp_path: Path) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text('[[subject]]\nname = "a"\nsuorce = "a.py"\n')
    done = bench(suite)
    assert done.returncode == 2
    assert "suite.toml" in done.stderr
    assert "suorce" in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_sides_and_threads_are_refused(bench: Bench, script: Path) -> None:
    with pytest.raises(BenchPlanError, match="inductor"):
        check_sides(["inducter"])
    done = bench(script, "--threads", "0")
    assert done.returncode == 2
    assert "--threads" in done.stderr


@pytest.mark.parametrize("name", ["models", "ops"])
def test_the_suites_name_scripts_that_are_there(name: str) -> None:
    subjects = read_suite(ROOT / "benchmarks" / f"{name}.toml")
    assert len({subject.name for subject in subjects}) == len(subjects)
    assert all(Path(subject.source).is_file() for subject in subjects)


def test_means_and_intervals() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    low, high = interval([1.0, 1.1, 1.2, 1.3, 9.0])
    assert 1.0 <= low <= 1.2 <= high <= 9.0


def test_against_the_fastest_of_the_others() -> None:
    times = {"buddy": [1.0, 2.0, 1.0], "eager": [3.0, 6.0, 3.0], "inductor": [1.5, 3.0, 1.5]}
    found = session.compare_with_peers(times)
    assert (found["fastest"], found["ratio"], found["interval"]) == ("inductor", 1.5, [1.5, 1.5])


def test_frozen_weights_are_held_against_all_others_and_those_in_place_against_their_like() -> None:
    times = {"buddy": [2.0] * 5, "buddy-frozen": [1.0] * 5, "eager": [6.0] * 5, "freezing": [1.5] * 5}
    found = session.compare_with_peers(times)
    assert (found["fastest"], found["ratio"]) == ("eager", 3.0)
    assert (found["frozen"]["fastest"], found["frozen"]["ratio"]) == ("freezing", 1.5)
