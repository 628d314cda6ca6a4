"""Measures coverage: PyTorch's own operator samples are captured, lowered, compiled, run and compared."""
