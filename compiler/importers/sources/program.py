"""The result of loading a source: captured graphs and notes, or an error for the user."""

from __future__ import annotations

from dataclasses import dataclass, field

from buddy.compiler.protocol import Diagnostic
from buddy.compiler.runtime.captured import CapturedGraph


class SourceError(Exception):
    """No program could be loaded; `diagnostic` says what, where, and what to do."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(str(diagnostic))
        self.diagnostic = diagnostic


def source_error(what: str, where: str = "", todo: str = "", detail: str = "") -> SourceError:
    return SourceError(Diagnostic(what, where, todo, detail=detail))


@dataclass
class CapturedProgram:
    """The graphs of a program, in the order they ran, notes, and the program's files."""

    graphs: list[CapturedGraph] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: tuple[str, ...] = ()
