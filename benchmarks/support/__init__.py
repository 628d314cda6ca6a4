"""What the benchmarks share: timings taken in turn, an engine with a clock, and how results are printed."""
