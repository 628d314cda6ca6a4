"""Generates PTX, the assembly language of NVIDIA's GPUs, by the LLVM in llvmlite, and prints it with its nodes.

MLIR's wheels lack that code generator. The driver compiles PTX for the GPU at hand when it loads it, so code for one
chip runs on all later ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from buddy.compiler.codegen.machines import Machine, optimise, parse_module, target_machine
from buddy.compiler.mlir.printing import stage_text
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.protocol.text.stage_text import StageText

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
