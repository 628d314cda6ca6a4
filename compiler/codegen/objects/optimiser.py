"""Runs LLVM's optimiser on functions, and records the module after each pass, as `opt -print-changed` prints it.

LLVM prints it, and skips passes, if command-line options request that. A process can set these options only once, so
`optimise_functions` works in a one-shot process. It uses llvmlite: the bindings' `ExecutionEngine` ignores the options.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Sequence

import msgspec

from buddy.compiler.codegen import machines
from buddy.compiler.codegen.machines import Machine
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_and_wait
from buddy.compiler.support.stderr_capture import capture_stderr

# Time limit for all functions: a function takes about a second with all modules printed, the largest ones longer.
_OPTIMISER_SECONDS = 600.0
_MAX_ERROR_LENGTH = 500  # characters at the end of the output of a process that failed
# The lines that LLVM prints before a pass, before the module after a pass, and for a pass without a module.
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

    The first one of a module has the name "" and is the module before all passes. `skipped` passes are disabled.
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

    With `prints`, also the module after each pass. Raises `OptimiserError` if LLVM rejects a module or crashes.
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
    results = []
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
        results.append(OptimisedFunction(data, tuple(parse_passes(output)), tuple(sorted(names)), seconds))
    return results
