"""Frames that read the texts of stages: lines, symbols, regions, other forms of a text."""

from __future__ import annotations

from typing import Literal

import msgspec

from buddy.compiler.protocol.frame import Frame, Request


class FetchLines(Request["Lines"], frozen=True):
    text: str
    start: int
    count: int


class FetchText(Request["Text"], frozen=True):
    """The whole of a text in one `Text` frame: for `dump` and for writing a stage to a file."""

    text: str


class ListSymbols(Request["Symbols"], frozen=True):
    """The functions, globals and graphs of `text`: `Symbols`."""

    text: str
    language: str


class ListTypes(Request["Types"], frozen=True):
    """The long types that stand more than once in `text`, a text of MLIR: `Types`."""

    text: str


class FindRegion(Request["Region"], frozen=True):
    """The region that line `line` of `text` opens, or else is in: `Region`."""

    text: str
    line: int


class FetchCharacters(Request["Characters"], frozen=True):
    """`count` characters of a line from `start`, constants and all: `Characters`."""

    text: str
    line: int
    start: int = 0
    count: int = 1 << 16


class Reprint(Request["Reprinted"], frozen=True):
    """Print a text of MLIR anew in MLIR's generic form, as a text of its own: `Reprinted`."""

    text: str


class DescribeOp(Request["OpSummary"], frozen=True):
    """What the dialect's own documentation says of the op `name`, such as `linalg.generic`: `OpSummary`."""

    name: str


class Lines(Frame, frozen=True):
    """Lines `start`… of a text. `nodes[i]` are indices into `names`, the FX nodes that line `start + i` comes from.

    Indices in `derived` stand for nodes that are not the line's own: a pass had dropped the location of its op.
    `machine` is the machine code of each line, in hexadecimal digits, for texts that have some.
    """

    request: int
    text: str
    start: int
    lines: tuple[str, ...]
    total: int
    nodes: tuple[tuple[int, ...], ...] = ()
    names: tuple[str, ...] = ()
    derived: tuple[int, ...] = ()
    machine: tuple[str, ...] = ()


class Text(Frame, frozen=True):
    request: int
    text: str
    content: str


class Symbol(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named piece of a text, with its first and last line."""

    name: str
    kind: Literal["function", "global", "graph"]
    first: int
    last: int


class Symbols(Frame, frozen=True):
    request: int
    text: str
    symbols: tuple[Symbol, ...]


class LongType(msgspec.Struct, frozen=True):
    """A type as the text has it, how often it stands there, and the first line that has it, counted from 0."""

    text: str
    uses: int
    first: int


class Types(Frame, frozen=True):
    request: int
    text: str
    types: tuple[LongType, ...]


class Region(Frame, frozen=True):
    """The lines that open and close a region; -1 where there is none."""

    request: int
    text: str
    first: int = -1
    last: int = -1


class Characters(Frame, frozen=True):
    """`content` from character `start` of a line that has `total`."""

    request: int
    text: str
    line: int
    start: int
    content: str
    total: int


class Reprinted(Frame, frozen=True):
    """The text `form` says what `text` says, in `lines` lines."""

    request: int
    text: str
    form: str
    lines: int


class OpSummary(Frame, frozen=True):
    """`text` is the documentation of op `name` as the dialect has it, "" where the bindings have none."""

    request: int
    name: str
    text: str
