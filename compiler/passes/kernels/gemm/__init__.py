"""Matrix-multiply kernels: one MLIR function per contraction, source of B, prologue and epilogue."""

from buddy.compiler.passes.kernels.gemm.kernel import kernel_function

__all__ = ["kernel_function"]
