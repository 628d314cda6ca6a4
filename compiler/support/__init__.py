"""Utilities for all layers: caches, temporary files, processes, hooks, Dask clusters, BLAS, the target machine."""
