"""Compiles a module with GPU kernels in LLVM's dialects to LLVM IR and PTX, each as a stage, and to a program."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from buddy.compiler.codegen.functions import to_llvm_ir
from buddy.compiler.codegen.gpu import ptx
from buddy.compiler.codegen.gpu.host_code import HostCodeError, kernel_modules, steps_of
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.printing import print_llvm
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.device_program import DeviceProgram
from buddy.compiler.protocol.text.stage_text import Origins, StageText

# The default without `nvvm-attach-target`: the oldest chips that current drivers support.
_CHIP = "sm_75"
_TARGET = re.compile(r'#nvvm\.target<[^>]*chip = "(\w+)"')
_FINAL = ("llvm", "nvvm", "gpu", "builtin")


class DeviceError(Exception):
    """No device can run the kernels; the diagnostic gives the reason."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(str(diagnostic))
        self.diagnostic = diagnostic


@dataclass(frozen=True)
class DeviceCode:
    """The kernels as LLVM IR and as PTX, the seconds that each took, and the program."""

    llvm: StageText
    llvm_seconds: float
    ptx: StageText
    ptx_seconds: float
    program: DeviceProgram


def holds_kernels(module: Any) -> bool:
    """True if a module is a GPU program."""
    return bool(kernel_modules(module))


def device_code(module: Any, locations: LocationSets, opt_level: int) -> DeviceCode:
    """Returns the code of the kernels of `module`, and the steps of the host.

    Raises `DeviceError` if the host would have to compute something, or a kernel is not in LLVM's dialects.
    """
    kernels = kernel_modules(module)
    _check(kernels, locations)
    try:
        buffers, steps = steps_of(module)
    except HostCodeError as error:
        raise DeviceError(_host_diagnostic(error, locations)) from error
    started = time.perf_counter()
    texts = [_translate(kernel) for kernel in kernels]
    translated = time.perf_counter()
    chip = _chip(kernels)
    try:
        marked = [ptx.emit(text, chip, opt_level) for text in texts]
    except ptx.PtxError as error:
        raise DeviceError(Diagnostic(str(error), "the code generator for NVIDIA's GPUs", error.todo)) from error
    program = DeviceProgram(chip, tuple(map(ptx.without_debug, marked)), buffers, steps)
    llvm, shown = _one_text([print_llvm(text, locations) for text in texts]), ptx.print_ptx(marked, locations)
    return DeviceCode(llvm, translated - started, shown, time.perf_counter() - translated, program)


def _one_text(texts: Sequence[StageText]) -> StageText:
    """Concatenates texts; each numbers its metadata separately, so they are parsed one by one."""
    return msgspec.structs.replace(
        texts[-1],
        content="".join(text.content for text in texts),
        line_sets=tuple(number for text in texts for number in text.line_sets),
        origins=Origins(*map(sum, zip(*(text.origins for text in texts), strict=True))),
    )


def _check(kernels: list[Any], locations: LocationSets) -> None:
    for kernel in kernels:
        for op in _ops_in(kernel):
            if op.name.partition(".")[0] not in _FINAL:
                node = next(iter(locations.sets[locations.number_of(op.location)]), "")
                todo = f"add a pass on gpu.module that converts {op.name} to the LLVM dialect"
                raise DeviceError(Diagnostic(f"{op.name} is left in a kernel: not machine code", node, todo, node=node))


def _ops_in(root: Any) -> list[Any]:
    found: list[Any] = []

    def visit(op: Any) -> Any:
        found.append(op)
        return ir.WalkResult.ADVANCE

    root.walk(visit)
    return found


def _translate(kernel: Any) -> str:
    """Returns the LLVM IR of one `gpu.module`, whose only kernel gets the module's name, which is unique."""
    with kernel.context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            copies = [
                op.operation.clone() for op in kernel.regions[0].blocks[0] if op.operation.name != "gpu.module_end"
            ]
        name = ir.StringAttr(kernel.attributes["sym_name"]).value
        for copy in copies:
            if "gpu.kernel" in copy.attributes:
                copy.attributes["sym_name"] = ir.StringAttr.get(name)
    try:
        return to_llvm_ir(module.operation)
    except (ir.MLIRError, RuntimeError, ValueError) as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "no message")
        raise DeviceError(Diagnostic(first, f"translation of @{name} to LLVM IR", detail=str(error))) from error


def _chip(kernels: list[Any]) -> str:
    for kernel in kernels:
        found = _TARGET.search(str(kernel.attributes["targets"])) if "targets" in kernel.attributes else None
        if found:
            return found[1]
    return _CHIP


def _host_diagnostic(error: HostCodeError, locations: LocationSets) -> Diagnostic:
    node = next(iter(locations.sets[locations.number_of(error.location)]), "")
    where = "the host code" + (f", on an op of {node}" if node else "")
    return Diagnostic(str(error), where, "compile it for the CPU (--preset default)", node=node)
