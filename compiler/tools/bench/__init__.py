"""Benchmarks of whole programs: this compiler beside what else a PyTorch user can pick, call by call in turn."""
