"""MLIR's translation to LLVM IR as text. The binding's own function never frees the text that it is handed.

It calls one function of MLIR's C interface, which hands over a copy of the text for the caller to free. The same
function is called here without the binding, where the library offers it: each compilation would keep its LLVM IR for
good otherwise.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from buddy.compiler.mlir.bindings import PACKAGE, llvm

_TRANSLATE, _FREE = "mlirTranslateModuleToLLVMIRToString", "LLVMDisposeMessage"


def llvm_text(operation: Any) -> str:
    """The LLVM IR text of a module in the LLVM dialect; raises `RuntimeError` where MLIR gives none."""
    translated = translator()
    return str(llvm.translate_module_to_llvmir(operation)) if translated is None else translated(operation)


@lru_cache(maxsize=1)
def translator() -> Callable[[Any], str] | None:
    """The translation that frees its text; `None` where these bindings do not offer what it takes."""
    llvm.translate_module_to_llvmir  # noqa: B018 - loads the module of bindings that is looked up below
    module = sys.modules.get(f"{PACKAGE}._mlir_libs._mlirDialectsLLVM")
    try:
        # Python's lock is kept, as by the binding.
        library = ctypes.PyDLL(str(getattr(module, "__file__", None) or ""))
        translate, free = getattr(library, _TRANSLATE), getattr(library, _FREE)
    except (OSError, AttributeError):
        return None
    translate.argtypes, translate.restype = [ctypes.c_void_p], ctypes.c_void_p
    free.argtypes, free.restype = [ctypes.c_void_p], None

    def translated(operation: Any) -> str:
        text = translate(_pointer(operation.operation._CAPIPtr))
        if not text:
            raise RuntimeError("MLIR could not translate the module to LLVM IR")
        try:
            return ctypes.string_at(text).decode()
        finally:
            free(text)

    return translated


def _pointer(capsule: Any) -> int | None:
    """What a capsule of Python's points to."""
    name, pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name.argtypes, name.restype = [ctypes.py_object], ctypes.c_char_p
    pointer.argtypes, pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    found: int | None = pointer(capsule, name(capsule))
    return found
