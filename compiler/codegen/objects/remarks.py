"""Collects the remarks of LLVM's passes on functions while they are compiled.

LLVM prints remarks if options ask for them. Options are per process and read once, so `remarks_of` has the functions
compiled again in a one-shot process.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from buddy.compiler.mlir.provenance import FILE
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_and_wait

# Remarks on transformations of loops and calls, and missed ones that explain why a loop is slow. The others are on
# single instructions: tens of thousands.
OPTIONS = (
    "-pass-remarks=loop-.*|slp-vectorizer|inline",
    "-pass-remarks-missed=loop-vectorize|slp-vectorizer|regalloc",
    "-pass-remarks-analysis=loop-vectorize",
)
# A function takes about 0.1 s, the largest ones a few seconds.
_SECONDS = 600.0
_REMARK = re.compile(r"^remark: " + FILE + r":(\d+):\d+: (.*)$", re.MULTILINE)
# The register allocator also counts copies, which cost next to nothing.
_COPIES = re.compile(r"^\d+ virtual registers copies ")
_TAIL = 500


class ObjectRemark(msgspec.Struct, frozen=True):
    """A remark on line `line` of the function's location sets (0: none); equal ones are counted."""

    line: int
    text: str
    times: int = 1


class RemarksError(Exception):
    """Remarks are not available; the text says why."""


class RemarksQuestion(msgspec.Struct, frozen=True):
    """Modules, as for `remarks_of`, and the level of LLVM's optimizations."""

    modules: tuple[bytes, ...]
    level: int


def remarks_of(modules: Sequence[bytes], opt_level: int) -> list[list[ObjectRemark]]:
    """Returns LLVM's remarks on each module (bytecode of the LLVM dialect with one function defined), in order.

    Raises `RemarksError` if the bindings do not support it, or LLVM crashes.
    """
    question = RemarksQuestion(tuple(modules), opt_level)
    try:
        return call_and_wait(f"{__name__}:answer", question, list[list[ObjectRemark]], _SECONDS)
    except TookTooLong as error:
        raise RemarksError(f"LLVM timed out after {_SECONDS:g} s") from error
    except CallFailed as error:
        raise RemarksError(error.printed[-_TAIL:] or error.how) from error


def parsed(printed: str) -> list[ObjectRemark]:
    """Parses LLVM's output; it repeats the remarks on a loop for each copy of it."""
    times: dict[tuple[int, str], int] = {}
    for line, text in _REMARK.findall(printed):
        if _COPIES.match(text):
            continue
        times[int(line), text] = times.get((int(line), text), 0) + 1
    return [ObjectRemark(line, text, count) for (line, text), count in times.items()]


# ---- in the process --------------------------------------------------------------------------------------------------


def answer(question: RemarksQuestion) -> list[list[ObjectRemark]]:
    """Compiles the modules of a question, and returns what LLVM prints of each."""
    from buddy.compiler.codegen.objects.emit import emit, new_context

    _set_options()
    context = new_context()
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryDirectory() as folder:
        own = os.dup(2)
        os.dup2(printed.fileno(), 2)
        found = []
        try:
            for module in question.modules:
                start = os.fstat(printed.fileno()).st_size
                emit(module, question.level, Path(folder) / "object.o", context)
                found.append(parsed(_from(printed, start)))
        finally:
            os.dup2(own, 2)
        return found


def _set_options() -> None:
    """Sets LLVM's options by the C API that the library of the bindings exports."""
    parse = _exported("LLVMParseCommandLineOptions")
    words = [b"buddy-tui", *(option.encode() for option in OPTIONS)]
    parse.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p), ctypes.c_char_p]
    parse.restype = None
    parse(len(words), (ctypes.c_char_p * len(words))(*words), b"")


def _exported(name: str) -> Any:
    """Returns a function of the bindings' library; each copy of LLVM has separate options."""
    from buddy.compiler.mlir.bindings import execution_engine, package

    assert execution_engine is not None
    folder = Path(next(iter(package().__path__))) / "_mlir_libs"
    for path in sorted(folder.glob("lib*.so*")) + sorted(folder.glob("lib*.dylib")):
        found = getattr(ctypes.CDLL(str(path)), name, None)
        if found is not None:
            return found
    raise SystemExit(f"no library in {folder} exports {name}: LLVM's remarks are not available with these bindings")


def _from(printed: IO[bytes], start: int) -> str:
    return os.pread(printed.fileno(), os.fstat(printed.fileno()).st_size - start, start).decode(errors="replace")
