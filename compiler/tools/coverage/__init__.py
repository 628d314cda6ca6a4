"""Measures coverage: captures, lowers, compiles and runs PyTorch's own operator samples, and compares the results."""
