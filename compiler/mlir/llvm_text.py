"""Translates a module to the text of LLVM IR without leaking it.

The binding calls a function of MLIR's C API whose result the caller must free, but does not free it. This module calls
the same function directly if the library exports it; otherwise it uses the binding, and each call leaks the text.
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
    """Returns the LLVM IR of a module in the LLVM dialect. Raises `RuntimeError` if the translation fails."""
    translated = translator()
    return str(llvm.translate_module_to_llvmir(operation)) if translated is None else translated(operation)


@lru_cache(maxsize=1)
def translator() -> Callable[[Any], str] | None:
    """Returns a translation that frees its text, or `None` if the bindings' library does not export the functions."""
    llvm.translate_module_to_llvmir  # noqa: B018 - loads the module of bindings that is looked up below
    module = sys.modules.get(f"{PACKAGE}._mlir_libs._mlirDialectsLLVM")
    try:
        # `PyDLL` keeps the GIL during the call, as the binding does.
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
    """Returns the pointer in a Python capsule."""
    name, pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name.argtypes, name.restype = [ctypes.py_object], ctypes.c_char_p
    pointer.argtypes, pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    found: int | None = pointer(capsule, name(capsule))
    return found
