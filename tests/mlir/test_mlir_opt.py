"""The user's own `mlir-opt`: what it lists, its passes in a pipeline, and what it says when it refuses."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from buddy.compiler.mlir import mlir_tool
from buddy.compiler.passes import mlir_opt
from buddy.compiler.passes.catalogue import catalogue
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import PassStep, Recipe
from tests.programs import Line, assert_same, step_number

X = torch.linspace(-1, 1, 24).reshape(4, 6)


def model(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ x.T) + 1


# A pass of IREE's own that runs on any module.
THEIRS = "iree-util-optimize-int-arithmetic"


def with_step(recipe: Recipe, before: str, step: PassStep) -> Recipe:
    number = step_number(recipe, before)
    return msgspec.structs.replace(recipe, steps=(*recipe.steps[:number], step, *recipe.steps[number:]))


def test_without_one_there_are_no_passes_of_it() -> None:
    assert mlir_tool.find_tool() is None
    assert mlir_opt.passes() == ()
    assert mlir_opt.problem() == ""


def test_one_on_the_path_is_used(on_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", on_path)
    found = {info.name: info for info in mlir_opt.passes()}
    assert found["torch-fuse-quantized-ops"].summary
    assert found["torch-fuse-quantized-ops"].origin == "mlir-opt"
    options = {option.name: option.summary for option in found["canonicalize"].options}
    assert "iterations" in options["max-iterations"]
    assert "pass-pipeline" not in found, "flags of the tool itself are not passes"


def test_passes_of_its_own_are_in_the_catalogue_and_the_others_are_not_there_twice(
    iree_opt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(mlir_tool.TOOL_VARIABLE, iree_opt)
    listed = catalogue()
    assert len({info.name for info in listed}) == len(listed)
    theirs = {info.name: info for info in listed if info.origin == "iree-opt"}
    assert theirs[THEIRS].summary
    assert "canonicalize" not in theirs


def test_a_pass_of_its_own_runs_in_a_pipeline_and_ops_keep_their_nodes(
    iree_opt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(mlir_tool.TOOL_VARIABLE, iree_opt)
    line = Line(model, X)
    recipe = with_step(default_recipe(), "one-shot-bufferize", PassStep(THEIRS, phase="fused"))
    results = line.run(recipe)
    stage = next(stage for stage, _ in line.stages if stage.name == THEIRS)
    assert stage.origins[2] == 0
    assert stage.origins[0] > 0
    assert_same(results, line.program.eager(line.program.tensors))


def test_a_pass_that_does_not_run_on_a_module_is_told(iree_opt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mlir_tool.TOOL_VARIABLE, iree_opt)
    step = PassStep("iree-llvmcpu-vector-transpose-lowering", phase="fused")
    diagnostic = Line(model, X).fail(with_step(default_recipe(), "one-shot-bufferize", step)).diagnostic
    assert "intended to run on 'builtin.module'" in diagnostic.what
    assert "iree-llvmcpu-vector-transpose-lowering" in diagnostic.where


def test_what_it_refuses_is_told_with_the_node(torch_mlir_opt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mlir_tool.TOOL_VARIABLE, torch_mlir_opt)
    step = PassStep("torch-verify-linalg-on-tensors-backend-contract", phase="buffers")
    diagnostic = Line(model, X).fail(with_step(default_recipe(), "plan-memory", step)).diagnostic
    assert diagnostic.what
    assert "torch-verify-linalg-on-tensors-backend-contract" in diagnostic.where
    assert diagnostic.node


def test_wrong_options_are_told_in_its_words(iree_opt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mlir_tool.TOOL_VARIABLE, iree_opt)
    step = PassStep(THEIRS, options=(("no-such-option", 1),), phase="fused")
    diagnostic = Line(model, X).fail(with_step(default_recipe(), "one-shot-bufferize", step)).diagnostic
    assert "no-such-option" in diagnostic.what + diagnostic.detail


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("/no/such/mlir-opt", "is not executable"),
        (sys.executable, "lists no passes"),
        (os.devnull, "is not executable"),
    ],
)
def test_a_variable_that_names_no_such_tool_is_told_in_one_line(
    named: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(mlir_tool.TOOL_VARIABLE, named)
    assert said in mlir_opt.problem()
    assert "\n" not in mlir_opt.problem()
    assert Path(named).name in mlir_opt.problem()
    assert mlir_opt.passes() == ()


def test_one_that_is_built_anew_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the one before it made is not taken for what this one would."""
    tool = tmp_path / "mlir-opt"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o700)
    monkeypatch.setenv(mlir_tool.TOOL_VARIABLE, str(tool))
    line = Line(model, X)
    line.compile()
    assert line.compile().reused == len(line.stages) - 1, "all but the graph itself"
    tool.write_text("#!/bin/sh\nexit 0\n")
    graphs = sum(stage.phase == "graph" for stage, _ in line.stages)
    assert line.compile().reused == graphs - 1, "graph passes are not passes of it"
