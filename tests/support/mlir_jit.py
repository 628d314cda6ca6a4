"""Compiles MLIR text after our passes, for several targets, and calls its functions with NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from buddy.compiler.codegen.machines import SOFT_FLOAT_NAMES, soft_float_ir
from buddy.compiler.mlir.bindings import execution_engine, ir, passmanager, runtime
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.passes.base import MlirPass, PassContext
from buddy.compiler.passes.copies_to_loops import CopiesToLoops
from buddy.compiler.passes.results_to_out_params import ResultsToOutParams
from buddy.compiler.runtime.linker import Library
from buddy.compiler.support.target import Target, host

LOWER = (
    "builtin.module(convert-linalg-to-loops,lower-affine,convert-vector-to-scf,convert-scf-to-cf,expand-strided-metadata,"
    "lower-affine,convert-vector-to-llvm{enable-x86=true},convert-math-to-llvm,convert-math-to-libm,finalize-memref-to-llvm,"
    "convert-arith-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,canonicalize,cse,reconcile-unrealized-casts)"
)

BUFFERIZE = (
    "builtin.module(one-shot-bufferize{bufferize-function-boundaries "
    "function-boundary-type-conversion=identity-layout-map})"
)

TARGETS = {
    "avx512": Target("avx512", 64, 32),
    "avx2": Target("avx2", 32, 16),
    "neon": Target("neon", 16, 32),
    "small cache": Target("avx512", 64, 32, l1=1 << 10, l2=1 << 14),
}
# Loop sizes with few, many or no elements after the last full vector.
SIZES = (1, 2, 3, 7, 13, 17, 31, 33, 63, 65, 127, 129)


def random_array(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Returns normally distributed numbers in f32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def random_arrays(*shapes: Sequence[int]) -> list[np.ndarray[Any, Any]]:
    """Arrays of normally distributed numbers in f32, drawn one after another from one generator."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@dataclass(frozen=True)
class Upstream(MlirPass):
    """A pipeline of MLIR's own passes as a step."""

    pipeline: str

    def run(self, root: Any, context: PassContext) -> None:
        passmanager.PassManager.parse(self.pipeline).run(root)


# To buffers, with results allocated by the caller.
TO_BUFFERS = [Upstream(BUFFERIZE), ResultsToOutParams(), CopiesToLoops()]


@cache
def _soft_float() -> Library:
    """Returns the conversion functions for processors without the instructions."""
    return Library(
        (), {}, support=soft_float_ir([name.encode() for name in SOFT_FLOAT_NAMES]), exported=SOFT_FLOAT_NAMES
    )


class Compiled:
    """A module after `passes`: its text, the remarks, and its functions as callables on arrays.

    `loc("graph":i:0)` in the text stands for node `nodes[i - 1]`.
    """

    def __init__(
        self, text: str, passes: Sequence[MlirPass] = (), *, target: Target | None = None, nodes: Sequence[str] = ()
    ) -> None:
        self.context = ir.Context()
        with self.context, ir.Location.unknown():
            module = ir.Module.parse(text)
            pass_context = PassContext(LocationSets(), target or host())
            for node in nodes:
                pass_context.locations.intern([node])
            for step in passes:
                step.run(module.operation, pass_context)
            assert module.operation.verify()
            self.text = str(module)
            self.remarks = [remark.text for remark in pass_context.remarks]
            self.module = module
            self.locations = pass_context.locations
        self.imports: dict[str, int] = {}  # addresses of functions that the module only declares
        self._engine: Any = None

    def nodes_of(self, function: str) -> set[str]:
        """Returns the nodes that the ops in the body of `function` come from."""
        found: set[str] = set()
        with self.context:
            for op in self.module.body.operations:
                if str(op.attributes["sym_name"]).strip('"') == function:
                    for inner in op.regions[0].blocks[0].operations:
                        found |= set(self.locations.sets[self.locations.number_of(inner.location)])
        return found

    def __call__(self, function: str, *arrays: np.ndarray[Any, Any]) -> None:
        """Calls a function with the attribute `llvm.emit_c_interface`; it works on the arrays in place."""
        self.bound(function, *arrays)()

    def bound(self, function: str, *arrays: np.ndarray[Any, Any]) -> Callable[[], None]:
        """Returns the call, with its arguments prepared."""
        if self._engine is None:
            with self.context, ir.Location.unknown():
                passmanager.PassManager.parse(LOWER).run(self.module.operation)
                self._engine = execution_engine.ExecutionEngine(self.module, opt_level=3)
            for name, address in (_soft_float().addresses | self.imports).items():
                self._engine.raw_register_runtime(name, ctypes.c_void_p(address))
        pointers = [ctypes.pointer(ctypes.pointer(runtime.get_ranked_memref_descriptor(a))) for a in arrays]
        arguments = (ctypes.c_void_p * len(arrays))(*[ctypes.cast(p, ctypes.c_void_p) for p in pointers])
        compiled = self._engine.lookup(function)
        keep = (self, pointers, arrays)  # keeps the code and the arrays of the descriptors alive

        def call(_keep: object = keep) -> None:
            compiled(arguments)

        return call
