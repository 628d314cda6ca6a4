"""IREE as a backend: compiles the top-level IR by `iree-compile`, phase by phase, and runs it by IREE's runtime.

IREE has a separate LLVM and separate threads, so its compiler and its runtime run in separate processes.
"""
