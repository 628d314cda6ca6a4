"""`buddy-tui bench`: real processes side by side on small programs, and suites that are wrong."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buddy.app.cli import bench as bench_verb
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.support.target import host_has_features
from buddy.compiler.tools.bench import report, session
from buddy.compiler.tools.bench.plan import (
    BENCH_PRECISIONS,
    SIDES,
    BenchCase,
    BenchPlan,
    BenchPlanError,
    BenchPrecision,
    BenchSubject,
    read_suite,
    resolve_sides,
    unsupported_reason,
)
from buddy.compiler.tools.bench.report import bootstrap_interval, geometric_mean
from buddy.compiler.tools.runtimes import sessions

ROOT = Path(__file__).resolve().parents[2]
Bench = Callable[..., "subprocess.CompletedProcess[str]"]
SMALL = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU()).eval()
example_inputs = torch.randn(4, 16)
"""


FULL = pytest.mark.full("one side in one precision, of which some always run")


@pytest.fixture
def bench(cli: Callable[..., subprocess.CompletedProcess[str]]) -> Bench:
    return lambda *words: cli("bench", *words)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "small.py"
    path.write_text(SMALL)
    return path


@pytest.fixture
def wide_script(tmp_path: Path) -> Path:
    """Layers that are wide enough for groups of weights."""
    path = tmp_path / "wide.py"
    path.write_text(SMALL.replace("16, 8", "256, 128").replace("4, 16", "4, 256"))
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
    assert subject["sides"]["buddy"]["largest_error"] < 1e-5
    assert 0 < subject["sides"]["buddy"]["aten_seconds"] <= subject["sides"]["buddy"]["compile_seconds"]
    assert found["limits"]["1"]["gflops"] > 1
    assert "| small |" in (tmp_path / "out" / "bench.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_another_runtime_is_a_side(script: Path, tmp_path: Path, runtime: str) -> None:
    for package in (runtime, "onnx", "onnxscript"):
        pytest.importorskip(package)
    plan = BenchPlan((BenchSubject("small", str(script)),), ("buddy", runtime), rounds=5)
    (found,) = session.run_benchmark(plan, tmp_path)
    (subject,) = found["subjects"]
    assert subject["sides"][runtime]["largest_error"] < 1e-5
    assert subject["sides"][runtime]["seconds"]["median"] > 0
    assert runtime not in subject["faster_than"], "a runtime packs weights: only frozen code is compared with it"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "precision", "packages"),
    [
        ("buddy-frozen", "bf16", ()),
        ("buddy-frozen", "int8-weights", ()),
        pytest.param("eager", "int8-static", ("torchao",), marks=FULL),
        pytest.param("inductor", "int8-weights", ("torchao",), marks=FULL),
        ("torchscript", "int8-dynamic", ()),
        pytest.param("torchscript", "bf16", (), marks=FULL),
        pytest.param("onnxruntime", "int8-dynamic", ("onnx", "onnxruntime", "onnxscript"), marks=FULL),
        ("onnxruntime", "int8-static", ("onnx", "onnxruntime", "onnxscript")),
        pytest.param("openvino", "int8-weights", ("onnx", "onnxscript", "openvino", "nncf"), marks=FULL),
    ],
)
def test_a_side_makes_the_model_of_a_precision(
    wide_script: Path, tmp_path: Path, side: str, precision: BenchPrecision, packages: tuple[str, ...]
) -> None:
    """Its results differ from float32 as much as the precision rounds, neither less nor more."""
    for package in packages:
        pytest.importorskip(package)
    case = BenchCase(BenchSubject("wide", str(wide_script)), precision, 1)
    process = session.SideProcess(side, case, tmp_path)
    try:
        found = process.wait_until_prepared(300)
        assert 1e-4 < found["relative_error"] < 5e-2
        assert process.time_block() > 0
    finally:
        process.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "precision", "packages", "largest"),
    [
        ("buddy-frozen", "int4-weights", (), 1e-5),
        ("onnxruntime", "int4-weights", ("onnx", "onnxruntime", "onnxscript"), 2e-2),
        pytest.param("eager", "int8-weights", ("torchao",), 1e-5, marks=FULL),
        pytest.param("openvino", "int4-weights", ("onnx", "onnxscript", "openvino", "nncf"), 2e-2, marks=FULL),
    ],
)
def test_rounded_weights_are_compared_with_eager_on_the_same_weights(
    wide_script: Path, tmp_path: Path, side: str, precision: BenchPrecision, packages: tuple[str, ...], largest: float
) -> None:
    """The other runtimes round activations to 8 bits, too; the weights of any two sides differ by more than this."""
    for package in packages:
        pytest.importorskip(package)
    # ONNX Runtime's tool rounds no product of tensors of two dims, which is exported as `Gemm`.
    text = wide_script.read_text().replace("256, 128)", "256, 128, bias=False)")
    wide_script.write_text(text.replace("4, 256", "1, 4, 256"))
    process = session.SideProcess(side, BenchCase(BenchSubject("wide", str(wide_script)), precision, 1), tmp_path)
    try:
        found = process.wait_until_prepared(300)
    finally:
        process.close()
    assert found["error_of_weights"] < largest
    assert found["relative_error"] > (5e-2 if precision == "int4-weights" else 1e-3)


def test_a_side_that_takes_too_long_is_named(script: Path, tmp_path: Path) -> None:
    process = session.SideProcess("eager", BenchCase(BenchSubject("small", str(script)), "f32", 1), tmp_path)
    try:
        with pytest.raises(session.SideProcessError, match=r"not ready after 0 s; see .*small-f32-1-eager\.log"):
            process.wait_until_prepared(0.01)
    finally:
        process.close()


def test_openvino_is_asked_which_precision_it_computes_in(tmp_path: Path) -> None:
    """Without the instruction, it computes in float32 although bfloat16 is requested."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("openvino")
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [64, 64]) for name in "xyz"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "y"], ["z"])], "g", value[:2], value[2:])
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)]), path)
    assert sessions.load_openvino(path, 1, "f32")[1] == "f32"
    if host_has_features("avx512_bf16") or host_has_features("amx_bf16"):
        assert sessions.load_openvino(path, 1, "bf16")[1] == "bf16"
    else:
        with pytest.raises(BuddyError, match="OpenVINO computes in f32 on this CPU, although bf16 was requested"):
            sessions.load_openvino(path, 1, "bf16")


@pytest.mark.slow
def test_training_steps_and_several_sizes_are_timed(tmp_path: Path) -> None:
    train, sizes = tmp_path / "train.py", tmp_path / "sizes.py"
    train.write_text(
        "import torch\ntorch.manual_seed(0)\n"
        "model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))\n"
        "example_inputs = torch.randn(4, 8)\n"
        "def loss(output):\n    return output.square().mean()\n"
    )
    sizes.write_text(SMALL.replace("torch.randn(4, 16)", "[torch.randn(n, 16) for n in (4, 7, 9)]"))
    subjects = (BenchSubject("train", str(train), task="training"), BenchSubject("sizes", str(sizes), task="dynamic"))
    *_, found = session.run_benchmark(BenchPlan(subjects, ("buddy", "buddy-frozen", "eager"), rounds=5), tmp_path)
    trained, several = found["subjects"]
    assert trained["fastest"] == several["fastest"] == "eager"
    assert trained["sides"]["buddy"]["relative_error"] < 1e-5
    assert trained["sides"]["buddy-frozen"]["error"] == "training changes weights, which are constants here"
    assert several["flops"] == 2 * (4 + 7 + 9) * 16 * 8
    assert several["sides"]["buddy-frozen"]["largest_error"] < 1e-5
    assert set(found["summary"]["1"]) == {"training", "dynamic"}


@pytest.mark.slow
def test_a_training_step_with_a_wrong_gradient_is_not_timed(tmp_path: Path) -> None:
    """The compiled model's first bias has a gradient that is too large by 1e-3; all others are right."""
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\ntorch.manual_seed(0)\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.first, self.last = torch.nn.Linear(32, 64), torch.nn.Linear(64, 4)\n"
        "    def forward(self, x):\n"
        "        bias = self.first.bias\n"
        "        if torch.compiler.is_compiling():\n"
        "            bias = bias * 1.001 - bias.detach() * 0.001\n"
        "        return self.last(torch.relu(torch.nn.functional.linear(x, self.first.weight, bias)))\n"
        "model, example_inputs = Model(), torch.randn(16, 32)\n"
        "def loss(output):\n    return output.square().mean()\n"
    )
    subject = BenchSubject("wrong", str(path), task="training")
    (found,) = session.run_benchmark(BenchPlan((subject,), ("buddy", "eager"), rounds=5), tmp_path)
    sides = found["subjects"][0]["sides"]
    assert sides["buddy"]["error"].startswith("the gradient of first.bias differs from eager's by 1.0e-03; ")
    assert sides["eager"]["seconds"]["median"] > 0
    assert sides["eager"]["spread"] > 0


@pytest.mark.slow
def test_a_training_step_that_is_random_is_not_timed(tmp_path: Path) -> None:
    path = tmp_path / "random.py"
    path.write_text(
        "import torch\nmodel = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Dropout(0.5))\n"
        "example_inputs = torch.randn(4, 32)\ndef loss(output):\n    return output.square().mean()\n"
    )
    subject = BenchSubject("random", str(path), task="training")
    (found,) = session.run_benchmark(BenchPlan((subject,), ("eager",), rounds=5), tmp_path)
    assert "no other result can be compared with it" in found["subjects"][0]["sides"]["eager"]["error"]


@pytest.mark.slow
@pytest.mark.full("all models to train, in eager")
@pytest.mark.parametrize("name", ["mlp", "resnet18", "gpt2", "bert", "vit", "unet"])
def test_the_models_to_train_have_gradients(tmp_path: Path, name: str) -> None:
    subject = BenchSubject(name, str(ROOT / "benchmarks/programs/train.py"), (name, "--tiny"), task="training")
    process = session.SideProcess("eager", BenchCase(subject, "f32", 1), tmp_path)
    try:
        assert process.wait_until_prepared(300)["relative_error"] == 0
        assert process.time_block() > 0
    finally:
        process.close()


def test_reasons_that_the_kind_of_a_side_tells() -> None:
    model = BenchSubject("m", "m.py")
    assert unsupported_reason("onnxruntime", BenchCase(model, "bf16", 1)) == (
        "onnxruntime has no bf16: its kernels for CPUs have no bfloat16"
    )
    assert unsupported_reason("freezing", BenchCase(BenchSubject("t", "t.py", task="training"), "f32", 1))
    assert all(not unsupported_reason(side, BenchCase(model, "f32", 1)) for side in SIDES)


def test_each_precision_has_its_table() -> None:
    subject = BenchSubject("m", "m.py")
    found = [subject.table(precision) for precision in BENCH_PRECISIONS]
    assert found == ["f32", "bf16", "int8", "int8", "int8", "int4"]
    assert BenchSubject("m", "m.py", group="decode").table("int8-weights") == "decode"
    assert set(found) | {"decode", "dynamic", "training"} == set(report.TABLES)


def test_a_report_has_the_machine_the_errors_and_the_means_of_each_table() -> None:
    def subject(name: str, precision: str, table: str, ratio: float) -> dict[str, Any]:
        timed = {"seconds": {"median": 0.01}, "relative_error": 4.2e-3, "aten_seconds": 1.0}
        if table == "training":
            timed = timed | {"spread": 2e-3}
        frozen = {"fastest": "openvino", "ratio": ratio, "interval": [ratio, ratio]}
        return {
            "name": name, "group": "model", "table": table, "precision": precision, "threads": 1, "flops": 0,
            "sides": {"buddy": timed, "openvino": timed | {"note": "floats are bf16"}, "iree": {"error": "no"}},
            "fastest": None, "ratio": None, "interval": None, "frozen": frozen,
        }  # fmt: skip

    subjects = [
        subject("a", "f32", "f32", 3.0), subject("a", "int8-static", "int8", 2.0),
        subject("b", "int8-static", "int8", 8.0), subject("c", "f32", "training", 1.0),
    ]  # fmt: skip
    text = report.format_markdown(
        {
            "machine": "Some CPU (AVX2)", "limits": {"1": {"gflops": 50.0, "gbytes": 9.0}}, "subjects": subjects,
            "summary": {"1": session.summarize_tables(subjects, 1)},
        }
    )  # fmt: skip
    floats, rest = text.split("### 8-bit integers, 1 thread")
    integers, training = rest.split("### Training steps, float32, 1 thread")
    assert "| 10 (4e-03, spread 2e-03) |" in training
    assert "Some CPU (AVX2): 50 GFLOP/s in float32" in floats
    assert "| 10 (4e-03) |" in floats
    assert "3.00 × the fastest of all others" in floats
    assert "4.00 × the fastest of all others, weights frozen (2 models)" in integers
    assert "- iree, a in int8-static, b in int8-static: no" in integers
    assert "- openvino, a in int8-static, b in int8-static: floats are bf16" in integers
    assert "| iree |" not in text


def test_programs_and_the_folder_are_checked_before_anything_is_measured(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text('[[subject]]\nname = "a"\nsource = "small.py"\n[[subject]]\nname = "b"\nsource = "gone.py"\n')
    assert bench_verb.main([str(suite), "-o", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"error: there is no file {tmp_path}/gone.py"
    assert bench_verb.main([str(script), "-o", str(script)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told == [f"error: cannot write to {script}: File exists", "  to do: choose another folder with -o"]
    assert not (tmp_path / "out").exists()


def test_a_precision_and_a_task_that_do_not_fit_are_refused(bench: Bench, script: Path, tmp_path: Path) -> None:
    done = bench(script, "--precisions", "int9")
    assert done.returncode == 2
    assert "unknown precision 'int9'; the precisions are f32, bf16, int8-dynamic" in done.stderr
    done = bench(script, "--clock", "cpu", "--threads", "1,2")
    assert done.returncode == 2
    assert "use it with --threads 1" in done.stderr
    suite = tmp_path / "suite.toml"
    suite.write_text('[[subject]]\nname = "a"\nsource = "a.py"\ntask = "training"\nprecisions = ["bf16"]\n')
    with pytest.raises(BenchPlanError, match="subject 'a' of task 'training' is measured in f32 only"):
        read_suite(suite)


@pytest.mark.slow
@pytest.mark.full("compiles three times; one whose results are wrong is always tried")
def test_a_side_that_fails_is_named_and_the_others_are_timed(script: Path, tmp_path: Path) -> None:
    broken = BenchSubject("broken", str(script.with_name("absent.py")))
    plan = BenchPlan((broken, BenchSubject("small", str(script))), ("buddy", "eager"), rounds=5)
    first, found = session.run_benchmark(plan, tmp_path)
    assert [subject["name"] for subject in first["subjects"]] == ["broken"]
    failed, timed = found["subjects"]
    assert "absent.py" in failed["sides"]["buddy"]["error"]
    assert failed["ratio"] is None
    assert timed["ratio"] > 0
    assert found["summary"]["1"]["f32"]["not_timed"] == ["broken"]
    text = report.format_markdown(found)
    assert "- eager, broken:" in text


@pytest.mark.slow
def test_wrong_results_are_not_timed(tmp_path: Path) -> None:
    path = tmp_path / "random.py"
    path.write_text("import torch\nmodel = torch.nn.Dropout(0.5).train()\nexample_inputs = torch.ones(64)\n")
    (found,) = session.run_benchmark(BenchPlan((BenchSubject("random", str(path)),), ("eager",), rounds=5), tmp_path)
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
    assert found["summary"]["1"]["f32"]["models"] == 2
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
        resolve_sides(["inducter"])
    done = bench(script, "--threads", "0")
    assert done.returncode == 2
    assert "--threads" in done.stderr


@pytest.mark.parametrize("name", ["models", "narrow", "ops", "shapes", "training"])
def test_the_suites_name_scripts_that_are_there(name: str) -> None:
    subjects = read_suite(ROOT / "benchmarks" / f"{name}.toml")
    assert len({subject.name for subject in subjects}) == len(subjects)
    assert all(Path(subject.source).is_file() for subject in subjects)


def test_means_and_intervals() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    low, high = bootstrap_interval([1.0, 1.1, 1.2, 1.3, 9.0])
    assert 1.0 <= low <= 1.2 <= high <= 9.0


def test_against_the_fastest_of_the_others() -> None:
    times = {"buddy": [1.0, 2.0, 1.0], "eager": [3.0, 6.0, 3.0], "inductor": [1.5, 3.0, 1.5]}
    found = session.compare_with_other_sides(times)
    assert (found["fastest"], found["ratio"], found["interval"]) == ("inductor", 1.5, [1.5, 1.5])


def test_frozen_weights_are_held_against_all_others_and_those_in_place_against_their_like() -> None:
    times = {"buddy": [2.0] * 5, "buddy-frozen": [1.0] * 5, "eager": [6.0] * 5, "freezing": [1.5] * 5}
    found = session.compare_with_other_sides(times)
    assert (found["fastest"], found["ratio"]) == ("eager", 3.0)
    assert (found["frozen"]["fastest"], found["frozen"]["ratio"]) == ("freezing", 1.5)
