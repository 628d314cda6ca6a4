"""The error of an export."""

from __future__ import annotations

from buddy.compiler.protocol import Diagnostic


class ExportError(Exception):
    """A program cannot be exported; `diagnostic` says why, and what to do."""

    def __init__(self, what: str, where: str = "", todo: str = "", detail: str = "") -> None:
        self.diagnostic = Diagnostic(what, where, todo, detail=detail)
        super().__init__(str(self.diagnostic))
