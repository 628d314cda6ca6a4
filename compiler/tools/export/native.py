"""Makes one LLVM module with prefixed names from a compiled program, and prints it as IR, assembly or an object."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from buddy.compiler.codegen.llvm_ir import trampoline_name, trampolines
from buddy.compiler.codegen.machines import Machine, new_context, parse_module, run_pipeline, target_machine
from buddy.compiler.protocol.artifact import FORK
from buddy.compiler.tools.export.interface import LIBM_FUNCTIONS, ExportError, ProgramInterface

if TYPE_CHECKING:
    from llvmlite.binding import ModuleRef


# The functions of <string.h> and <stdlib.h> that compiled code may call.
_LIBC_FUNCTIONS = frozenset(["memcpy", "memmove", "memset", "malloc", "free", "aligned_alloc", "abort"])
# Functions of the compiler's runtime library, which every C compiler links: some CPUs need them for half precision and
# 128-bit integers.
_COMPILER_RT_FUNCTION = re.compile(r"__(extend|trunc)\w+f2|__(mul|div|mod|udiv|umod)ti3|__(fix|float)\w+")


class NativeProgram:
    """The LLVM IR `text` of a compiled program, with the calling convention of `interface`, for `machine`.

    The object exports only `NAME_entry` and, for each packing function, `NAME_pack_K`; each takes the address of an
    array of pointers. It imports `NAME_fork`, `NAME_ask_K` for each op that eager would reject, and functions of libc
    and libm. Raises `ExportError` if the program calls other functions.
    """

    def __init__(self, text: str, interface: ProgramInterface, machine: Machine, opt_level: int) -> None:
        self._machine, self._opt_level = machine, opt_level
        self._names = external_names(interface)
        context = new_context()
        module = parse_module(text, machine, context)
        packs = dict.fromkeys(interface.packs, 2)  # with their number of parameters: weights, packed weights
        _check_imports(module, {FORK, *dict(interface.rejections)})
        for function in module.functions:
            if not function.is_declaration:
                # No inlining across functions: identical layers share one function, which would be compiled many times.
                function.add_function_attribute("noinline")
                if function.name in packs:
                    function.add_function_attribute("optsize")
                function.linkage = "external"
        module.link_in(parse_module(trampolines({interface.entry: interface.arity, **packs}), machine, context))
        for old, new in self._names.items():
            _rename(module, old, new)
        self._text = str(module)
        # The module after LLVM's passes, from the first use on.
        self._optimised: Any = None

    @property
    def llvm_ir(self) -> str:
        """Returns the LLVM IR before LLVM's own passes, as llvmlite's LLVM prints it."""
        return self._text

    @property
    def uses_tiles(self) -> bool:
        """True if the code uses the tile registers of AMX, for which a process has to ask Linux."""
        return "@llvm.x86.tile" in self._text

    def assembly(self) -> str:
        """Returns assembly text for the target."""
        text: str = target_machine(self._machine, self._opt_level).emit_assembly(self._copy_optimised())
        return text

    def object(self) -> bytes:
        """Returns a position-independent relocatable object."""
        data: bytes = target_machine(self._machine, self._opt_level).emit_object(self._copy_optimised())
        return data

    def _copy_optimised(self) -> ModuleRef:
        """Returns a copy of the optimized module, because code generation changes it."""
        if self._optimised is None:
            self._optimised = parse_module(self._text, self._machine)
            run_pipeline(self._optimised, self._opt_level, self._machine)
            _hide_symbols(self._optimised, set(self._names.values()))
        return parse_module(str(self._optimised), self._machine)


def external_names(interface: ProgramInterface) -> dict[str, str]:
    """Returns the external names of the functions that link the compiled code and the loader, by name in the module."""
    name = interface.name
    names = {trampoline_name(interface.entry): f"{name}_entry", FORK: f"{name}_fork"}
    names |= {trampoline_name(pack): f"{name}_pack_{i}" for i, pack in enumerate(dict.fromkeys(interface.packs))}
    return names | {symbol: f"{name}_ask_{i}" for i, (symbol, _) in enumerate(interface.rejections)}


def _rename(module: ModuleRef, old: str, new: str) -> None:
    """Renames the function `old` if the module has it: not every program calls `NAME_fork`."""
    try:
        module.get_function(old).name = new
    except NameError:
        return


def _hide_symbols(module: ModuleRef, exported: set[str]) -> None:
    """Makes all symbols internal except `exported`, which become hidden: only code of the same library can use them."""
    for value in (*module.functions, *module.global_variables):
        if value.name.startswith("llvm."):
            continue
        if value.name in exported:
            value.visibility = "hidden"
        elif not value.is_declaration:
            value.linkage = "internal"


def _check_imports(module: ModuleRef, provided: set[str]) -> None:
    """Raises `ExportError` if a module calls functions that are neither `provided` nor in libc or libm."""
    imports = {function.name for function in module.functions if function.is_declaration}
    missing = sorted(name for name in imports - provided if not name.startswith("llvm.") and not _is_standard(name))
    if missing:
        todo = "switch off the pass that adds the call (contractions-to-blas calls a BLAS), or choose another lowering"
        raise ExportError(f"the code calls {', '.join(missing)}, which neither libc nor libm has", "the program", todo)


def _is_standard(name: str) -> bool:
    return (
        name in _LIBC_FUNCTIONS
        or name in LIBM_FUNCTIONS
        or name.removesuffix("f") in LIBM_FUNCTIONS
        or bool(_COMPILER_RT_FUNCTION.fullmatch(name))
    )
