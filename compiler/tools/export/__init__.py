"""Exports a compiled program as files that need no Python, including the sources to call it from C."""

from buddy.compiler.tools.export.interface import ExportError
from buddy.compiler.tools.export.program import CompiledProgram, ExportOrder, export

__all__ = ["CompiledProgram", "ExportError", "ExportOrder", "export"]
