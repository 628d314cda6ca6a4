"""Defines the error of an export."""

from __future__ import annotations

from buddy.compiler.protocol.errors import BuddyError


class ExportError(BuddyError):
    """A program cannot be exported; `diagnostic` says why, and what to do."""

    def __init__(self, what: str, where: str = "", todo: str = "", detail: str = "") -> None:
        super().__init__(what, where, todo, detail=detail)
