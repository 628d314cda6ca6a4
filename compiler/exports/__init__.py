"""Ways out: a compiled program as files that need no Python, with what it takes to call it from C."""

from buddy.compiler.exports.errors import ExportError
from buddy.compiler.exports.program import Order, Program, export

__all__ = ["ExportError", "Order", "Program", "export"]
