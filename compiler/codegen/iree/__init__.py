"""IREE as a backend: compiles the top-level IR by `iree-compile`, phase by phase, and runs it by IREE's runtime.

IREE has its own LLVM and its own threads, so its compiler and its runtime are separate processes.
"""
