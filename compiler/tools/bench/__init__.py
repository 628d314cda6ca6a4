"""Benchmarks of whole programs: interleaved calls of this compiler and of other compilers for PyTorch."""
