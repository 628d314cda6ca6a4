"""Steps of dumps that a real `mlir-opt` runs again without some of them."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path

import pytest

from buddy.compiler.importers.dumps.pipeline import DumpPipelineError, Pipeline, StepNumbers, possible_pipelines
from buddy.compiler.importers.dumps.reading import DumpScan, read_text
from buddy.compiler.importers.dumps.records import Dump
from buddy.compiler.mlir import mlir_tool
from buddy.compiler.protocol.dump_files import dump_format
from buddy.compiler.tools.dumps.rerun import Rerun, RerunError, Rerunner, without_locations
from tests.support.dumps import PIPELINE, mlir_opt, unpack, write_log

AFTER, SCOPE = "--mlir-print-ir-after-all", "--mlir-print-ir-module-scope"
BEFORE = "--mlir-print-ir-before-all"


@pytest.fixture(autouse=True)
def own_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mlir_tool.TOOL_VARIABLE, mlir_opt())


def scanned(path: Path) -> Dump:
    found = dump_format(path)
    assert found is not None
    scan = DumpScan(path, found)
    for _ in scan.index():
        pass
    return scan.dump


def step(dump: Dump, title: str, count: int = 0) -> int:
    """The number of the step of the stage with that title."""
    numbers = StepNumbers()
    found = [numbers.add(stage) for stage in dump.stages]
    steps = dict.fromkeys(n for n, stage in zip(found, dump.stages, strict=True) if stage.title.endswith(title))
    return list(steps)[count]


def run_again(dump: Dump, *skipped: int) -> Rerun:
    return asyncio.run(Rerunner(dump).run(skipped, lambda _text: None))


def texts(dump: Dump) -> list[tuple[str, str, str]]:
    """The title, the symbol and the text of each stage."""
    return [(stage.title, stage.ran_on or stage.anchor, read_text(dump, stage)) for stage in dump.stages]


def expected(folder: Path, pipeline: str, *flags: str) -> list[tuple[str, str, str]]:
    """The stages of a run from the start without the steps that were left out."""
    return texts(scanned(write_log(folder / "expected.log", *flags, pipeline=pipeline)))


@pytest.mark.parametrize("flags", [(AFTER,), (AFTER, SCOPE), (AFTER, "--mlir-print-debuginfo")])
def test_a_re_run_gives_what_the_whole_pipeline_gives_without_the_step(flags: tuple[str, ...], tmp_path: Path) -> None:
    dump = scanned(write_log(tmp_path / "a.log", *flags))
    rerun = run_again(dump, step(dump, "loop-invariant-code-motion"))
    assert rerun.problem is None
    assert rerun.notes == ("4 steps run again by torch-mlir-opt",)
    kept = [stage for stage in rerun.dump.stages if stage.origin != "skipped"]
    skipped = [stage for stage in rerun.dump.stages if stage.origin == "skipped"]
    assert {stage.title for stage in skipped} == {"loop-invariant-code-motion"}
    assert not any(stage.changed for stage in skipped)
    assert "re-run" in {stage.origin for stage in kept}
    assert [stage.origin for stage in kept[:5]] == ["dump"] * 5
    without = PIPELINE.replace("func.func(loop-invariant-code-motion),", "")
    # MLIR does not print the locations of all block arguments.
    found, wanted = (
        sorted((title, symbol, without_locations(text)) for title, symbol, text in entries)
        for entries in (texts(rerun.dump), expected(tmp_path, without, *flags))
    )
    assert [entry for entry in found if entry[0] != "loop-invariant-code-motion"] == wanted


def test_texts_before_passes_are_run_again_too(tmp_path: Path) -> None:
    dump = scanned(write_log(tmp_path / "a.log", BEFORE))
    rerun = run_again(dump, step(dump, "symbol-dce"), step(dump, "cse"))
    assert "another text" not in rerun.notes[0]
    kept = [
        entry for stage, entry in zip(rerun.dump.stages, texts(rerun.dump), strict=True) if stage.origin != "skipped"
    ]
    without = PIPELINE.replace("symbol-dce,", "").replace(",cse", "")
    assert kept == expected(tmp_path, without, BEFORE)


def test_several_steps_keep_their_places(tmp_path: Path) -> None:
    dump = scanned(write_log(tmp_path / "a.log"))
    numbers = step(dump, "cse"), step(dump, "canonicalize", -1)
    rerun = run_again(dump, *numbers)
    places = [(stage.title, stage.anchor) for stage in rerun.dump.stages]
    assert sorted(places) == sorted((stage.title, stage.anchor) for stage in dump.stages)
    assert {stage.step for stage in rerun.dump.stages if stage.origin == "skipped"} == set(numbers)
    before = [(s.title, s.step) for s in rerun.dump.stages if s.title == "inline"]
    assert before == [("inline", step(dump, "inline"))]


def test_passes_that_the_inliner_runs_itself_are_no_steps(tmp_path: Path) -> None:
    """Two functions: the log has three stages of `canonicalize` more than the pipeline has."""
    dump = scanned(write_log(tmp_path / "a.log", AFTER))
    pipelines = list(possible_pipelines(dump.stages))
    assert "func.func(canonicalize" in pipelines[0].to_text(0)
    inner = max(pipelines[0].inner)
    number = StepNumbers()
    numbers = [number.add(stage) for stage in dump.stages]
    with pytest.raises(RerunError, match="of a pass that runs it"):
        run_again(dump, numbers[inner])


def test_a_pipeline_that_the_dump_does_not_name_fully_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The headers of LLVM 19 have no options: `one-shot-bufferize` gives another text without them."""
    if shutil.which("mlir-opt-19") is None:
        pytest.skip("mlir-opt-19 is not installed")
    monkeypatch.setenv(mlir_tool.TOOL_VARIABLE, "mlir-opt-19")
    dump = scanned(unpack("mlir", tmp_path) / "threads.log")
    rerun = run_again(dump, step(dump, "linalg-generalize-named-ops"))
    assert "running one-shot-bufferize (step 5) again gives another text than the dump" in rerun.notes[0]
    assert "another mlir-opt, or options that the dump does not name?" in rerun.notes[0]


def test_texts_that_a_re_run_does_not_give_are_said(tmp_path: Path) -> None:
    """The log names a pass without the option that it ran with."""
    pipeline = "builtin.module(symbol-dce,func.func(canonicalize{top-down=false max-iterations=0},cse),inline)"
    path = write_log(tmp_path / "a.log", AFTER, pipeline=pipeline)
    path.write_text(path.read_text().replace("max-iterations=0", "max-iterations=10"))
    dump = scanned(path)
    rerun = run_again(dump, step(dump, "cse"))
    assert (
        "running canonicalize (step 2) again without skipping any step gives another text than the dump"
        in rerun.notes[0]
    )
    first = next(stage for stage in rerun.dump.stages if stage.origin == "re-run")
    assert first.title == "canonicalize", "the shown stages are those of one run from there on"


def test_text_that_the_tool_cannot_read_is_an_error_with_its_message(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.log", AFTER)
    path.write_text(path.read_text().replace("linalg.generic", "linalg.of_the_future"))
    dump = scanned(path)
    with pytest.raises(RerunError, match=r"torch-mlir-opt cannot read the text of .* \(stage \d+\): .*of_the_future"):
        run_again(dump, step(dump, "memref-expand"))


def test_an_unknown_pass_is_an_error_with_its_message(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.log", AFTER)
    path.write_text(path.read_text().replace("memref-expand", "memref-explode"))
    dump = scanned(path)
    with pytest.raises(RerunError, match=r"does not know the pipeline of the dump: .*memref-explode"):
        run_again(dump, step(dump, "loop-invariant-code-motion"))


def test_a_step_that_fails_ends_the_stages_with_its_message(tmp_path: Path) -> None:
    dump = scanned(write_log(tmp_path / "a.log", AFTER))
    rerun = run_again(dump, step(dump, "stablehlo-legalize-to-linalg"))
    assert rerun.problem is not None
    assert rerun.problem.what.startswith("torch-verify-linalg-on-tensors-backend-contract failed: ")
    assert "stablehlo" in rerun.problem.what
    last = rerun.dump.stages[-1]
    assert (last.title, last.failed) == ("torch-verify-linalg-on-tensors-backend-contract", True)
    assert "error:" not in read_text(rerun.dump, rerun.dump.stages[-2]), "no diagnostic is part of the IR"
    assert len(rerun.dump.stages) == len(dump.stages)


def test_a_step_before_the_first_text_of_the_module_cannot_be_left_out(tmp_path: Path) -> None:
    dump = scanned(write_log(tmp_path / "a.log"))
    with pytest.raises(RerunError, match=r"no text of the whole module before symbol-dce \(step 1 of 9\)"):
        run_again(dump, step(dump, "symbol-dce"))


@pytest.mark.parametrize("reverse", [False, True])
def test_functions_alone_make_the_module_where_no_pass_ran_on_it(tmp_path: Path, reverse: bool) -> None:
    pipeline = PIPELINE.replace("symbol-dce,", "")
    path = write_log(tmp_path / "a.log", pipeline=pipeline)
    # The threads of the tool print the functions, each after two passes, in any order.
    _, *printed = re.split(r"^(?=// -----// IR Dump)", path.read_text(), flags=re.MULTILINE)
    printed[:6] = sorted(printed[:6], key=lambda text: text.splitlines()[1], reverse=reverse)
    path.write_text("".join(printed))
    dump = scanned(path)
    rerun = run_again(dump, step(dump, "cse"))
    assert rerun.notes == ("6 steps run again by torch-mlir-opt",)
    without = pipeline.replace("canonicalize,cse", "canonicalize")
    found = [entry for entry in texts(rerun.dump) if entry[0] != "cse"]
    assert sorted(found) == sorted(expected(tmp_path, without, AFTER))


def test_passes_that_name_files_are_not_run(tmp_path: Path) -> None:
    """A dump may come from anyone; its passes must not write files."""
    path = write_log(tmp_path / "a.log", AFTER)
    text, victim = path.read_text(), tmp_path / "victim"
    last = text.rindex("// -----// IR Dump After ")
    header, _, body = text[last:].partition("\n")
    assert "torch-verify-linalg-on-tensors-backend-contract" in header
    evil = f"// -----// IR Dump After X: snapshot-op-locations{{filename={victim} }} //----- //"
    path.write_text(f"{text[:last]}{evil}\n{body}\n\n{text[last:]}")
    dump = scanned(path)
    assert any("filename=" in stage.pipeline for stage in dump.stages)
    rerun = run_again(dump, step(dump, "memref-expand"))
    assert not victim.exists()
    assert any("their options name files: snapshot-op-locations" in note for note in rerun.notes)


def test_without_a_tool_the_error_says_how_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = scanned(write_log(tmp_path / "a.log"))
    monkeypatch.delenv(mlir_tool.TOOL_VARIABLE)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RerunError) as caught:
        run_again(dump, step(dump, "cse"))
    assert "BUDDY_MLIR_OPT" in caught.value.diagnostic.todo
    monkeypatch.setenv(mlir_tool.TOOL_VARIABLE, "/no/such/mlir-opt")
    with pytest.raises(RerunError, match="/no/such/mlir-opt is not executable"):
        run_again(dump, step(dump, "cse"))


async def _cancelled(dump: Dump, number: int) -> None:
    task = asyncio.ensure_future(Rerunner(dump).run([number], lambda _text: None))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_cancelled_re_run_ends_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = scanned(write_log(tmp_path / "a.log"))
    slow, pid = tmp_path / "slow-opt", tmp_path / "pid"
    slow.write_text(f"#!/bin/sh\necho $$ > {pid}\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setenv(mlir_tool.TOOL_VARIABLE, str(slow))
    asyncio.run(_cancelled(dump, step(dump, "cse")))
    process = int(pid.read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_the_functions_of_a_dump_must_run_the_same_passes(tmp_path: Path) -> None:
    stage = "// -----// IR Dump After X ({}) //----- //\nfunc.func @{}() {{\n}}\n\n"
    module = "// -----// IR Dump After X (inline) //----- //\nmodule {\n}\n\n"
    path = tmp_path / "a.log"
    path.write_text(stage.format("cse", "f") + stage.format("sccp", "g") + module + module)
    with pytest.raises(DumpPipelineError, match="ran at the same place on different functions"):
        next(possible_pipelines(scanned(path).stages))
    path.write_text(stage.format("cse", "f") + stage.format("sccp", "f") + stage.format("cse", "g") + module + module)
    with pytest.raises(DumpPipelineError, match="cse ran on 2 functions and sccp on 1"):
        next(possible_pipelines(scanned(path).stages))
    llvm = scanned(unpack("llvm", tmp_path) / "after_all.log")
    with pytest.raises(DumpPipelineError, match="does not name the passes"):
        next(possible_pipelines(llvm.stages))


def test_the_pipelines_of_a_log_and_of_a_folder_are_the_same(tmp_path: Path) -> None:
    folder = unpack("mlir", tmp_path)
    of_log = next(possible_pipelines(scanned(folder / "module_scope.log").stages))
    of_tree = next(possible_pipelines(scanned(folder / "tree").stages))
    assert isinstance(of_tree, Pipeline)
    assert of_tree.to_text(0).startswith(of_log.to_text(0)[:-1])
    assert of_log.to_text(0) == (
        "builtin.module(func.func(canonicalize,cse),inline,func.func(linalg-generalize-named-ops),one-shot-bufferize,"
        "func.func(convert-linalg-to-loops,canonicalize),convert-scf-to-cf)"
    )
    triton = next(possible_pipelines(scanned(unpack("triton", tmp_path) / "passes.log").stages))
    assert triton.to_text(0).startswith("builtin.module(inline{default-pipeline=canonicalize ")
