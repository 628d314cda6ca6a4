"""Measured coverage: PyTorch's own operator samples through capture, lowering, compilation, run and comparison."""
