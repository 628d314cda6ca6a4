"""Utilities for all layers: disk caches, temporary folders, stderr capture, Dask clusters, BLAS, the target machine."""
