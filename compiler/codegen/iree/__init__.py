"""IREE as a backend: the same top-level IR through `iree-compile`, phase by phase, and run by IREE's runtime.

IREE brings an LLVM, and threads, of its own: its compiler is a process of its own, and so is its runtime.
"""
