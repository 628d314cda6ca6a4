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
    """Get the full text in one `Text` frame: for `dump` and for writing a stage to a file."""

    text: str


class ListSymbols(Request["Symbols"], frozen=True):
    """List the functions, globals and graphs of `text`; answered by `Symbols`."""

    text: str
    language: str


class ListTypes(Request["Types"], frozen=True):
    """List the long types that occur more than once in `text`, a text of MLIR; answered by `Types`."""

    text: str


class FindRegion(Request["Region"], frozen=True):
    """Find the region that line `line` of `text` opens, or the enclosing one; answered by `Region`."""

    text: str
    line: int


class FetchCharacters(Request["Characters"], frozen=True):
    """Get `count` characters of a line from `start`, constants included; answered by `Characters`."""

    text: str
    line: int
    start: int = 0
    count: int = 1 << 16


class Reprint(Request["Reprinted"], frozen=True):
    """Print a text of MLIR in MLIR's generic form, as another text; answered by `Reprinted`."""

    text: str


class DescribeOp(Request["OpSummary"], frozen=True):
    """Get the dialect's own documentation of the op `name`, such as `linalg.generic`; answered by `OpSummary`."""

    name: str


class Lines(Frame, frozen=True):
    """Lines `start`… of a text. `nodes[i]` are indices into `names`, the FX nodes that line `start + i` comes from.

    Indices in `derived` are nodes that are not the line's own: a pass had dropped the location of its op. `machine` is
    the machine code of each line, in hexadecimal digits, for texts that have it.
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
    """A named part of a text, with its first and last line."""

    name: str
    kind: Literal["function", "global", "graph"]
    first: int
    last: int


class Symbols(Frame, frozen=True):
    request: int
    text: str
    symbols: tuple[Symbol, ...]


class LongType(msgspec.Struct, frozen=True):
    """A type as printed in the text, its number of occurrences, and the first line that has it, counted from 0."""

    text: str
    uses: int
    first: int


class Types(Frame, frozen=True):
    request: int
    text: str
    types: tuple[LongType, ...]


class Region(Frame, frozen=True):
    """The lines that open and close a region; -1 if there is none."""

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
    """The text `form` is the generic form of `text`, with `lines` lines."""

    request: int
    text: str
    form: str
    lines: int


class OpSummary(Frame, frozen=True):
    """`text` is the dialect's documentation of op `name`, "" if the bindings have none."""

    request: int
    name: str
    text: str
