"""Modules with shared loops, from text to linked functions: as the default preset does it, from the kernels on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from buddy.compiler import codegen
from buddy.compiler.bindings import ir
from buddy.compiler.passes.base import PassContext
from buddy.compiler.pipeline import run_step
from buddy.compiler.presets import default_recipe
from buddy.compiler.provenance import LocationSets
from buddy.compiler.runner.linker import Library
from buddy.compiler.runner.loaded import call
from buddy.compiler.runner.openmp import Fork, torch_fork

_FIRST = "parallel-to-tasks"


class Shared:
    """A module whose function `@f` takes memrefs; loops in it are shared by `threads` threads."""

    def __init__(self, text: str, threads: int, nodes: Sequence[str] = ()) -> None:
        steps = [step for step in default_recipe().steps if step.enabled]
        steps = steps[[step.name for step in steps].index(_FIRST) :]
        self.locations = LocationSets()
        for node in nodes:
            self.locations.intern([node])
        self.texts: dict[str, str] = {}
        context = ir.Context()
        context.enable_multithreading(False)
        with context, self.locations.nowhere(context):
            self.module = ir.Module.parse(text)
            pass_context = PassContext(self.locations, threads=threads)
            for step in steps:
                run_step(self.module.operation, step, pass_context)
                self.texts[step.name] = str(self.module)
        self.remarks = [remark.text for remark in pass_context.remarks if remark.pass_name == _FIRST]
        self._linked: dict[int, Library] = {}

    def __call__(self, *tensors: torch.Tensor, fork: Fork | None = None) -> None:
        """Call `@f` on `tensors`, which it may write to."""
        found = fork or torch_fork()
        if id(found) not in self._linked:
            with self.module.context:
                objects = codegen.compile_functions(self.module.operation, self.locations, 3)
            images = [each.data for each in objects]
            self._linked[id(found)] = Library(images, {"f": len(tensors)}, found.symbols, found.ir)
        call(self._linked[id(found)]["f"], tensors)
