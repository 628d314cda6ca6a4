"""Matrix-multiply kernels: one MLIR function per contraction, place of B, and way to start and to finish C."""

from buddy.compiler.passes.kernels.gemm.kernel import kernel_function

__all__ = ["kernel_function"]
