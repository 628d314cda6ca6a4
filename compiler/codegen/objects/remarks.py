"""Collects the remarks of LLVM's passes on functions while they are compiled.

LLVM prints remarks if command-line options request them. A process can set these options only once, so `remarks_of`
compiles the functions again in a one-shot process.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec

from buddy.compiler.mlir.provenance import FILE
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_and_wait
from buddy.compiler.support.stderr_capture import capture_stderr

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
_MAX_REMARKS_ERROR_LENGTH = 500  # characters at the end of the output of a process that failed


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

    Raises `RemarksError` if the bindings do not support it, or LLVM crashes.
    """
    request = RemarksRequest(tuple(modules), opt_level)
    try:
        return call_and_wait(f"{__name__}:collect_remarks", request, list[list[ObjectRemark]], _REMARKS_SECONDS)
    except TookTooLong as error:
        raise RemarksError(f"LLVM timed out after {_REMARKS_SECONDS:g} s") from error
    except CallFailed as error:
        raise RemarksError(error.printed[-_MAX_REMARKS_ERROR_LENGTH:] or error.how) from error


def parse_remarks(printed: str) -> list[ObjectRemark]:
    """Parses LLVM's output, which repeats the remarks on a loop for each copy of the loop."""
    found_remarks = ((int(line), text) for line, text in _REMARK.findall(printed) if not _COPIES.match(text))
    return [ObjectRemark(line, text, times) for (line, text), times in Counter(found_remarks).items()]


# ---- in the one-shot process -----------------------------------------------------------------------------------------


def collect_remarks(request: RemarksRequest) -> list[list[ObjectRemark]]:
    """Compiles the modules of `request`; returns the remarks that LLVM prints on each."""
    from buddy.compiler.codegen.objects.emit import emit_object, new_context

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
