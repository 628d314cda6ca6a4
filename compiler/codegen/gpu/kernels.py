"""Compiles a module with GPU kernels in LLVM's dialects to LLVM IR and PTX, the assembly language of NVIDIA's GPUs.

MLIR's wheels lack that code generator. The driver compiles PTX for the GPU at hand when it loads it, so code for one
chip runs on all later ones.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from buddy.compiler.codegen.functions import to_llvm_ir
from buddy.compiler.codegen.gpu.host_code import HostCodeError, kernel_modules, steps_of
from buddy.compiler.codegen.machines import Machine, optimise, parse_module, target_machine
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.printing import print_llvm, stage_text
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.artifact import DeviceProgram
from buddy.compiler.protocol.text.lines import Origins, StageText

TRIPLE = "nvptx64-nvidia-cuda"
_DECLARED = re.compile(r"^declare [^@\n]*@([\w.$]+)\(", re.MULTILINE)
_INTRINSIC = re.compile(r"llvm\.([a-z]\w*)\.")
# LLVM's intrinsics on which this code generator aborts: no instruction computes them.
_MISSING = frozenset(
    ("exp", "exp10", "log", "log2", "log10", "pow", "powi", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh",
     "tanh", "sincos", "ldexp", "frexp", "modf")
)  # fmt: skip
_PLACE = re.compile(r"^\s*\.loc\s+\d+\s+(\d+)\s")
_FOR_DEBUGGERS = re.compile(r"(?<=\w), debug$")
# Debug directives, which are not part of the program.
_DEBUG = re.compile(r"^\s*\.(?:loc|file)\s|^\s*//|^\$L__(?:func_end|tmp|info|sec_end)\w*:|^\s*\$L__(?:func|tmp)\w*:$")


class PtxError(Exception):
    """PTX cannot be generated; the text says why, `todo` what to do."""

    def __init__(self, text: str, todo: str = "") -> None:
        super().__init__(text)
        self.todo = todo


def emit(llvm_ir: str, chip: str, opt_level: int) -> str:
    """Returns the PTX of a module's text for `chip` (`sm_75`), with debug directives for its line numbers.

    Raises `PtxError`.
    """
    _check_calls(llvm_ir)
    machine = Machine(TRIPLE, chip)
    try:
        module = parse_module(llvm_ir, machine)
        optimise(module, opt_level, machine)
        return str(target_machine(machine, opt_level).emit_assembly(module))
    except RuntimeError as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "no message")
        raise PtxError(
            f"llvmlite's LLVM: {first}", "use versions of torch-mlir and llvmlite of the same age"
        ) from error


def _check_calls(llvm_ir: str) -> None:
    """Raises `PtxError` for calls that are not available on the device."""
    for name in _DECLARED.findall(llvm_ir):
        intrinsic = _INTRINSIC.match(name)
        if not name.startswith("llvm.") or (intrinsic and intrinsic[1] in _MISSING):
            todo = "leave expand-math-to-polynomials on, or compile it for the CPU (--preset default)"
            raise PtxError(f"a kernel calls {name}, which the device does not have", todo)


def without_debug(text: str) -> str:
    """Returns PTX without debug directives, for the driver."""
    return "\n".join([*(line for line, _ in _lines(text)), ""])


def print_ptx(modules: Sequence[str], locations: LocationSets) -> StageText:
    """Prints PTX texts one after another; debug directives give the nodes of each instruction.

    Instructions without a directive, such as reads of a kernel's parameters, belong to all nodes of the kernel.
    """
    content: list[str] = []
    sets: list[int] = []
    for text in modules:
        lines = _lines(text)
        known = {number for _, number in lines if 0 < number < len(locations.sets)}
        whole = locations.as_derived(locations.united(known))
        content += [*(line for line, _ in lines), ""]
        sets += [*((number if number in known else whole) * _is_instruction(line) for line, number in lines), 0]
    weights = Counter(number for line, number in zip(content, sets, strict=True) if _is_instruction(line))
    return stage_text(content, sets, locations, weights)


def _lines(text: str) -> list[tuple[str, int]]:
    """Returns the lines of the program, each with its source line (0: none)."""
    found: list[tuple[str, int]] = []
    number = 0
    for line in text.partition("\t.section\t.debug")[0].splitlines():
        place = _PLACE.match(line)
        if place:
            number = int(place[1])
        elif not _DEBUG.match(line) and (line.strip() or (found and found[-1][0])):
            line = _FOR_DEBUGGERS.sub("", line.partition("//")[0].rstrip().expandtabs(8))
            if not line.startswith(" "):
                number = number if line.startswith("$") else 0
            found.append((line, number if _is_instruction(line) else 0))
    while found and not found[-1][0]:
        found.pop()
    return found


def _is_instruction(line: str) -> bool:
    return line.startswith(" ") and line.lstrip()[:1] not in (".", "")


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
        marked = [emit(text, chip, opt_level) for text in texts]
    except PtxError as error:
        raise DeviceError(Diagnostic(str(error), "the code generator for NVIDIA's GPUs", error.todo)) from error
    program = DeviceProgram(chip, tuple(map(without_debug, marked)), buffers, steps)
    llvm, shown = _one_text([print_llvm(text, locations) for text in texts]), print_ptx(marked, locations)
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
