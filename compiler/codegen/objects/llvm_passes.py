"""Runs LLVM's passes so that LLVM prints what they do: the module after each pass, or their remarks.

LLVM prints these, and skips passes, if command-line options request it. A process can set the options only once, so
`optimise_functions` and `remarks_of` work in one-shot processes. The optimiser is llvmlite's, because the bindings'
`ExecutionEngine` ignores these options. Remarks come from the bindings' LLVM, which compiles the functions again.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec

from buddy.compiler.codegen import machines
from buddy.compiler.codegen.machines import Machine
from buddy.compiler.mlir.provenance import FILE
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.support.files import capture_stderr
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_and_wait

# ---- the module after each pass --------------------------------------------------------------------------------------


# Time limit for all functions: a function takes about a second with all modules printed, the largest ones longer.
_OPTIMISER_SECONDS = 600.0
_MAX_ERROR_LENGTH = 500  # characters at the end of the output of a process that failed
# The lines that LLVM prints before a pass, before the module after a pass, and in place of a module.
_STARTED = re.compile(r"^(?:BISECT|OptDisable): (NOT )?running pass (?:\(\d+\) )?(\S+) on (.*)$")
_DUMP = re.compile(r"^\*\*\* IR Dump (?:At Start|After (.*?) on (.*?)( omitted because no change)?) \*\*\*$")
_NOT_PRINTED = re.compile(r"^\*\*\* IR Pass (.*?) on (.*?) (?:ignored|invalidated|filtered out) \*\*\*$")
# Requests names of passes, which `-print-changed` prints as names of C++ classes.
_PRINT_NAMES = ("-opt-bisect-limit=-1", "-opt-bisect-verbose")
_PRINT_MODULES = ("-print-changed", "-print-module-scope")


class OptimiserError(BuddyError):
    """LLVM's optimiser failed; the text says why."""


class LlvmPass(msgspec.Struct, frozen=True):
    """One run of a pass of LLVM on `where` (a function, loop or module), and the module after it, "" if unchanged.

    The first entry of a module has the name "" and is the module before all passes. `skipped` passes are disabled.
    """

    name: str
    where: str
    text: str = ""
    skipped: bool = False


class OptimisedFunction(msgspec.Struct, frozen=True):
    """An object, the passes that LLVM ran to make it, and the seconds that it took.

    `names` are the names of the passes that can be skipped.
    """

    data: bytes
    passes: tuple[LlvmPass, ...]
    names: tuple[str, ...]
    seconds: float


class OptimiserRequest(msgspec.Struct, frozen=True):
    """The input of `run_optimiser`: modules as LLVM IR, the target, and the arguments of `optimise_functions`."""

    texts: tuple[str, ...]
    level: int
    triple: str
    cpu: str
    features: str
    disabled: tuple[str, ...]
    prints: bool


def optimise_functions(
    texts: Sequence[str], level: int, machine: Machine, disabled: Sequence[str], prints: bool
) -> list[OptimisedFunction]:
    """Returns the object of each module in LLVM IR, optimised without the passes named in `disabled`.

    With `prints`, also returns the module after each pass. Raises `OptimiserError` if LLVM rejects a module or crashes.
    """
    request = OptimiserRequest(
        tuple(texts), level, machine.triple, machine.cpu, machine.features, tuple(disabled), prints
    )
    try:
        return call_and_wait(f"{__name__}:run_optimiser", request, list[OptimisedFunction], _OPTIMISER_SECONDS)
    except TookTooLong as error:
        raise OptimiserError(f"LLVM timed out after {_OPTIMISER_SECONDS:g} s") from error
    except CallFailed as error:
        raise OptimiserError(error.printed[-_MAX_ERROR_LENGTH:] or error.how) from error


def parse_passes(printed: str) -> list[LlvmPass]:
    """Parses LLVM's output into the runs of passes, in order. Runs of pass managers and of analyses are left out."""
    passes: list[LlvmPass] = []
    # The names and places of passes that have started, and after which no module has been printed yet.
    started: list[tuple[str, str]] = []
    # The lines of the module after the last pass, while they are printed.
    lines: list[str] | None = None

    def store_module() -> None:
        """Adds the collected lines, if any, to the last pass."""
        if lines is not None:
            passes[-1] = msgspec.structs.replace(passes[-1], text="\n".join([*lines, ""]))

    for line in printed.splitlines():
        if not line.startswith(("BISECT: ", "OptDisable: ", "*** IR ")):
            if lines is not None:
                lines.append(line)
            continue
        if match := _STARTED.match(line):
            not_running, name, where = match.groups()
            store_module()
            lines = None
            if not_running:
                passes.append(LlvmPass(name, where, skipped=True))
            else:
                started.append((name, where))
        elif match := _DUMP.match(line):
            store_module()
            pass_class, where, unchanged = match.groups()
            name = started.pop()[0] if started and pass_class else _name_of_class(pass_class or "")
            is_analysis = pass_class is not None and _is_analysis(pass_class)
            if not is_analysis:
                passes.append(LlvmPass(name, where or ""))
            lines = None if unchanged or is_analysis else []
        elif _NOT_PRINTED.match(line):
            store_module()
            lines = None
    store_module()
    return passes


def _is_analysis(pass_class: str) -> bool:
    return pass_class.startswith(("RequireAnalysisPass", "InvalidateAnalysisPass"))


def _name_of_class(name: str) -> str:
    """Returns the name of a required pass, which has no other name in the output: `CoroEarlyPass` is `coro-early`."""
    base = name.partition("<")[0].removesuffix("Pass")
    return re.sub(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", base).lower()


# ---- in the one-shot process -----------------------------------------------------------------------------------------


def run_optimiser(request: OptimiserRequest) -> list[OptimisedFunction]:
    """Compiles the modules of `request`; returns their objects and the passes that LLVM ran on each."""
    machine = Machine(request.triple, request.cpu, request.features)
    target = machines.target_machine(machine, request.level)
    options = list(_PRINT_MODULES if request.prints else ())
    if request.disabled:
        options += [f"-opt-disable={','.join(request.disabled)}", "-opt-disable-enable-verbosity"]
    else:
        options += _PRINT_NAMES
    machines.set_llvm_options(options)
    optimised = []
    for text in request.texts:
        start = time.perf_counter()
        module = machines.parse_module(text, machine)
        with tempfile.TemporaryFile() as printed:
            with capture_stderr(printed):
                machines.run_pipeline(module, request.level, machine)
            printed.seek(0)
            output = printed.read().decode(errors="replace")
        names = {match[2] for line in output.splitlines() if (match := _STARTED.match(line))}
        with tempfile.TemporaryFile() as ignored, capture_stderr(ignored):
            data = target.emit_object(module)
        seconds = time.perf_counter() - start
        optimised.append(OptimisedFunction(data, tuple(parse_passes(output)), tuple(sorted(names)), seconds))
    return optimised


# ---- remarks ---------------------------------------------------------------------------------------------------------


# Remarks on transformations of loops and calls, and on missed ones that explain why a loop is slow. Remarks of other
# passes are on single instructions: there are tens of thousands.
REMARK_OPTIONS = (
    "-pass-remarks=loop-.*|slp-vectorizer|inline",
    "-pass-remarks-missed=loop-vectorize|slp-vectorizer|regalloc",
    "-pass-remarks-analysis=loop-vectorize",
)
# Time limit for all modules: a function takes about 0.1 s, the largest ones a few seconds.
_REMARKS_SECONDS = 600.0
_REMARK = re.compile(r"^remark: " + FILE + r":(\d+):\d+: (.*)$", re.MULTILINE)
# Remarks of the register allocator on copies, which cost next to nothing.
_COPIES = re.compile(r"^\d+ virtual registers copies ")


class ObjectRemark(msgspec.Struct, frozen=True):
    """A remark on line `line` of a function's line table (0: no line), which LLVM printed `times` times."""

    line: int
    text: str
    times: int = 1


class RemarksError(BuddyError):
    """Remarks are not available; the text says why."""


class RemarksRequest(msgspec.Struct, frozen=True):
    """The input of `collect_remarks`: the arguments of `remarks_of`."""

    modules: tuple[bytes, ...]
    level: int


def remarks_of(modules: Sequence[bytes], opt_level: int) -> list[list[ObjectRemark]]:
    """Returns LLVM's remarks on each module (bytecode of the LLVM dialect with one function defined), in order.

    Raises `RemarksError` if the bindings do not support remarks, or LLVM crashes.
    """
    request = RemarksRequest(tuple(modules), opt_level)
    try:
        return call_and_wait(f"{__name__}:collect_remarks", request, list[list[ObjectRemark]], _REMARKS_SECONDS)
    except TookTooLong as error:
        raise RemarksError(f"LLVM timed out after {_REMARKS_SECONDS:g} s") from error
    except CallFailed as error:
        raise RemarksError(error.printed[-_MAX_ERROR_LENGTH:] or error.how) from error


def parse_remarks(printed: str) -> list[ObjectRemark]:
    """Parses LLVM's output, which repeats the remarks on a loop for each copy of the loop."""
    found_remarks = ((int(line), text) for line, text in _REMARK.findall(printed) if not _COPIES.match(text))
    return [ObjectRemark(line, text, times) for (line, text), times in Counter(found_remarks).items()]


# ---- in the one-shot process -----------------------------------------------------------------------------------------


def collect_remarks(request: RemarksRequest) -> list[list[ObjectRemark]]:
    """Compiles the modules of `request`; returns the remarks that LLVM prints on each."""
    from buddy.compiler.codegen.objects.workers import emit_object, new_context

    _set_options()
    context = new_context()
    remarks = []
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryDirectory() as folder, capture_stderr(printed):
        for module in request.modules:
            start = os.fstat(printed.fileno()).st_size
            emit_object(module, request.level, Path(folder) / "object.o", context)
            remarks.append(parse_remarks(_read_from(printed, start)))
    return remarks


def _set_options() -> None:
    """Sets `REMARK_OPTIONS` by a function of LLVM's C API that the library of the bindings exports."""
    parse_options = _exported_function("LLVMParseCommandLineOptions")
    arguments = [b"buddy-tui", *(option.encode() for option in REMARK_OPTIONS)]
    parse_options.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p), ctypes.c_char_p]
    parse_options.restype = None
    parse_options(len(arguments), (ctypes.c_char_p * len(arguments))(*arguments), b"")


def _exported_function(name: str) -> ctypes._NamedFuncPointer:
    """Returns the function `name` of the bindings' library: each copy of LLVM in a process has separate options.

    Raises `SystemExit` with the error if no library exports the function.
    """
    from buddy.compiler.mlir.bindings import execution_engine, package

    assert execution_engine is not None
    folder = Path(next(iter(package().__path__))) / "_mlir_libs"
    for path in sorted(folder.glob("lib*.so*")) + sorted(folder.glob("lib*.dylib")):
        function = getattr(ctypes.CDLL(str(path)), name, None)
        if function is not None:
            return function
    raise SystemExit(f"no library in {folder} exports {name}: LLVM's remarks are not available with these bindings")


def _read_from(printed: IO[bytes], start: int) -> str:
    """Returns the text of a file from offset `start` on."""
    return os.pread(printed.fileno(), os.fstat(printed.fileno()).st_size - start, start).decode(errors="replace")
