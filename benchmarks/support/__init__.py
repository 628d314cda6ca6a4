"""Shared parts of the benchmarks: interleaved timings, an engine with timing, and the output format."""
