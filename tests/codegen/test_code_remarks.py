"""What LLVM's own passes say of code, joined to nodes by the line tables."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from buddy.compiler.codegen.objects import llvm_passes
from buddy.compiler.codegen.objects.llvm_passes import ObjectRemark, RemarksError, parse_remarks
from buddy.compiler.driver.compilation import Compiler
from buddy.compiler.protocol import LLVM
from buddy.compiler.protocol.presets import default_recipe
from tests.programs import captured


def test_what_llvm_prints_is_read_by_line_and_told_once() -> None:
    printed = """remark: graph:3:0: vectorized loop (vectorization width: 16, interleaved count: 4)
remark: graph:0:0: 4 spills 1.0e+01 total spills cost generated in function
remark: graph:3:0: vectorized loop (vectorization width: 16, interleaved count: 4)
remark: graph:5:0: 17 virtual registers copies 1.164000e+03 total copies cost generated in function
warning: something else
"""
    assert parse_remarks(printed) == [
        ObjectRemark(3, "vectorized loop (vectorization width: 16, interleaved count: 4)", 2),
        ObjectRemark(0, "4 spills 1.0e+01 total spills cost generated in function"),
    ]


def test_remarks_lead_to_nodes_and_are_kept_beside_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    program = captured(lambda a, b: (torch.relu(a + b)).sum(1), torch.randn(40, 50), torch.randn(40, 50))
    compiler, recipe = Compiler(program.graph), default_recipe(preset="upstream")
    found = compiler.code_remarks(recipe)
    assert {who for who, _, _ in found} == {LLVM}
    nodes = {op.stable for op in program.graph.operations}
    assert {node for _, node, _ in found} <= nodes
    assert any("unrolled loop" in text and node == "sum.0" for _, node, text in found), found

    def call(*words: Any) -> Any:
        raise AssertionError("LLVM is asked again")

    monkeypatch.setattr(llvm_passes, "call_and_wait", call)
    assert compiler.code_remarks(recipe) == found


def test_code_for_another_machine_has_none() -> None:
    program = captured(lambda a: a + 1, torch.randn(4))
    recipe = msgspec.structs.replace(default_recipe(), target="aarch64")
    with pytest.raises(RemarksError, match="differs from this CPU"):
        Compiler(program.graph).code_remarks(recipe)


def test_a_process_that_does_not_live_to_say_it_is_an_error() -> None:
    with pytest.raises(RemarksError, match="not enough values"):
        llvm_passes.remarks_of([b""], 2)
