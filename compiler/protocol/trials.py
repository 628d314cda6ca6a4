"""Frames that try out IR written by hand, and passes."""

from __future__ import annotations

from buddy.compiler.protocol.frame import Frame, Request
from buddy.compiler.protocol.recipe import PassStep


class CheckIr(Request["IrChecked"], frozen=True):
    """Whether `content` is a module that parses and verifies; answered by `IrChecked`."""

    content: str


class TryPasses(Request["TriedAll"], frozen=True):
    """What each of `candidates` would do to the module `text`: a `Tried` each, then `TriedAll`.

    A candidate gets `each` seconds, all of them together `timeout`.
    """

    text: str
    candidates: tuple[PassStep, ...]
    threads: int = 1
    each: float = 5.0
    timeout: float = 60.0


class IrChecked(Frame, frozen=True):
    """What is wrong with a module, "" where nothing is; line and column count from 1, 0 where none is known."""

    request: int
    line: int = 0
    column: int = 0
    message: str = ""


class Tried(Frame, frozen=True):
    """What candidate `number` would do: ops by how many more there are, or why it failed."""

    request: int
    number: int
    changed: bool = False
    deltas: tuple[tuple[str, int], ...] = ()
    milliseconds: float = 0.0
    problem: str = ""


class TriedAll(Frame, frozen=True):
    """How many of the candidates were tried before the time was up."""

    request: int
    tried: int
    candidates: int
