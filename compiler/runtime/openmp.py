"""Threads for compiled code: `buddy_fork` on the OpenMP runtime that torch has loaded into this process.

Two runtimes in one process starve each other, since idle threads of one spin on cores that the other needs. So no
runtime is loaded here: the one that torch's library is bound to is used. Without one, `buddy_fork` does all the work on
the calling thread.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from buddy.compiler.protocol.artifact import FORK

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

# A parallel region of LLVM's libomp and Intel's libiomp5, as clang calls it. `ident` is an empty location.
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
    """Yields look-ups in the order in which torch binds symbols: global ones (a preloaded runtime), dependencies."""
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
