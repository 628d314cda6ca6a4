"""Programs for a GPU: kernels from MLIR's own passes, their PTX, and the launches that the host makes."""
