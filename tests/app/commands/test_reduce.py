"""Reducing in the workbench: the input of a failed pass, a stage with a command of the user, and stopping it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from buddy.app.screens.picker import PickerScreen
from buddy.app.screens.results import ResultScreen
from buddy.compiler.protocol.recipe import PassStep, PluginFile

pytestmark = pytest.mark.slow
Open = Callable[..., Any]
PASS = """
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.walk import find_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.pass_runner import PassRunError


@register
@dataclass(frozen=True)
class DislikeLoops(MlirPass):
    name: ClassVar[str] = "dislike-loops"
    summary: ClassVar[str] = "fails if a loop has a nested loop"

    def run(self, root: Any, context: PassContext) -> None:
        if any(find_ops(loop, "scf.for") for loop in find_ops(root, "scf.for")):
            raise PassRunError("nested loops are not supported")
"""
LOOPS = """
func.func @scaled(%x: memref<8x8xf32>, %y: memref<8x8xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %k = arith.constant 2.0 : f32
  scf.for %i = %c0 to %c8 step %c1 {
    scf.for %j = %c0 to %c8 step %c1 {
      %u = memref.load %x[%i, %j] : memref<8x8xf32>
      %p = arith.mulf %k, %u : f32
      memref.store %p, %y[%i, %j] : memref<8x8xf32>
    }
  }
  return
}
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "loops.mlir"
    path.write_text(LOOPS)
    return path


async def test_a_stage_is_reduced_while_a_command_accepts_it(
    workbench: Open, module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    test = tmp_path / "test.sh"
    test.write_text('#!/bin/sh\ngrep -q arith.mulf "$1"\n')
    test.chmod(0o755)
    async with workbench(module, size=(160, 50)) as bench:
        await bench.settled()
        await bench.press("g", "K")
        await bench.opened(PickerScreen)
        await bench.sees("a test exits with 0")
        await bench.press(*"exits", "enter")
        await bench.sees("test, with {} for the module")
        await bench.press("ctrl+u")
        await bench.type("./test.sh {}")
        await bench.press("enter")
        screen = await bench.opened(ResultScreen)
        await bench.sees("no single step makes it smaller")
        (title, text) = screen._list.result.texts[0]
        assert title == "reduced module"
        assert "arith.mulf" in text
        assert "scf.for" not in text
        await bench.press("s")
        await bench.sees("write the reduced module to")
        await bench.press("enter")
        await bench.until((tmp_path / "reduced.mlir.sh").exists, "the files")
        assert (tmp_path / "reduced.mlir").read_text() == text


async def test_the_input_of_a_failed_pass_is_reduced(workbench: Open, module: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "dislike_loops.py"
    plugin.write_text(PASS)
    async with workbench(module, size=(160, 50), plugins=(PluginFile(str(plugin)),)) as bench:
        recipe = bench.app.workspace.recipe
        place = next(number for number, step in enumerate(recipe.steps) if step.name == "convert-scf-to-cf")
        failing = PassStep("dislike-loops", "mlir", "builtin.module", phase=recipe.steps[place].phase)
        steps = (*recipe.steps[:place], failing, *recipe.steps[place:])
        bench.app.context.edits.edit(replace(recipe, steps=steps), "a pass that fails")
        await bench.until(lambda: bench.app.state.problem is not None, "the failure")
        await bench.settled()
        await bench.press("g", "K")
        await bench.opened(PickerScreen)
        await bench.sees("dislike-loops fails")
        await bench.press("enter")
        screen = await bench.opened(ResultScreen)
        (_, text) = screen._list.result.texts[0]
        assert text.count("scf.for") == 2
        assert "memref" not in text
        assert "nested loops are not supported" in " ".join(screen._list.result.conclusions)
