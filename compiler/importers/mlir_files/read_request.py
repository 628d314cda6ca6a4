"""The request to the process that reads an MLIR file, and its answer. Imports neither torch nor MLIR."""

from __future__ import annotations

from dataclasses import dataclass, field

from buddy.compiler.protocol import Diagnostic


@dataclass(frozen=True)
class ReadRequest:
    """The bytes of a file, its name for messages, the entry function ("" for all public ones), and shapes.

    Shapes are those of arguments with dynamic sizes, as `arg0=4x128` or `0=4x128xf32`.
    """

    content: bytes
    title: str
    entry: str = ""
    shapes: tuple[str, ...] = ()


@dataclass(frozen=True)
class EntryPoint:
    """One function as a program: `graph` is a serialized Buddy graph that starts as IR.

    `entry_phase` is the phase of its IR, `dialects` are those of its ops. `text` is its module in the file, printed.
    """

    name: str
    graph: bytes
    entry_phase: str
    dialects: tuple[str, ...]
    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReadAnswer:
    """The entry points of the file, or the error."""

    entries: tuple[EntryPoint, ...] = ()
    problem: Diagnostic | None = None
    notes: tuple[str, ...] = field(default=())
