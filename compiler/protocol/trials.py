"""Frames that check edited IR, and that preview passes."""

from __future__ import annotations

from buddy.compiler.protocol.frame import Frame, Request
from buddy.compiler.protocol.recipe import PassStep


class CheckIr(Request["IrChecked"], frozen=True):
    """Check that `content` is a module that parses and verifies; answered by `IrChecked`."""

    content: str


class TryPasses(Request["TriedAll"], frozen=True):
    """Preview what each of `candidates` would change in the module `text`; answered by a `Tried` each, then `TriedAll`.

    A candidate may take `each` seconds, all of them together `timeout`.
    """

    text: str
    candidates: tuple[PassStep, ...]
    threads: int = 1
    each: float = 5.0
    timeout: float = 60.0


class IrChecked(Frame, frozen=True):
    """The first error in a module, "" if it is valid; line and column count from 1, 0 if unknown."""

    request: int
    line: int = 0
    column: int = 0
    message: str = ""


class Tried(Frame, frozen=True):
    """The changes by candidate `number`: differences of op counts by name, or the reason of its failure."""

    request: int
    number: int
    changed: bool = False
    deltas: tuple[tuple[str, int], ...] = ()
    milliseconds: float = 0.0
    problem: str = ""


class TriedAll(Frame, frozen=True):
    """The number of candidates that were tried within the time limit."""

    request: int
    tried: int
    candidates: int
