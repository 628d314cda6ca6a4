"""Ways out: a compiled program as files that need no Python, with what it takes to call it from C."""

from buddy.compiler.tools.export.errors import ExportError
from buddy.compiler.tools.export.program import Order, Program, export

__all__ = ["ExportError", "Order", "Program", "export"]
