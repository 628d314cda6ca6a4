"""Utilities for all layers: caches and temporary files, captured stderr, a cluster's other machines, BLAS."""
