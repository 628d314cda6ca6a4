"""GPU programs: kernels from MLIR's own passes, their PTX, and the host's launches."""
