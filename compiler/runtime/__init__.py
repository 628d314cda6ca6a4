"""Runs compiled graphs: links their objects, calls them on torch tensors, and compares results with eager."""

from buddy.compiler.runtime.executable import LoadedProgram
from buddy.compiler.runtime.linker import LinkError
from buddy.compiler.runtime.measure import run_and_compare

__all__ = ["LinkError", "LoadedProgram", "run_and_compare"]
