"""Links object files into this process with llvmlite's JIT linker, without MLIR.

It compiles only small functions: trampolines, those of the caller's IR, and conversions that the processor lacks.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from llvmlite import binding as llvm

from buddy.compiler.codegen.llvm_ir import trampoline_name, trampolines
from buddy.compiler.codegen.machines import soft_float_ir
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
    with contextlib.suppress(OSError):  # on a system without it, linking reports the missing symbol
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
