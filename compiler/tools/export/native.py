"""The compiled program as one LLVM module: optimized, with prefixed names, as assembly or as an object."""

from __future__ import annotations

import re
from typing import Any

from buddy.compiler.codegen.llvm_ir import trampoline_name, trampolines
from buddy.compiler.codegen.machines import Machine, new_context, optimise, parse_module, target_machine
from buddy.compiler.protocol.artifact import FORK
from buddy.compiler.tools.export.errors import ExportError
from buddy.compiler.tools.export.interface import ProgramInterface
from buddy.compiler.tools.export.names import LIBM

# Functions of <string.h> and <stdlib.h>.
_LIBC = frozenset(["memcpy", "memmove", "memset", "malloc", "free", "aligned_alloc", "abort"])
# Operations on half precision that some CPUs call from the compiler's runtime library, which every C compiler links.
_COMPILER_RT = re.compile(r"__(extend|trunc)\w+f2|__(mul|div|mod|udiv|umod)ti3|__(fix|float)\w+")


class NativeProgram:
    """The LLVM IR `text` of a compiled program, with the calling convention of `interface`, for `machine`.

    The only symbols it exports are `NAME_entry` and `NAME_pack_K`, for the K-th pack; each takes the address of an
    array of pointers. It imports `NAME_fork` and `NAME_ask_K`. Raises `ExportError` if it needs more than libc and
    libm.
    """

    def __init__(self, text: str, interface: ProgramInterface, machine: Machine, opt_level: int) -> None:
        self._machine, self._level = machine, opt_level
        self._names = names_of(interface)
        context = new_context()
        module = parse_module(text, machine, context)
        packs = dict.fromkeys(interface.packs, 2)
        _check_imports(module, {FORK, *dict(interface.refusals)})
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
        self._optimised: Any = None

    @property
    def llvm_ir(self) -> str:
        """LLVM IR before LLVM's own passes, printed by llvmlite's LLVM."""
        return self._text

    def assembly(self) -> str:
        """Assembly text for the target."""
        found: str = target_machine(self._machine, self._level).emit_assembly(self._code())
        return found

    def object(self) -> bytes:
        """A position-independent relocatable object."""
        found: bytes = target_machine(self._machine, self._level).emit_object(self._code())
        return found

    def _code(self) -> Any:
        """A copy of the optimized module, because code generation changes it."""
        if self._optimised is None:
            self._optimised = parse_module(self._text, self._machine)
            optimise(self._optimised, self._level, self._machine)
            _hide(self._optimised, set(self._names.values()))
        return parse_module(str(self._optimised), self._machine)


def names_of(interface: ProgramInterface) -> dict[str, str]:
    """The module's names for its links to the loader, and their external names."""
    name = interface.name
    found = {trampoline_name(interface.entry): f"{name}_entry", FORK: f"{name}_fork"}
    found |= {trampoline_name(pack): f"{name}_pack_{i}" for i, pack in enumerate(dict.fromkeys(interface.packs))}
    return found | {symbol: f"{name}_ask_{i}" for i, (symbol, _) in enumerate(interface.refusals)}


def _rename(module: Any, old: str, new: str) -> None:
    try:
        module.get_function(old).name = new
    except NameError:
        return


def _hide(module: Any, shown: set[str]) -> None:
    """Makes all symbols internal except `shown`, which become hidden: visible within the library only."""
    for value in (*module.functions, *module.global_variables):
        if value.name.startswith("llvm."):
            continue
        if value.name in shown:
            value.visibility = "hidden"
        elif not value.is_declaration:
            value.linkage = "internal"


def _check_imports(module: Any, provided: set[str]) -> None:
    found = {function.name for function in module.functions if function.is_declaration}
    wanted = sorted(name for name in found - provided if not name.startswith("llvm.") and not _is_common(name))
    if wanted:
        todo = "switch off the pass that calls it (contractions-to-blas calls a BLAS), or compile that op otherwise"
        raise ExportError(f"the code calls {', '.join(wanted)}, which neither libc nor libm has", "the program", todo)


def _is_common(name: str) -> bool:
    return name in _LIBC or name in LIBM or name.removesuffix("f") in LIBM or bool(_COMPILER_RT.fullmatch(name))
