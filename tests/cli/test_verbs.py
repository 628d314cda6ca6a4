"""Each verb as a user starts it: on a sample, and on input that is wrong."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.engine_processes import everything_below, gone

Verb = Callable[..., "subprocess.CompletedProcess[str]"]


def test_run_prints_one_object_and_all_else_goes_to_stderr(cli: Verb) -> None:
    done = cli("run", "samples/addmm.py", "--json", "--repeats", "3")
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert found["ok"]
    (graph,) = found["graphs"]
    assert graph["nodes"] == {"compiled": 1, "eager": 0, "with_slow_path": 0, "with_error_path": 0}
    (output,) = graph["outputs"]
    assert (output["shape"], output["dtype"], output["verdict"]) == ([16, 64], "float32", "ok")
    assert output["max_abs"] < 1e-4
    assert graph["compile_seconds"] > 0
    for side in ("run", "eager"):
        assert graph[side]["spread"][0] <= graph[side]["median"] <= graph[side]["spread"][1]
        assert (graph[side]["runs"], graph[side]["threads"]) == (3, 1)
    assert "torch.Size([16, 64])" in done.stderr


def test_a_second_run_uses_the_saved_compilation(cli: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUDDY_CACHE", str(tmp_path / "cache"))
    runs = [cli("run", "samples/mlp.py", "--json", "--repeats", "2") for _ in range(2)]
    first, second = (json.loads(run.stdout) for run in runs)
    assert ["IR and machine code from an earlier run" in run.stderr for run in runs] == [False, True]
    assert set(first["seconds"]) - {"torch"} == {"script", "capture", "compile", "run"}
    assert set(second["seconds"]) - {"torch"} == {"script", "capture", "run"}
    assert second["ok"]
    same = ("nodes", "lowered_by", "error_paths", "other_registry", "compile_seconds")
    assert [first["graphs"][0][name] for name in same] == [second["graphs"][0][name] for name in same]


def test_run_without_json_is_for_people(cli: Verb) -> None:
    done = cli("run", "samples/arith_add.py", "--repeats", "2", "--dialect", "tosa")
    assert done.returncode == 0, done.stderr
    assert "1 nodes compiled, 0 in eager" in done.stdout
    assert "verdict" in done.stdout


def test_nodes_can_be_left_to_eager(cli: Verb) -> None:
    done = cli("run", "samples/mlp.py", "--json", "--repeats", "2", "--eager", "gelu*")
    (graph,) = json.loads(done.stdout)["graphs"]
    assert graph["nodes"]["eager"] == 1
    assert graph["ok"]


def test_arguments_reach_the_script(cli: Verb, tmp_path: Path) -> None:
    path = tmp_path / "sized.py"
    path.write_text("import sys, torch\nmodel, example_inputs = torch.sin, torch.ones(int(sys.argv[2]))\n")
    done = cli("run", str(path), "--json", "--repeats", "1", "--", "--size", "7")
    assert json.loads(done.stdout)["graphs"][0]["outputs"][0]["shape"] == [7]
    done = cli("run", str(path), "--json", "--repeats", "1", "--size", "5")
    assert json.loads(done.stdout)["graphs"][0]["outputs"][0]["shape"] == [5]


def test_a_mismatch_is_reported_and_ends_with_code_1(cli: Verb, tmp_path: Path) -> None:
    """A program that computes something else each time cannot agree with itself."""
    path = tmp_path / "wrong.py"
    path.write_text(
        "import torch\n\n\n@torch.library.custom_op('wrong::counted', mutates_args=())\n"
        "def counted(x: torch.Tensor) -> torch.Tensor:\n    counted.calls = getattr(counted, 'calls', 0) + 1\n"
        "    return x + counted.calls\n\n\n@counted.register_fake\ndef _(x):\n    return torch.empty_like(x)\n\n\n"
        "def model(x):\n    return torch.ops.wrong.counted(x)\n\n\nexample_inputs = torch.ones(3)\n"
    )
    done = cli("run", str(path), "--json", "--repeats", "1")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert found["ok"] is False
    assert found["graphs"][0]["outputs"][0]["verdict"] == "mismatch"


def test_dump_prints_one_stage(cli: Verb) -> None:
    done = cli("dump", "samples/arith_add.py", "--stage", "fx")
    assert done.returncode == 0, done.stderr
    heading = done.stdout.splitlines()[0].split()
    assert heading[:5] == ["opcode", "name", "target", "args", "kwargs"]
    assert "arith.addf" in cli("dump", "samples/arith_add.py", "--stage", "lower").stdout


def test_dump_writes_all_stages_in_order(cli: Verb, tmp_path: Path) -> None:
    done = cli("dump", "samples/arith_add.py", "--all", "-o", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    stages = [name.partition("-")[2] for name in names]
    assert stages[:2] == ["fx.txt", "graph.txt"]
    assert stages.index("flash-attention-prefill.txt") < stages.index("lower.mlir") < stages.index("cse.mlir")
    assert [int(name.partition("-")[0]) for name in names] == list(range(len(names)))
    assert [name.rpartition(".")[2] for name in names[-2:]] == ["ll", "s"]
    assert "define void" in (tmp_path / "out" / names[-2]).read_text()


def test_dump_of_a_failed_compilation_gives_what_there_is(cli: Verb) -> None:
    broken = ("dump", "samples/arith_add.py", "--disable", "one-shot-bufferize", "--stage")
    before, after = cli(*broken, "lower"), cli(*broken, "asm")
    assert (before.returncode, after.returncode) == (1, 1)
    assert "arith.addf" in before.stdout
    assert after.stdout == ""
    assert after.stderr.count("error") == 1


def test_stages_are_listed_with_what_they_changed(cli: Verb) -> None:
    done = cli("stages", "samples/arith_add.py", "--json", "--disable", "cse")
    (graph,) = json.loads(done.stdout)["graphs"]
    names = [stage["name"] for stage in graph["stages"]]
    assert names[:2] == ["fx", "graph"]
    assert names.index("graph") < names.index("flash-attention-prefill") < names.index("lower")
    assert "cse" not in names


@pytest.mark.parametrize(
    ("name", "text", "expected"), [("passes", "bufferize", "one-shot-bufferize"), ("ops", "addmm", "AddMMOp")]
)
def test_catalogues_are_filtered(cli: Verb, name: str, text: str, expected: str) -> None:
    done = cli(name, text)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
    assert cli(name, "no such thing").returncode == 1


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("run", "nothing.py"), 2, "nothing.py"),
        (("run", "samples/addmm.py", "--disable", "cze"), 2, "no pass 'cze'"),
        (("run", "samples/addmm.py", "--eager", "conv*"), 2, "no node 'conv*'"),
        (("run", "samples/addmm.py", "--timeout", "0"), 2, "more than 0"),
        (("dump", "samples/addmm.py"), 2, "--stage"),
        (("run", "samples/addmm.py", "--graph", "net"), 2, "0 (model)"),
        (("run", "samples/addmm.py", "--graph", "0", "--all"), 2, "only one"),
        (("dump", "samples/addmm.py", "--all"), 2, "-o DIR"),
        (("dump", "samples/addmm.py", "--stage", "nowhere"), 2, "unknown stage 'nowhere'"),
        (("run", "samples/addmm.py", "--engine", "no-such-program"), 1, "no-such-program"),
        (("run", "samples/addmm.py", "--backend", "none"), 1, "error in graph 0: unknown backend 'none'\n"),
    ],
)
def test_bad_input_gives_one_message_and_a_code(cli: Verb, words: tuple[str, ...], code: int, message: str) -> None:
    done = cli(*words)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_failure_in_json_mode_is_still_one_object(cli: Verb) -> None:
    done = cli("run", "nothing.py", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 2
    assert found["ok"] is False
    assert "nothing.py" in found["error"]["what"]


@pytest.mark.parametrize("name", ["", "run", "dump", "stages", "passes", "ops", "engine"])
def test_every_verb_explains_itself(cli: Verb, name: str) -> None:
    done = cli(*name.split(), "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: buddy-tui {name}".rstrip())


def test_the_version_is_told(cli: Verb) -> None:
    assert cli("--version").stdout.startswith("buddy-tui ")


def test_headless_verbs_do_not_import_textual(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    code = "import sys; from buddy.app.cli import main; main(['ops', 'addmm']); print('textual' in sys.modules)"
    assert run_python("-c", code).stdout.splitlines()[-1] == "False"


@pytest.mark.process
@pytest.mark.slow
def test_interrupting_a_run_ends_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "loop.py"
    path.write_text("print('looping', flush=True)\nwhile True: pass\n")
    command = [sys.executable, "-m", "buddy.app.cli", "run", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "looping"
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("name", ["run", "stages"])
def test_a_script_that_never_ends_is_stopped(cli: Verb, tmp_path: Path, name: str) -> None:
    path = tmp_path / "loop.py"
    path.write_text("while True: pass\n")
    done = cli(name, str(path), "--timeout", "1")
    assert done.returncode == 1
    assert "exceeded the time limit of 1 s" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_pass_that_never_ends_is_named_and_stopped_or_interrupted(cli: Verb, tmp_path: Path) -> None:
    """By the time that a step may take, or by ctrl+c; the compiler, which is in an endless loop, goes either way."""
    path = tmp_path / "adds.py"
    path.write_text("import torch\nmodel = lambda x: x + 1\nexample_inputs = (torch.ones(3),)\n")
    plugin = Path(__file__).resolve().parents[1] / "reliability" / "broken_passes.py"
    words = ["stages", str(path), "--plugin", str(plugin), "--pipeline", "builtin.module(cse, broken-never-ends)"]
    done = cli(*words, "--step-timeout", "20")
    assert done.returncode == 1
    assert "pass 2/2 broken-never-ends exceeded the time limit of 20 s and was stopped" in done.stderr
    command = [sys.executable, "-m", "buddy.app.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "pass" not in process.stderr.readline():
            assert process.poll() is None
        below = everything_below(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert "Traceback" not in process.stderr.read()
    assert below
    assert asyncio.run(gone(*below))


def test_an_engine_may_be_behind_another_command(cli: Verb) -> None:
    """What `--engine 'ssh HOST buddy-tui engine'` does, without a network in between."""
    behind = f"sh -c 'exec {sys.executable} -m buddy.app.cli engine'"
    done = cli("ops", "addmm", "--engine", behind)
    assert done.returncode == 0, done.stderr
    assert "AddMMOp" in done.stdout


# ---- several graphs --------------------------------------------------------------------------------------------------

TWO = "samples/two_models.py"


def test_run_takes_every_graph_or_one_by_number_or_name(cli: Verb) -> None:
    found = json.loads(cli("run", TWO, "--all", "--json", "--repeats", "1").stdout)
    assert [(graph["graph"], graph["name"], graph["ok"]) for graph in found["graphs"]] == [
        (0, "Gate", True),
        (1, "Gate #2", True),
        (2, "Gate #3", True),
        (3, "Head", True),
    ]
    assert "Tensor.item()" in found["graphs"][0]["broke"]["why"]
    assert found["graphs"][1]["broke"]["line"].endswith("two_models.py:17")
    assert "broke" not in found["graphs"][3]
    for wanted, name in (("3", "Head"), ("Gate #2", "Gate #2")):
        done = cli("run", TWO, "--graph", wanted, "--repeats", "1")
        assert done.returncode == 0, done.stderr
        assert [line.split(":")[0] for line in done.stdout.splitlines() if line.startswith("graph ")] == [
            f"graph {3 if name == 'Head' else 1}, {name}"
        ]


def test_dump_takes_a_stage_of_one_graph_or_of_every_one(cli: Verb, tmp_path: Path) -> None:
    one = cli("dump", TWO, "--stage", "lower", "--graph", "Head")
    assert one.stdout.count("func.func @forward") == 1
    every = cli("dump", TWO, "--stage", "lower", "--all")
    assert [line for line in every.stdout.splitlines() if line.startswith("// graph")] == [
        "// graph 0: Gate",
        "// graph 1: Gate #2",
        "// graph 2: Gate #3",
        "// graph 3: Head",
    ]
    assert one.stdout in every.stdout
    first = cli("dump", TWO, "--stage", "lower")
    assert first.stdout in every.stdout
    assert "3 (Head)" in first.stderr
    done = cli("dump", TWO, "--all", "--stage", "fx", "-o", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.txt")) == [
        f"graph{number}/00-fx.txt" for number in range(4)
    ]


def test_a_node_left_to_eager_in_one_graph_leaves_the_others(cli: Verb) -> None:
    found = json.loads(cli("run", TWO, "--json", "--repeats", "1", "--eager", "relu").stdout)
    assert [graph["nodes"]["eager"] for graph in found["graphs"]] == [1, 0, 0, 0]


def test_the_cache_is_shown_and_cleared(cli: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUDDY_CACHE", str(tmp_path))
    cli("run", "samples/arith_add.py", "--repeats", "1")
    before = json.loads(cli("cache", "--json").stdout)
    assert before["folder"] == str(tmp_path)
    assert before["caches"]["objects"]["files"] > 0
    done = cli("cache", "--clear")
    assert done.returncode == 0, done.stderr
    assert "objects" in done.stdout
    assert json.loads(cli("cache", "--json").stdout)["caches"]["objects"] == {"files": 0, "bytes": 0}


def test_an_engine_without_a_client_says_what_it_is_for_in_whole_lines(root: Path) -> None:
    command = [sys.executable, "-m", "buddy.app.cli", "engine"]
    done = subprocess.run(command, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (2, "")
    assert "buddy-tui --remote HOST" in done.stderr
    assert done.stderr.endswith("\n")


def test_diff_shows_a_stage_under_two_recipes_and_two_stages(cli: Verb) -> None:
    one = ("diff", "samples/addmm.py", "--stage", "fuse-elementwise", "--plain")
    done = cli(*one, "--disable", "fold-transposes", "--against", "default", "--structural", "--exit-code")
    assert done.returncode in (0, 1), done.stderr
    done = cli("diff", "samples/addmm.py", "--stage", "lower", "--stage", "llvm", "--exit-code")
    assert done.returncode == 1
    assert done.stdout.startswith("--- lower\n+++ ensure-debug-info-scope-on-llvm-func\n@@ -1,")
    done = cli("diff", "samples/addmm.py", "--against", "nosuch")
    assert done.returncode == 2
    assert "'nosuch' is neither a file nor a preset; known presets: default" in done.stderr
    done = cli("diff", "samples/addmm.py", "--stage", "lower")
    assert "give exactly one of --against" in done.stderr


def test_diff_resolves_both_recipes_alike(cli: Verb, tmp_path: Path) -> None:
    plugin, recipe = tmp_path / "plug.py", tmp_path / "recipe.toml"
    plugin.write_text("")
    recipe.write_text(f"frontend = 'torch-mlir'\ndialect = 'tosa'\n[[plugins]]\npath = '{plugin}'")
    twice = ("--recipe", recipe, "--recipe", recipe, "--plugin", plugin)
    done = cli("diff", "samples/arith_add.py", *twice, "--exit-code", "--json")
    assert done.returncode == 0, done.stderr
    assert "tosa" in {stage["after"]["phase"] for stage in json.loads(done.stdout)["stages"]}


def test_diff_against_a_preset_changes_only_the_passes(cli: Verb) -> None:
    options = ("--checks", "none", "--disable", "fuse-rows", "--disable", "canonicalize#2", "--against", "default")
    done = cli("diff", "samples/two_models.py", *options, "--exit-code", "--json")
    assert done.returncode == 1, done.stderr
    assert "note: only graph 0 of 0 (Gate)" in done.stderr
    stages = json.loads(done.stdout)["stages"]
    assert [stage["after"]["stage"] for stage in stages if stage["before"] is None] == ["canonicalize", "fuse-rows"]
    assert not any(stage["hunks"] for stage in stages), "neither pass changes this program"


def test_diff_tells_an_error_from_a_difference(cli: Verb) -> None:
    done = cli("diff", "samples/nosuch.py", "--against", "default", "--exit-code")
    assert done.returncode == 2
    done = cli("diff", "samples/addmm.py", "--stage", "a", "--stage", "b", "--stage", "c")
    assert "give --stage at most twice" in done.stderr


def test_presets_are_compiled_and_run_side_by_side(cli: Verb) -> None:
    done = cli("presets", "samples/addmm.py", "--run", "--repeats", "1", "--json")
    assert done.returncode == 0, done.stderr
    (graph,) = json.loads(done.stdout)["graphs"]
    assert [found["name"] for found in graph["presets"]] == ["default", "upstream"]
    assert all(found["ok"] and found["ops"] and found["run_seconds"] > 0 for found in graph["presets"])


def test_a_reproducer_is_replayed_and_says_what_differs(cli: Verb, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    done = cli("reproduce", "samples/addmm.py", "-o", str(folder), "--seed", "5")
    assert done.returncode == 0, done.stderr
    done = cli("replay", str(folder), "--repeats", "1", "--plain")
    assert done.returncode == 0, done.stderr
    assert "outputs are bitwise equal" in done.stdout
    stages = json.loads((folder / "reproducer.json").read_text())["stages"]
    assert f"{len(stages)} of {len(stages)} stages are unchanged" in done.stdout
    description = (folder / "reproducer.json").read_text()
    (folder / "reproducer.json").write_text(description.replace(stages[3]["sha256"], "0" * 64, 1))
    done = cli("replay", str(folder), "--repeats", "1", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["changed"]
    done = cli("replay", str(tmp_path))
    assert done.returncode == 2
    assert "is not a reproducer" in done.stderr


def test_a_reproducer_replaces_an_earlier_one_whole_and_nothing_else(cli: Verb, tmp_path: Path) -> None:
    folder, wrong = tmp_path / "folder", tmp_path / "wrong.npy"
    np.save(wrong, np.zeros((5, 5), np.float32))
    folder.mkdir()
    (folder / "recipe.toml").write_text("mine")
    done = cli("reproduce", "samples/addmm.py", "-o", str(folder))
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("recipe.toml", "mine")]
    done = cli("reproduce", "samples/addmm.py", "-o", str(folder), "--force")
    assert done.returncode == 0, done.stderr
    (folder / "notes").write_text("mine")
    assert (folder / "values.npz").exists()
    done = cli("reproduce", "samples/addmm.py", "-o", str(folder), "--inputs", str(wrong))
    assert done.returncode == 1
    assert "the file has 1 tensors" in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["notes", "recipe.toml", "replay.sh", "reproducer.json", "script", "stages"]
    )
    done = cli("replay", str(folder), "--plain")
    assert done.returncode == 0, done.stderr
    assert "the original run failed" in done.stdout
    assert "bitwise equal" not in done.stdout


def test_a_run_takes_inputs_from_a_file_and_refuses_those_that_do_not_fit(cli: Verb, tmp_path: Path) -> None:
    done = cli("run", "samples/addmm.py", "--json", "--repeats", "1", "--seed", "3")
    assert json.loads(done.stdout)["graphs"][0]["ok"]
    (tmp_path / "x.npy").write_bytes(b"junk")
    done = cli("run", "samples/addmm.py", "--repeats", "1", "--inputs", str(tmp_path / "x.npy"))
    assert done.returncode == 1
    assert "x.npy" in done.stderr
    assert "Traceback" not in done.stderr


def test_trials_say_what_passes_would_change(cli: Verb) -> None:
    done = cli("trials", "samples/addmm.py", "--stage", "lower", "--pass", "convert-*", "--pass", "cse", "--json")
    assert done.returncode == 0, done.stderr
    found = {entry["pass"]: entry for entry in json.loads(done.stdout)["passes"]}
    assert all(entry["changed"] for entry in found.values())
    assert all(name == "cse" or name.startswith("convert-") for name in found)
    assert found


def test_a_pipeline_is_printed_and_given_as_text(cli: Verb, tmp_path: Path) -> None:
    done = cli("recipe", "samples/addmm.py", "--as-pipeline", "--disable", "cse#2")
    assert done.returncode == 0, done.stderr
    assert "\n  // cse\n" in done.stdout
    path = tmp_path / "addmm.pipeline"
    path.write_text(done.stdout)
    again = cli("recipe", "samples/addmm.py", "--as-pipeline", "--pipeline", str(path))
    assert again.stdout == done.stdout
    wrong = cli("recipe", "samples/addmm.py", "--pipeline", "builtin.module(cse canonicalize)")
    assert wrong.returncode == 2
    assert "line 1, column 20: expected a comma" in wrong.stderr


@pytest.mark.slow
def test_other_runtimes_run_beside(cli: Verb) -> None:
    for package in ("onnxruntime", "onnx", "onnxscript"):
        pytest.importorskip(package)
    done = cli("run", "samples/mlp.py", "--json", "--repeats", "2", "--beside", "onnxruntime", "--mark", "all")
    assert done.returncode == 0, done.stderr
    (side,) = json.loads(done.stdout)["graphs"][0]["beside"]
    assert side["name"] == "onnxruntime"
    assert [output["verdict"] for output in side["outputs"]] == ["ok"]
    assert side["run"]["runs"] == 2
    assert side["divergence"]["node"] is None
    assert {"up/addmm.0", "act/gelu.0"} <= {output["name"] for output in side["divergence"]["marked"]}
    assert "exporting the program to ONNX" in done.stderr


def test_an_unknown_runtime_is_named(cli: Verb) -> None:
    done = cli("run", "samples/mlp.py", "--beside", "tensorrt")
    assert done.returncode == 2
    assert "unknown runtime 'tensorrt': choose from onnxruntime, openvino" in done.stderr


@pytest.mark.slow
@pytest.mark.full("exports three models")
@pytest.mark.parametrize("sample", ["bert", "resnet18", "vit"])
def test_models_match_in_other_runtimes(cli: Verb, sample: str) -> None:
    for package in ("onnxruntime", "openvino", "onnx", "onnxscript", "transformers"):
        pytest.importorskip(package)
    beside = ("--beside", "onnxruntime,openvino", "--repeats", "2")
    done = cli("run", f"samples/{sample}.py", "--json", *beside, "--", "--tiny")
    assert done.returncode == 0, done.stderr
    (graph,) = json.loads(done.stdout)["graphs"]
    assert [side["name"] for side in graph["beside"]] == ["onnxruntime", "openvino"]
    for side in graph["beside"]:
        assert {output["verdict"] for output in side["outputs"]} == {"ok"}
