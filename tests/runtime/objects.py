"""Objects for the runner's tests, compiled from MLIR that stands in the test."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from pathlib import Path

from buddy.compiler.mlir.bindings import execution_engine, ir, passmanager

_LOWER = (
    "builtin.module(convert-scf-to-cf,expand-strided-metadata,lower-affine,convert-math-to-libm,convert-arith-to-llvm,"
    "finalize-memref-to-llvm,convert-func-to-llvm{use-bare-ptr-memref-call-conv=true},convert-cf-to-llvm,reconcile-unrealized-casts)"
)


@ctypes.CFUNCTYPE(None)
def _never_called() -> None:
    pass


def compile_object(text: str, entry: str = "main", externals: Sequence[str] = ()) -> bytes:
    """The object file of a module in the memref, scf, arith, math and func dialects, `externals` left open in it."""
    with ir.Context(), ir.Location.unknown(), tempfile.TemporaryDirectory() as folder:
        module = ir.Module.parse(text)
        passmanager.PassManager.parse(_LOWER).run(module.operation)
        engine = execution_engine.ExecutionEngine(module, opt_level=2)
        for symbol in externals:
            engine.raw_register_runtime(symbol, ctypes.cast(_never_called, ctypes.c_void_p))
        engine.raw_lookup(entry)
        path = Path(folder, "module.o")
        engine.dump_to_object_file(str(path))
        return path.read_bytes()
