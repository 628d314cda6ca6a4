"""Links object files into this process with llvmlite's JIT linker, without MLIR.

The linker compiles only small functions: trampolines, those of the caller's IR, and conversions that the processor
lacks.

Compiled code starts threads by the function `buddy_fork`, which is defined here on the OpenMP runtime that torch has
loaded into this process. Two runtimes in one process starve each other, since idle threads of one spin on cores that
the other needs. So no runtime is loaded here: the one that torch's library is bound to is used. Without one,
`buddy_fork` does all the work on the calling thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from llvmlite import binding as llvm

from buddy.compiler.codegen.llvm_ir import trampoline_name, trampolines
from buddy.compiler.codegen.machines import soft_float_ir
from buddy.compiler.protocol.artifact import FORK
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.support.target import request_amx_tiles

_library_numbers = itertools.count()
_LINK_HINT = "reset the target, disable the pass that calls it, or export the program and link it with a library"
_BLOCK_FUNCTION_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

# GCC's runtime library has the functions that LLVM calls if a processor lacks an instruction, such as the conversion of
# float64 to float16.
_GCC_RUNTIME = "libgcc_s.so.1"

# A function that is called with the address of one block of its arguments.
BlockFunction = Callable[[int], None]


@lru_cache(maxsize=1)
def jit_compiler() -> Any:
    """Returns the compiler that links code into this process."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    request_amx_tiles()  # code for a processor with AMX faults without them
    with contextlib.suppress(OSError):  # on a system without this library, linking reports the missing symbol
        ctypes.CDLL(_GCC_RUNTIME, ctypes.RTLD_GLOBAL)
    return llvm.create_lljit_compiler()


class LinkError(BuddyError):
    """The objects of an artifact do not link; the text names the symbol, `diagnostic` says what to do."""

    def __init__(self, missing: str) -> None:
        what = f"the compiled objects do not link: nothing in this process provides {missing}"
        super().__init__(what, "linking the objects", _LINK_HINT)


class Library:
    """Linked objects. `library[name]` is a function that is called with the address of one block of its arguments.

    `arities` has the number of words that each function takes: a trampoline loads them from the block, so ctypes' limit
    of 1024 arguments does not apply. `imports` are addresses for undefined symbols of the objects; others are
    searched in the process. `support` is LLVM IR to link with the objects. `addresses` has the addresses of the
    functions in `exported`.
    """

    def __init__(
        self, objects: Sequence[bytes], arities: Mapping[str, int], imports: Mapping[str, int] | None = None,
        support: str = "", exported: Sequence[str] = (),
    ) -> None:  # fmt: skip
        builder = llvm.JITLibraryBuilder()
        for image in objects:
            builder.add_object_img(image)
        for symbol, address in (imports or {}).items():
            builder.import_symbol(symbol, address)
        builder.add_ir(trampolines(arities) + support + soft_float_ir(objects)).add_current_process()
        for name in arities:
            builder.export_symbol(trampoline_name(name))
        for name in exported:
            builder.export_symbol(name)
        try:
            self._library = builder.link(jit_compiler(), f"buddy_{next(_library_numbers)}")
        except RuntimeError as error:
            missing = ", ".join(sorted(_unresolved_symbols(objects, set(imports or {})))) or str(error)
            raise LinkError(missing) from error
        self._functions = {name: _BLOCK_FUNCTION_TYPE(self._library[trampoline_name(name)]) for name in arities}
        self.addresses = {name: self._library[name] for name in exported}

    def __getitem__(self, name: str) -> BlockFunction:
        return self._functions[name]

    def block_address(self, name: str) -> int:
        """Returns the address of the function that is called with one block of arguments."""
        address: int = self._library[trampoline_name(name)]
        return address


def function_sizes(objects: Sequence[bytes]) -> dict[str, int]:
    """Returns the functions that objects define, with their sizes in bytes; empty if the objects are not ELF."""
    sizes: dict[str, int] = {}
    for image in objects:
        try:
            symbols = ELFFile(io.BytesIO(image)).get_section_by_name(".symtab").iter_symbols()
            sizes |= {symbol.name: symbol["st_size"] for symbol in symbols if symbol["st_info"]["type"] == "STT_FUNC"}
        except ELFError:
            return {}
    return sizes


def _unresolved_symbols(objects: Sequence[bytes], provided: set[str]) -> set[str]:
    """Returns the symbols that no object, import or loaded library defines; empty if the objects are not ELF."""
    undefined: set[str] = set()
    for image in objects:
        try:
            symbols = list(ELFFile(io.BytesIO(image)).get_section_by_name(".symtab").iter_symbols())
        except ELFError:
            return set()
        provided = provided | {symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF"}
        undefined |= {symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name}
    return {name for name in undefined - provided if not llvm.address_of_symbol(name)}


# ---- threads ---------------------------------------------------------------------------------------------------------


# The function that each thread of a team runs: it asks the runtime for the number of the thread, and calls the task of
# a job, which is {task, data}.
_MEMBER_FUNCTION = """
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
define internal void @buddy_member(ptr %job) {
  %at = getelementptr i8, ptr %job, i64 8
  %task = load ptr, ptr %job
  %data = load ptr, ptr %at
  %thread = call i32 @omp_get_thread_num()
  %threads = call i32 @omp_get_num_threads()
  call void %task(ptr %data, i32 %thread, i32 %threads)
  ret void
}
"""

# The start of `buddy_fork`: allocates the job, and stores the task and its data.
_STORE_JOB = """
  %job = alloca [2 x ptr]
  %at = getelementptr i8, ptr %job, i64 8
  store ptr %task, ptr %job
  store ptr %data, ptr %at
"""

# A parallel region of GCC's libgomp; LLVM's and Intel's runtimes support it too on Linux.
_GOMP = f"""
{_MEMBER_FUNCTION}
declare void @GOMP_parallel(ptr, ptr, i32, i32)
define void @{FORK}(ptr %task, ptr %data, i32 %threads) {{{_STORE_JOB}
  call void @GOMP_parallel(ptr @buddy_member, ptr %job, i32 %threads, i32 0)
  ret void
}}
"""

# A parallel region of LLVM's libomp and Intel's libiomp5, as clang calls it. `buddy_ident` is an unknown source
# location: the flag KMP_IDENT_KMPC (2), and the text with its length (22).
_KMPC = f"""
{_MEMBER_FUNCTION}
@buddy_where = private constant [23 x i8] c";unknown;unknown;0;0;;\\00"
@buddy_ident = private constant {{ i32, i32, i32, i32, ptr }} {{ i32 0, i32 2, i32 0, i32 22, ptr @buddy_where }}
declare i32 @__kmpc_global_thread_num(ptr)
declare void @__kmpc_push_num_threads(ptr, i32, i32)
declare void @__kmpc_fork_call(ptr, i32, ptr, ...)
define internal void @buddy_microtask(ptr %global, ptr %bound, ptr %job) {{
  call void @buddy_member(ptr %job)
  ret void
}}
define void @{FORK}(ptr %task, ptr %data, i32 %threads) {{{_STORE_JOB}
  %me = call i32 @__kmpc_global_thread_num(ptr @buddy_ident)
  call void @__kmpc_push_num_threads(ptr @buddy_ident, i32 %me, i32 %threads)
  call void (ptr, i32, ptr, ...) @__kmpc_fork_call(ptr @buddy_ident, i32 1, ptr @buddy_microtask, ptr %job)
  ret void
}}
"""

_SEQUENTIAL = f"""
define void @{FORK}(ptr %task, ptr %data, i32 %threads) {{
  call void %task(ptr %data, i32 0, i32 1)
  ret void
}}
"""

_THREAD_QUERIES = ("omp_get_thread_num", "omp_get_num_threads")
# Symbols to look for, in order of preference, and the definition of `buddy_fork` that uses them.
_RUNTIMES = (
    (("GOMP_parallel", *_THREAD_QUERIES), _GOMP),
    (("__kmpc_fork_call", "__kmpc_push_num_threads", "__kmpc_global_thread_num", *_THREAD_QUERIES), _KMPC),
)

# Returns the address of a symbol, 0 if it is not found.
Lookup = Callable[[str], int]


@dataclass(frozen=True)
class ForkDefinition:
    """A definition of `buddy_fork` as LLVM IR, the addresses of the functions that it calls, and their library.

    `buddy_fork(task, data, threads)` calls `task(data, number, threads)` on each thread of a team. `library` is "" if
    no runtime was found: the calling thread then does all the work.
    """

    ir: str
    symbols: Mapping[str, int]
    library: str

    @property
    def is_parallel(self) -> bool:
        return bool(self.library)


SEQUENTIAL = ForkDefinition(_SEQUENTIAL, {}, "")


@lru_cache(maxsize=1)
def torch_fork() -> ForkDefinition:
    """Returns `buddy_fork` for the runtime that torch is bound to."""
    return next((fork for lookup in _lookups() if (fork := find_fork(lookup)) is not None), SEQUENTIAL)


def find_fork(lookup: Lookup) -> ForkDefinition | None:
    """Returns `buddy_fork` for the runtime whose symbols `lookup` finds; `None` if it finds those of no runtime."""
    for names, text in _RUNTIMES:
        symbols = {name: lookup(name) for name in names}
        if all(symbols.values()):
            return ForkDefinition(text, symbols, library_containing(symbols[names[0]]) or "OpenMP")
    return None


def _lookups() -> Iterator[Lookup]:
    """Yields look-ups in torch's order of binding: the whole process (a preloaded runtime), then torch's libraries."""
    if sys.platform == "win32":
        yield from _windows_lookups()
        return
    if sys.platform == "linux":
        yield _lookup_in(ctypes.CDLL(None))
    suffix = "dylib" if sys.platform == "darwin" else "so"
    path = Path(torch.__file__).parent / "lib" / f"libtorch_cpu.{suffix}"
    try:
        # RTLD_NOLOAD: returns a handle on a loaded library, or an error; never loads a second one.
        yield _lookup_in(ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW))
    except OSError:
        return


def _windows_lookups() -> Iterator[Lookup]:
    """Yields look-ups in the loaded OpenMP runtimes; torch's wheels for Windows contain Intel's."""
    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    kernel.GetModuleHandleW.restype = ctypes.c_void_p
    for name in ("libiomp5md.dll", "libomp.dll", "libomp140.x86_64.dll"):
        if handle := kernel.GetModuleHandleW(name):
            yield _lookup_in(ctypes.WinDLL(name, handle=handle))  # type: ignore[attr-defined]


def _lookup_in(library: ctypes.CDLL) -> Lookup:
    """Returns a look-up of the symbols of a library."""

    def find(name: str) -> int:
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            return 0

    return find


class _SymbolInfo(ctypes.Structure):
    """`Dl_info`: the result of `dladdr`."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("at", ctypes.c_void_p),
    )


def library_containing(address: int) -> str:
    """Returns the file name of the library that contains `address`, "" if it is unknown."""
    info = _SymbolInfo()
    dladdr = getattr(ctypes.CDLL(None), "dladdr", None) if sys.platform != "win32" else None
    if dladdr is None or not dladdr(ctypes.c_void_p(address), ctypes.byref(info)) or not info.file:
        return ""
    return os.path.basename(os.fsdecode(info.file))
