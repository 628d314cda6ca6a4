"""Runs compiled graphs: links their objects, calls them on torch tensors, and compares them with eager."""

from buddy.compiler.runner.linker import LinkError
from buddy.compiler.runner.loaded import LoadedProgram
from buddy.compiler.runner.measure import run_and_compare

__all__ = ["LinkError", "LoadedProgram", "run_and_compare"]
