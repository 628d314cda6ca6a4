"""Compiles one module in the LLVM dialect to an object file, by the bindings' optimiser and code generator."""

from __future__ import annotations

import ctypes
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from buddy.compiler.codegen import machines
from buddy.compiler.mlir.bindings import execution_engine, ir
from buddy.compiler.mlir.walk import symbol_of


def new_context() -> ir.Context:
    """Creates an MLIR context for `emit_object`. Use it for many modules: to create one takes 5 ms."""
    context = ir.Context()
    context.allow_unregistered_dialects = True
    context.enable_multithreading(False)
    return context


def emit_object(bytecode: bytes, opt_level: int, path: Path, context: ir.Context) -> float:
    """Writes the object of the module in `bytecode`, which defines one function, to `path`.

    Returns the compile time in seconds. Raises `MLIRError` or `RuntimeError` if LLVM rejects the module; other errors
    of LLVM end the process.
    """
    start = time.perf_counter()
    with context, ir.Location.unknown():
        module = ir.Module.parse(bytecode)
        engine = execution_engine.ExecutionEngine(module, opt_level=opt_level, shared_libs=[])
    functions = [op.operation for op in module.body if op.operation.name == "llvm.func"]
    declared = [symbol_of(function) for function in functions if not function.regions[0].blocks]
    for name in (*declared, *machines.SOFT_FLOAT_NAMES):
        engine.raw_register_runtime(name, ctypes.cast(_placeholder_function(), ctypes.c_void_p))
    (defined,) = (function for function in functions if function.regions[0].blocks)
    engine.raw_lookup(symbol_of(defined))
    engine.dump_to_object_file(str(path))
    return time.perf_counter() - start


def defined_function(bytecode: bytes, context: Any) -> str:
    """Returns the name of the function that the module in `bytecode` defines."""
    with context, ir.Location.unknown():
        functions = (op.operation for op in ir.Module.parse(bytecode).body if op.operation.name == "llvm.func")
        return next(symbol_of(function) for function in functions if function.regions[0].blocks)


@lru_cache(maxsize=1)
def _placeholder_function() -> ctypes._FuncPointer:
    """Returns a function whose address stands for symbols that are resolved when the object is linked."""
    return ctypes.CFUNCTYPE(None)(lambda: None)
