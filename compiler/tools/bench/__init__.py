"""Benchmarks of whole programs: compares this compiler with other compilers for PyTorch by interleaved calls."""
