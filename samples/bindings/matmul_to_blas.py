"""The tutorial pass: matrix products become calls of a BLAS library, `cblas_sgemm` of the OpenBLAS that NumPy brings.

As a script it prints the module before and after and compares the result with NumPy; with `--time` it also times the
call, MLIR's own loops and the kernel that this compiler generates. The compiler has such a pass of its
own, `contractions-to-blas`, which takes products of any orientation; this one is as plain as it can be.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
from mlir.dialects import arith, func, linalg, llvm, memref, tensor
from mlir.passmanager import PassManager
from running import Compiled, to_buffers

from buddy.compiler.support import blas
from mlir import ir

SIZE = 512
ROW_MAJOR, NO_TRANSPOSE = 101, 111  # from cblas.h
A, B = 7, 9  # the positions of the matrices in the arguments

library = blas.find_blas()
if library is None:
    sys.exit("no OpenBLAS is installed here: pip install scipy-openblas32")
# Runners of this project know the function by this name; the library adds a prefix and a suffix.
GEMM = blas.gemm_symbol("f32", library.index_bits)


def build() -> ir.Module:
    f32 = ir.F32Type.get()
    kind = ir.RankedTensorType.get([SIZE, SIZE], f32)
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):

        @func.FuncOp.from_py_func(kind, kind)
        def product(a: ir.Value, b: ir.Value) -> ir.Value:
            zeros = linalg.fill(arith.constant(f32, 0.0), outs=[tensor.empty([SIZE, SIZE], f32)])
            return linalg.matmul(a, b, outs=[zeros])

    return module


# ---- the pass -------------------------------------------------------------------------------------------------------


def matmul_to_blas(root: ir.Operation, _pass: object) -> None:
    """Replaces each `linalg.matmul` on memrefs of f32 by a call.

    Tensors have no address, so the pass runs after bufferization. It leaves other products unchanged: later passes
    lower them.
    """
    found = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "linalg.matmul" and all(map(is_dense_matrix, op.operands)):
            found.append(op)
        return ir.WalkResult.ADVANCE

    root.walk(visit)
    if found:
        declare_gemm(root)
    for op in found:
        with ir.InsertionPoint(op), op.location:
            call_gemm(*op.operands)
        op.erase()


def is_dense_matrix(value: ir.Value) -> bool:
    """Whether a value is a dense row-major matrix of f32 with static sizes."""
    kind = value.type
    if not isinstance(kind, ir.MemRefType) or kind.rank != 2 or not kind.has_static_shape:
        return False
    return isinstance(kind.element_type, ir.F32Type) and kind.layout == ir.AffineMapAttr.get(
        ir.AffineMap.get_identity(2)
    )


def gemm_type() -> ir.FunctionType:
    """`cblas_sgemm(order, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)`."""
    word, size = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(library.index_bits)
    number, pointer = ir.F32Type.get(), llvm.PointerType.get()
    inputs = [*[word] * 3, *[size] * 3, number, pointer, size, pointer, size, number, pointer, size]
    return ir.FunctionType.get(inputs, [])


def declare_gemm(root: ir.Operation) -> None:
    """Adds the function's declaration to a module."""
    with ir.InsertionPoint.at_block_begin(root.regions[0].blocks[0]), ir.Location.unknown():
        gemm = func.FuncOp(GEMM, gemm_type(), visibility="private")
    # The library writes only to C, which the declaration states.
    nothing, read_only = ir.DictAttr.get({}), ir.DictAttr.get({"llvm.readonly": ir.UnitAttr.get()})
    gemm.arg_attrs = [read_only if place in (A, B) else nothing for place in range(len(gemm.type.inputs))]


def call_gemm(a: ir.Value, b: ir.Value, c: ir.Value) -> None:
    """c = 1 * a @ b + 1 * c: like the op, the call adds to `c`."""
    (m, k), n = a.type.shape, b.type.shape[1]
    word, size = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(library.index_bits)
    one = arith.constant(ir.F32Type.get(), 1.0)

    def words(*values: int) -> list[ir.Value]:
        return [arith.constant(word, value) for value in values]

    def sizes(*values: int) -> list[ir.Value]:
        return [arith.constant(size, value) for value in values]

    arguments = [*words(ROW_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE), *sizes(m, n, k), one]
    # Rows are contiguous: the distance between them is their length.
    arguments += [address(a), *sizes(k), address(b), *sizes(n), one, address(c), *sizes(n)]
    func.CallOp([], ir.FlatSymbolRefAttr.get(GEMM), arguments)


def address(value: ir.Value) -> ir.Value:
    """The pointer that a C function takes for a memref."""
    index = memref.extract_aligned_pointer_as_index(value)
    number = arith.index_cast(ir.IntegerType.get_signless(64), index)
    return llvm.inttoptr(llvm.PointerType.get(), number)


# ---- the module, and its reference ----------------------------------------------------------------------------------


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a @ b


with ir.Context(), ir.Location.unknown():
    plain, module = build(), build()
    before = str(module)
    to_buffers(module)
    passes = PassManager("builtin.module")
    passes.add(matmul_to_blas, "matmul-to-blas")
    passes.run(module.operation)

example_inputs = tuple(np.random.default_rng(i).standard_normal((SIZE, SIZE), np.float32) for i in range(2))


def milliseconds(calls: dict[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """The least that each call took, in turns with the others, but for the first turn, in which things are made.

    What else a machine does only ever adds to a time.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(1 + rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: min(found[1:]) for name, found in times.items()}


def time_them(called: Compiled) -> None:
    """The library, the generated kernel and plain loops, each on one thread."""
    import torch

    torch.set_num_threads(1)
    result = np.empty((SIZE, SIZE), np.float32)
    tensors = [torch.from_numpy(array) for array in example_inputs]
    kernel = torch.compile(torch.matmul, backend="buddy", options={"fallback": "error"})
    loops = Compiled(plain)
    calls = {
        library.package: lambda: called("product", *example_inputs, result),
        "generated kernel": lambda: kernel(*tensors),
        "MLIR's loops": lambda: loops("product", *example_inputs, result),
    }
    for name, time_of_it in milliseconds(calls).items():
        print(f"{name}: {time_of_it:.2f} ms")


if __name__ == "__main__":
    print(before)
    print(module)
    imported = blas.gemm_addresses([GEMM.encode()], threads=1)
    called, result = Compiled(module, imported), np.empty((SIZE, SIZE), np.float32)
    called("product", *example_inputs, result)
    print("largest difference from NumPy:", abs(result - reference(*example_inputs)).max())
    if "--time" in sys.argv[1:]:
        time_them(called)
