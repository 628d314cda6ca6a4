"""Compiles a module with GPU kernels in LLVM's dialects to LLVM IR and PTX, the assembly language of NVIDIA's GPUs.

LLVM in the bindings has no code generator for PTX, so llvmlite's LLVM is used. The driver compiles PTX for the present
GPU when it loads the PTX, so code for one chip runs on all later chips.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from buddy.compiler.codegen.gpu.host_code import HostCodeError, host_steps, kernel_modules
from buddy.compiler.codegen.machines import Machine, parse_module, run_pipeline, target_machine
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.printing import print_llvm, stage_text, to_llvm_ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.mlir.walk import nested_ops, symbol_of
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.artifact import DeviceProgram
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.text.lines import Origins, StageText

TRIPLE = "nvptx64-nvidia-cuda"
# The names of functions that a module in LLVM IR declares, and the name of an intrinsic without its types.
_DECLARED = re.compile(r"^declare [^@\n]*@([\w.$]+)\(", re.MULTILINE)
_INTRINSIC = re.compile(r"llvm\.([a-z]\w*)\.")
# LLVM's intrinsics that have no instruction: the code generator aborts on them.
_UNSUPPORTED_INTRINSICS = frozenset(
    ("exp", "exp10", "log", "log2", "log10", "pow", "powi", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh",
     "tanh", "sincos", "ldexp", "frexp", "modf")
)  # fmt: skip
# The line of a directive `.loc FILE LINE COLUMN`. LLVM IR has the number of a location set in place of a line.
_LOC_DIRECTIVE = re.compile(r"^\s*\.loc\s+\d+\s+(\d+)\s")
# The option for debug information in the line `.target sm_75, debug`.
_DEBUG_TARGET = re.compile(r"(?<=\w), debug$")
# Debug directives and the labels that they use, which are not part of the program.
_DEBUG_LINE = re.compile(
    r"^\s*\.(?:loc|file)\s|^\s*//|^\$L__(?:func_end|tmp|info|sec_end)\w*:|^\s*\$L__(?:func|tmp)\w*:$"
)


class PtxError(BuddyError):
    """PTX cannot be generated; `diagnostic` says why, and what to do."""

    def __init__(self, what: str, todo: str) -> None:
        super().__init__(what, "the code generator for NVIDIA's GPUs", todo)


def emit_ptx(llvm_ir: str, chip: str, opt_level: int) -> str:
    """Returns the PTX of a module in LLVM IR for `chip` (such as `sm_75`), with debug directives for its line numbers.

    Raises `PtxError` if a kernel calls a function that the device does not have, or if llvmlite's LLVM rejects the
    module.
    """
    _check_calls(llvm_ir)
    machine = Machine(TRIPLE, chip)
    try:
        module = parse_module(llvm_ir, machine)
        run_pipeline(module, opt_level, machine)
        return str(target_machine(machine, opt_level).emit_assembly(module))
    except RuntimeError as error:
        first_line = next((line for line in str(error).splitlines() if line.strip()), "no message")
        todo = "use versions of torch-mlir and llvmlite with the same version of LLVM"
        raise PtxError(f"llvmlite's LLVM: {first_line}", todo) from error


def _check_calls(llvm_ir: str) -> None:
    """Raises `PtxError` for calls that are not available on the device."""
    for name in _DECLARED.findall(llvm_ir):
        intrinsic = _INTRINSIC.match(name)
        if not name.startswith("llvm.") or (intrinsic and intrinsic[1] in _UNSUPPORTED_INTRINSICS):
            todo = "enable expand-math-to-polynomials, or compile the program for the CPU (--preset default)"
            raise PtxError(f"a kernel calls {name}, which the device does not have", todo)


def remove_debug_directives(text: str) -> str:
    """Returns PTX without debug directives, for the driver."""
    return "\n".join([*(line for line, _ in _program_lines(text)), ""])


def print_ptx(modules: Sequence[str], locations: LocationSets) -> StageText:
    """Prints PTX texts one after another; debug directives give the nodes of each instruction.

    Instructions without a directive, such as reads of a kernel's parameters, belong to all nodes of the kernel.
    """
    content: list[str] = []
    set_numbers: list[int] = []
    for text in modules:
        lines = _program_lines(text)
        kernel_sets = {number for _, number in lines if 0 < number < len(locations.sets)}
        kernel_set = locations.as_derived(locations.unite(kernel_sets))  # for instructions without a set of their own
        content += [*(line for line, _ in lines), ""]
        for line, number in lines:
            set_of_instruction = number if number in kernel_sets else kernel_set
            set_numbers.append(set_of_instruction if _is_instruction(line) else 0)
        set_numbers.append(0)
    op_counts = Counter(number for line, number in zip(content, set_numbers, strict=True) if _is_instruction(line))
    return stage_text(content, set_numbers, locations, op_counts)


def _program_lines(text: str) -> list[tuple[str, int]]:
    """Returns the lines of PTX without debug directives, each with the number of its location set (0: none)."""
    lines: list[tuple[str, int]] = []
    number = 0
    for line in text.partition("\t.section\t.debug")[0].splitlines():
        directive = _LOC_DIRECTIVE.match(line)
        if directive:
            number = int(directive[1])
        # Of adjacent empty lines, the first one stays; none stays at the start.
        elif not _DEBUG_LINE.match(line) and (line.strip() or (lines and lines[-1][0])):
            line = _DEBUG_TARGET.sub("", line.partition("//")[0].rstrip().expandtabs(8))
            # After a label, the last directive still holds. Any other line at the left edge is outside of a kernel.
            if not line.startswith(" "):
                number = number if line.startswith("$") else 0
            lines.append((line, number if _is_instruction(line) else 0))
    while lines and not lines[-1][0]:
        lines.pop()
    return lines


def _is_instruction(line: str) -> bool:
    return line.startswith(" ") and line.lstrip()[:1] not in (".", "")


# ---- the code of a module --------------------------------------------------------------------------------------------

# The chip if the pass `nvvm-attach-target` has not set one: the oldest one that current drivers support.
_DEFAULT_CHIP = "sm_75"
_TARGET = re.compile(r'#nvvm\.target<[^>]*chip = "(\w+)"')
# The dialects that a kernel may use when it is translated to LLVM IR.
_KERNEL_DIALECTS = ("llvm", "nvvm", "gpu", "builtin")


class DeviceError(BuddyError):
    """The module cannot be compiled for a device; the diagnostic gives the reason."""


@dataclass(frozen=True)
class DeviceCode:
    """The kernels as LLVM IR and as PTX, the seconds that each took to generate, and the program for the runtime."""

    llvm: StageText
    llvm_seconds: float
    ptx: StageText
    ptx_seconds: float
    program: DeviceProgram


def has_kernels(module: ir.Operation) -> bool:
    """Returns whether a module has GPU kernels."""
    return bool(kernel_modules(module))


def device_code(module: ir.Operation, locations: LocationSets, opt_level: int) -> DeviceCode:
    """Returns the code of the kernels of `module`, with the steps of the host.

    Raises `DeviceError` if the host would have to compute something, if a kernel is not in LLVM's dialects, or if no
    PTX can be generated.
    """
    kernels = kernel_modules(module)
    _check_dialects(kernels, locations)
    try:
        buffers, steps = host_steps(module)
    except HostCodeError as error:
        raise DeviceError(_host_diagnostic(error, module, locations)) from error
    started = time.perf_counter()
    texts = [_translate(kernel) for kernel in kernels]
    translated = time.perf_counter()
    chip = _chip_of(kernels)
    try:
        ptx_texts = [emit_ptx(text, chip, opt_level) for text in texts]
    except PtxError as error:
        raise DeviceError(error.diagnostic) from error
    program = DeviceProgram(chip, tuple(map(remove_debug_directives, ptx_texts)), buffers, steps)
    llvm, ptx = _concatenate([print_llvm(text, locations) for text in texts]), print_ptx(ptx_texts, locations)
    return DeviceCode(llvm, translated - started, ptx, time.perf_counter() - translated, program)


def _concatenate(texts: Sequence[StageText]) -> StageText:
    """Concatenates the texts of modules, which are printed separately, since each numbers its metadata from 0."""
    origins_of_texts = zip(*(text.origins for text in texts), strict=True)  # direct, derived, unmapped
    return msgspec.structs.replace(
        texts[-1],
        content="".join(text.content for text in texts),
        line_sets=tuple(number for text in texts for number in text.line_sets),
        origins=Origins(*(sum(counts) for counts in origins_of_texts)),
    )


def _check_dialects(kernels: list[ir.Operation], locations: LocationSets) -> None:
    """Raises `DeviceError` for the first op of a kernel that is in another dialect than `_KERNEL_DIALECTS`."""
    for kernel in kernels:
        for op in (kernel, *nested_ops(kernel)):
            if op.name.partition(".")[0] not in _KERNEL_DIALECTS:
                node = next(iter(locations.sets[locations.number_of(op.location)]), "")
                todo = f"add a pass on gpu.module that converts {op.name} to the LLVM dialect"
                what = f"{op.name} in a kernel has not been converted to the LLVM dialect"
                raise DeviceError(Diagnostic(what, where=node, todo=todo, node=node))


def _translate(kernel: ir.Operation) -> str:
    """Returns the LLVM IR of one `gpu.module`. Its only kernel gets the name of the module, which is unique.

    Raises `DeviceError` if the translation fails.
    """
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
        first_line = next((line for line in str(error).splitlines() if line.strip()), "no message")
        raise DeviceError(
            Diagnostic(first_line, where=f"translation of @{name} to LLVM IR", detail=str(error))
        ) from error


def _chip_of(kernels: list[ir.Operation]) -> str:
    """Returns the chip of the first target that is attached to a kernel, `_DEFAULT_CHIP` if none is attached."""
    for kernel in kernels:
        target = _TARGET.search(str(kernel.attributes["targets"])) if "targets" in kernel.attributes else None
        if target:
            return target[1]
    return _DEFAULT_CHIP


def _host_diagnostic(error: HostCodeError, module: ir.Operation, locations: LocationSets) -> Diagnostic:
    """Returns the diagnostic for host code that cannot be converted to steps."""
    node = next(iter(locations.sets[locations.number_of(error.location)]), "")
    where = "the host code" + (f", on an op of {node}" if node else "")
    todo = "compile the program for the CPU (--preset default)"
    # Functions that `ops.func` adds for checks of values.
    if any(symbol_of(op.operation).startswith("error_path_") for op in module.regions[0].blocks[0]):
        todo = f"omit the checks of values, which the host would do (--checks none), or {todo}"
    return Diagnostic(str(error), where, todo, node=node)
