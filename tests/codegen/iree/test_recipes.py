"""Recipes of another backend: flags, which stand and what they run on; reports of three sides; what is missing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from buddy.app.reports.run_report import run_report_json, run_report_text
from buddy.compiler.codegen.iree import options
from buddy.compiler.codegen.iree.compiler import parse_help
from buddy.compiler.codegen.iree.options import (
    DEFAULT_FLAGS,
    flag_problem,
    merge_flags,
    runtime_driver,
    selected_targets,
)
from buddy.compiler.engine.backends import BackendWorkers
from buddy.compiler.engine.worker import WorkerListener
from buddy.compiler.protocol import GraphInfo, OutputReport, RunReport, SideReport, Timing
from buddy.compiler.protocol.recipe import IREE, NATIVE, PassStep, Recipe, from_toml, to_toml
from buddy.compiler.support.processes.jobs import JobFailed

HELP = """OVERVIEW: IREE compilation driver

OPTIONS:

General options:

  --compress-srci=<value>                   - Choose SCRI part compression:
    =none                                   -   No compression
    =zlib                                   -   Use zlib
  -o=<filename>                             - Specify output filename
  --iree-cuda-use-ptxas                     - Whether to use the ptxas tool
  --iree-opt-level=<optimization level>     - Global optimization level
                                             At optimization level O0 the default is false
"""


def test_what_is_given_takes_the_place_of_a_default() -> None:
    assert merge_flags(()) == list(DEFAULT_FLAGS)
    assert merge_flags(("--iree-opt-level=O3",)).count("--iree-opt-level=O3") == 1
    assert not any(flag == "--iree-opt-level=O2" for flag in merge_flags(("--iree-opt-level=O3",)))


def test_a_device_takes_the_place_of_the_default_target() -> None:
    assert selected_targets(merge_flags(("--iree-hal-target-device=hip[0]",))) == ["hip"]


@pytest.mark.parametrize(
    ("flags", "threads", "expected"),
    [
        ((), 1, "local-sync"),
        ((), 2, "local-task"),
        (("--iree-hal-target-backends=vmvx",), 1, "local-sync"),
        (("--iree-hal-target-backends=cuda",), 2, "cuda"),
        (("--iree-hal-target-backends=vulkan-spirv",), 1, "vulkan"),
        (("--iree-hal-target-device=amdgpu",), 1, "hip"),
    ],
)
def test_the_driver_is_that_of_the_target(flags: tuple[str, ...], threads: int, expected: str) -> None:
    assert runtime_driver(merge_flags(flags), threads) == expected


@pytest.mark.parametrize("flag", ["--compile-to=vm", "-o", "--output-format=vm-c", "model.mlir", "--", "", "--a\nb"])
def test_what_cannot_be_passed_on_is_refused_by_name(flag: str) -> None:
    assert flag_problem(flag)


def test_the_help_is_read_with_kinds_values_and_summaries() -> None:
    found = {flag.name: flag for flag in parse_help(HELP)}
    assert found["compress-srci"].values == ("none", "zlib")
    assert found["iree-cuda-use-ptxas"].kind == ""
    assert (found["iree-opt-level"].kind, found["iree-opt-level"].summary) == (
        "optimization level",
        "Global optimization level",
    )


def test_a_report_of_three_sides_tells_of_each() -> None:
    output = OutputReport("y", (2,), "float32", 1e-7, 1e-6, "ok")
    wrong = OutputReport("y", (2,), "float32", 0.5, 1.0, "mismatch")
    eager, ours, theirs = Timing(4e-3, 4e-3, 4e-3, 5), Timing(2e-3, 2e-3, 2e-3, 5), Timing(1e-3, 1e-3, 1e-3, 5)
    side = SideReport(NATIVE, (wrong,), theirs, compile_seconds=2.5)
    report = RunReport(0, (output,), ours, eager, 3, 0, 1.0, ratio=0.5, backend=IREE, sides=(side,))
    assert report.ok
    told = run_report_json(GraphInfo("model", ()), report)
    assert told["backend"] == IREE
    assert (told["beside"][0]["name"], told["beside"][0]["ratio"]) == (NATIVE, 0.25)
    text = run_report_text(GraphInfo("model", ()), report)
    assert "IREE's code takes 0.50 x" in text
    assert "compiled code takes 0.25 x the time of eager; MISMATCH in y, max abs 5.00e-01" in text
    for verdict, words in (("nan", "; NaN where eager has NaN,"), ("unchecked", "; not compared,")):
        other = replace(side, outputs=(output, replace(wrong, verdict=verdict)) if verdict == "nan" else ())
        assert other.verdict == verdict
        assert words in run_report_text(GraphInfo("model", ()), replace(report, sides=(other,)))
    assert replace(side, outputs=(replace(wrong, verdict="nan"), wrong)).verdict == "mismatch"
    failed = replace(report, sides=(SideReport(NATIVE, problem="a pass failed"),))
    assert "not run: a pass failed" in run_report_text(GraphInfo("model", ()), failed)
    assert run_report_json(GraphInfo("model", ()), failed)["beside"] == [{"name": NATIVE, "problem": "a pass failed"}]


def test_passes_for_our_own_kernels_are_off_for_another_backend_alone() -> None:
    steps = (PassStep("flash-attention-prefill", "graph", ""), PassStep("slice-parts", "graph", ""))
    recipe = Recipe(steps=steps, backend=IREE, backend_flags=("--iree-opt-level=O1",))
    assert [step.enabled for step in recipe.for_backend().steps] == [False, True]
    assert recipe.for_native().for_backend() == recipe.for_native() == Recipe(steps=steps)


def test_a_recipe_file_of_before_is_one_of_this_compiler() -> None:
    text = to_toml(Recipe())
    before = "\n".join(line for line in text.splitlines() if not line.startswith("backend"))
    assert from_toml(before) == Recipe()
    kept = Recipe(backend=IREE, backend_flags=("--iree-opt-level=O1",))
    assert from_toml(to_toml(kept)) == kept
    plugged = text.replace('backend = "native"', 'backend = "tvm"')
    assert from_toml(plugged).backend == "tvm", "a plug-in may register it; the compiler checks that"
    with pytest.raises(ValueError, match="backend"):
        from_toml(text.replace('backend = "native"', 'backend = "TVM 1"'))


def compilers() -> BackendWorkers:
    listener = WorkerListener(lambda _state: None, lambda _name, _stream, _data: None, lambda: False)
    return BackendWorkers(lambda _frame: None, listener)


def test_a_target_is_not_taken_for_the_code_of_another_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_is_importable", lambda name: True)
    with pytest.raises(JobFailed, match="target aarch64 applies to the native backend only"):
        compilers().compiler_of(Recipe(backend=IREE, target="aarch64"))
    compilers().compiler_of(Recipe(target="aarch64"))
    compilers().compiler_of(Recipe(backend=IREE))


def test_what_is_not_installed_is_said_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_is_importable", lambda name: name != "iree.compiler")
    assert options.missing_packages() == "IREE is not installed (iree.compiler)"
    with pytest.raises(JobFailed, match=r"buddy-tui\[iree\]"):
        compilers().compiler_of(Recipe(backend=IREE))
    compilers().compiler_of(Recipe())
