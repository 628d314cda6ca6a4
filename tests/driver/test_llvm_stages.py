"""The stages of LLVM's passes in a compilation: between LLVM IR and assembly, with nodes, and with the same results."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
import torch

from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.text.lines import StageText
from tests.models import stack
from tests.programs import Line, assert_same

pytestmark = pytest.mark.slow


def recipe(**fields: Any) -> Recipe:
    return msgspec.structs.replace(default_recipe(), **fields)


@pytest.fixture(scope="module")
def line() -> Line:
    line = Line(*stack(1))
    line.compile(recipe(llvm_stages=True))
    return line


def test_stages_of_llvm_are_between_its_ir_and_assembly(line: Line) -> None:
    stages = [(stage, text) for stage, text in line.stages if stage.phase in ("ir", "asm")]
    names = [stage.name for stage, _ in stages]
    assert names[:2] == ["translate", "optimiser-input"]
    assert names[-1] == "codegen"
    assert {"instcombine", "simplifycfg"} <= set(names)
    assert not any(first == second for first, second in pairwise(names))
    contents = [text.content for stage, text in stages if stage.phase == "ir"]
    assert all(first != second for first, second in pairwise(contents))
    instcombine = next(stage for stage, _ in stages if stage.name == "instcombine")
    assert instcombine.deltas


def test_instructions_keep_their_nodes(line: Line) -> None:
    (stage, text) = [(stage, text) for stage, text in line.stages if stage.phase == "ir"][-1]
    direct, derived, none = stage.origins
    assert none < 0.1 * (direct + derived)
    lines = text.content.splitlines()
    nodes = {node for n, line in enumerate(lines) if " fma" in line or "fmul" in line for node in nodes_of(text, n)}
    assert any("addmm" in node or "mm" in node or "linear" in node for node in nodes), nodes


def nodes_of(text: StageText, line: int) -> tuple[str, ...]:
    return text.sets[text.line_sets[line]]


def test_a_cached_compilation_has_the_same_stages(line: Line) -> None:
    before = [(stage.name, text.content) for stage, text in line.stages]
    line.compile(recipe())
    assert "optimiser-input" not in [stage.name for stage, _ in line.stages]
    line.compile(recipe(llvm_stages=True))
    assert [(stage.name, text.content) for stage, text in line.stages] == before


def test_code_without_some_passes_computes_the_same(line: Line) -> None:
    results = line.run(recipe(llvm_stages=True, llvm_disabled=("instcombine", "loop-unroll")))
    names = [stage.name for stage, _ in line.stages]
    assert "optimiser-input" in names
    assert "instcombine" not in names
    model, x = stack(1)
    with torch.no_grad():
        assert_same(results, [model(x)])


def test_an_unknown_pass_of_llvm_is_an_error_with_similar_names(line: Line) -> None:
    diagnostic = line.fail(recipe(llvm_disabled=("loop-unrol",))).diagnostic
    assert diagnostic.what == "LLVM's pipeline has no pass 'loop-unrol' at this optimization level"
    assert "did you mean loop-unroll" in diagnostic.todo
