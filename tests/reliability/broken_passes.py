"""A plug-in with broken passes: they never end, use up memory, abort, or break the compiled code."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.passes.base import MlirPass, PassContext, register

_CALLED = "broken_pass_was_here"
# Volatile, so that LLVM does not remove them.
_ENDLESS = f"""
llvm.func internal @{_CALLED}() attributes {{no_inline}} {{
  %one = llvm.mlir.constant(1 : i64) : i64
  %place = llvm.alloca %one x i64 : (i64) -> !llvm.ptr
  llvm.br ^again
^again:
  llvm.store volatile %one, %place : i64, !llvm.ptr
  llvm.br ^again
}}
"""
_WILD = f"""
llvm.func internal @{_CALLED}() attributes {{no_inline}} {{
  %one = llvm.mlir.constant(1 : i64) : i64
  %place = llvm.inttoptr %one : i64 to !llvm.ptr
  llvm.store volatile %one, %place : i64, !llvm.ptr
  llvm.return
}}
"""
_CALLER = f"""
llvm.func @caller() {{
  llvm.call @{_CALLED}() : () -> ()
  llvm.return
}}
"""


class _Before(MlirPass):
    """Adds a call at the start of every function of the LLVM dialect."""

    text = ""

    def run(self, root: Any, context: PassContext) -> None:
        body = root.regions[0].blocks[0]
        functions = [op for op in body.operations if op.operation.name == "llvm.func" and list(op.operation.regions[0])]
        with root.context, ir.Location.file("broken", 0, 0):
            module = ir.Module.parse(self.text + _CALLER)
            called, caller = module.body.operations
            call = caller.operation.regions[0].blocks[0].operations[0]
            for function in functions:
                first = function.operation.regions[0].blocks[0]
                call.operation.clone(ir.InsertionPoint.at_block_begin(first))
            called.operation.clone(ir.InsertionPoint.at_block_begin(body))


@register
@dataclass(frozen=True)
class NeverEnds(MlirPass):
    name = "broken-never-ends"
    summary = "an endless loop in a pass"

    def run(self, root: Any, context: PassContext) -> None:
        while True:
            pass


@register
@dataclass(frozen=True)
class Devours(MlirPass):
    name = "broken-devours"
    summary = "asks for memory until there is none"

    def run(self, root: Any, context: PassContext) -> None:
        held = []
        while True:
            held.append(bytes(1 << 26))


@register
@dataclass(frozen=True)
class Aborts(MlirPass):
    name = "broken-aborts"
    summary = "a failed assertion"

    def run(self, root: Any, context: PassContext) -> None:
        os.abort()


@register
@dataclass(frozen=True)
class AbortsDeepDown(MlirPass):
    name = "broken-aborts-deep-down"
    summary = "a failed assertion below a hundred calls: the stack that is printed is longer than what is kept of it"
    calls: int = 100

    def run(self, root: Any, context: PassContext) -> None:
        if not self.calls:
            os.abort()
        replace(self, calls=self.calls - 1).run(root, context)


@register
@dataclass(frozen=True)
class EndlessKernel(_Before):
    name = "broken-endless-kernel"
    summary = "an endless loop in compiled code"
    text = _ENDLESS


@register
@dataclass(frozen=True)
class WildKernel(_Before):
    name = "broken-wild-kernel"
    summary = "compiled code that writes where nothing is"
    text = _WILD
