"""What is asked of the process that reads a file of MLIR, and what it answers. Neither torch nor MLIR."""

from __future__ import annotations

from dataclasses import dataclass, field

from buddy.compiler.protocol import Diagnostic


@dataclass(frozen=True)
class Question:
    """The bytes of a file, its name for messages, the function to enter by ("" for all public ones), and shapes.

    Shapes are those of arguments whose sizes the file leaves open, as `arg0=4x128` or `0=4x128xf32`.
    """

    content: bytes
    title: str
    entry: str = ""
    shapes: tuple[str, ...] = ()


@dataclass(frozen=True)
class EntryPoint:
    """One function as a program: `graph` is a Buddy graph in bytes, which begins as IR.

    `enters` is the phase that its IR is at, `dialects` those of its ops. `text` is the file's part as it is printed.
    """

    name: str
    graph: bytes
    enters: str
    dialects: tuple[str, ...]
    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The ways into the program, or why there is none."""

    entries: tuple[EntryPoint, ...] = ()
    problem: Diagnostic | None = None
    notes: tuple[str, ...] = field(default=())
