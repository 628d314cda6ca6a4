"""Matrix-multiply kernels: one MLIR function for each combination of contraction, blocking, prologue and epilogue."""

from buddy.compiler.passes.kernels.gemm.kernel import kernel_function

__all__ = ["kernel_function"]
