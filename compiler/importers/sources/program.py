"""What a source gives: captured graphs and notes, or an error that a person can act on."""

from __future__ import annotations

from dataclasses import dataclass, field

from buddy.compiler.protocol import Diagnostic
from buddy.compiler.runtime.captured import CapturedGraph


class SourceError(Exception):
    """A source that gives no program; `diagnostic` says what, where, and what to do."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(str(diagnostic))
        self.diagnostic = diagnostic


def source_error(what: str, where: str = "", todo: str = "", detail: str = "") -> SourceError:
    return SourceError(Diagnostic(what, where, todo, detail=detail))


@dataclass
class Program:
    """The graphs of a program, in the order they ran, what was noted on the way, and the files that it is made of."""

    graphs: list[CapturedGraph] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: tuple[str, ...] = ()
