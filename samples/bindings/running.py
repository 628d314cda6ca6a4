"""Runs the modules of these samples: MLIR's own passes down to LLVM, then its execution engine, on NumPy arrays."""

import ctypes

import numpy as np
from mlir.dialects.func import FuncOp
from mlir.execution_engine import ExecutionEngine
from mlir.ir import BoolAttr, DictAttr, Module, UnitAttr
from mlir.passmanager import PassManager
from mlir.runtime import get_ranked_memref_descriptor

TO_BUFFERS = (
    "func.func(convert-elementwise-to-linalg)",
    "one-shot-bufferize{bufferize-function-boundaries=true function-boundary-type-conversion=identity-layout-map}",
    "canonicalize",
)
TO_LLVM = (
    # A function writes its result to a buffer of its caller.
    "buffer-results-to-out-params{hoist-static-allocs=true modify-public-functions=true}",
    "func.func(convert-linalg-to-loops)",
    "convert-scf-to-cf",
    "expand-strided-metadata",
    "lower-affine",
    "convert-math-to-libm",
    "finalize-memref-to-llvm",
    "convert-arith-to-llvm",
    "convert-index-to-llvm",
    "convert-func-to-llvm",
    "convert-cf-to-llvm",
    "reconcile-unrealized-casts",
)


def run_passes(module: Module, passes: tuple[str, ...]) -> None:
    """Run `passes` on `module`, in place."""
    with module.context:
        PassManager.parse(f"builtin.module({','.join(passes)})").run(module.operation)


def to_buffers(module: Module) -> None:
    """Converts tensors to memrefs, in place. By default, bufferization may write to a function's arguments."""
    with module.context:
        read_only = DictAttr.get({"bufferization.writable": BoolAttr.get(False)})
        for op in module.body:
            if isinstance(op, FuncOp) and not op.is_external:
                op.arg_attrs = [read_only] * len(op.type.inputs)
    run_passes(module, TO_BUFFERS)


def copied(module: Module) -> Module:
    """A copy of the module, to be rewritten while `module` is unchanged."""
    with module.context:
        return Module.parse(module.operation.get_asm(print_generic_op_form=True))


class Compiled:
    """A module ready to run; `imports` are addresses of functions that it only declares."""

    def __init__(self, module: Module, imports: dict[str, int] | None = None) -> None:
        lowered = copied(module)
        to_buffers(lowered)
        for op in lowered.body:
            if isinstance(op, FuncOp) and not op.is_external:
                # The engine calls a function that takes a pointer to the descriptor of each array.
                op.attributes["llvm.emit_c_interface"] = UnitAttr.get(lowered.context)
        run_passes(lowered, TO_LLVM)
        self._engine = ExecutionEngine(lowered, opt_level=3)
        for name, address in (imports or {}).items():
            self._engine.raw_register_runtime(name, ctypes.c_void_p(address))

    def __call__(self, name: str, *arrays: np.ndarray) -> None:
        """Calls function `name` with its inputs, followed by the array for its result."""
        descriptors = [ctypes.pointer(get_ranked_memref_descriptor(array)) for array in arrays]
        self._engine.invoke(name, *map(ctypes.pointer, descriptors))
