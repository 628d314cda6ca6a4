"""Frames about the texts of stages: reading, searching, comparing, checking edited IR, and trying passes."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from buddy.compiler.protocol.connection import Frame, Request
from buddy.compiler.protocol.recipe import PassStep


class FetchLines(Request["Lines"], frozen=True):
    """Get `count` lines of `text` from line `start` on; answered by `Lines`."""

    text: str
    start: int
    count: int


class FetchText(Request["Text"], frozen=True):
    """Get the full text; answered by `Text`."""

    text: str


class ListSymbols(Request["Symbols"], frozen=True):
    """List the functions, globals and graphs of `text`; answered by `Symbols`."""

    text: str
    language: str


class ListTypes(Request["Types"], frozen=True):
    """List the long types that occur more than once in the MLIR text `text`; answered by `Types`."""

    text: str


class FindRegion(Request["Region"], frozen=True):
    """Find the region that line `line` of `text` opens, or the enclosing one; answered by `Region`."""

    text: str
    line: int


class FetchCharacters(Request["Characters"], frozen=True):
    """Get `count` characters of a line from `start`, with long constants in full; answered by `Characters`."""

    text: str
    line: int
    start: int = 0
    count: int = 1 << 16


class Reprint(Request["Reprinted"], frozen=True):
    """Print an MLIR text in MLIR's generic form, as another text; answered by `Reprinted`."""

    text: str


class DescribeOp(Request["OpSummary"], frozen=True):
    """Get the dialect's own documentation of the op `name`, such as `linalg.generic`; answered by `OpSummary`."""

    name: str


class Lines(Frame, frozen=True):
    """Lines `start`… of a text. `nodes[i]` are indices into `names`, the FX nodes that line `start + i` comes from.

    An index in `derived` stands for a node that was derived for the line, because a pass had dropped the location of
    its op. `line_count` is the number of lines of the whole text. `machine` is the machine code of each line, in
    hexadecimal digits, for texts that have machine code.
    """

    request: int
    text: str
    start: int
    lines: tuple[str, ...]
    line_count: int
    nodes: tuple[tuple[int, ...], ...] = ()
    names: tuple[str, ...] = ()
    derived: tuple[int, ...] = ()
    machine: tuple[str, ...] = ()


class Text(Frame, frozen=True):
    """The full content of `text`."""

    request: int
    text: str
    content: str


class Symbol(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named part of a text, with its first and last line."""

    name: str
    kind: Literal["function", "global", "graph", "module"]
    first: int
    last: int


class Symbols(Frame, frozen=True):
    """The named parts of `text`, in order."""

    request: int
    text: str
    symbols: tuple[Symbol, ...]


class LongType(msgspec.Struct, frozen=True):
    """A type as printed in the text, its number of occurrences, and the first line that has it, counted from 0."""

    text: str
    uses: int
    first: int


class Types(Frame, frozen=True):
    """The long types of `text`, in order of appearance."""

    request: int
    text: str
    types: tuple[LongType, ...]


class Region(Frame, frozen=True):
    """The lines that open and close a region; -1 outside of all regions."""

    request: int
    text: str
    first: int = -1
    last: int = -1


class Characters(Frame, frozen=True):
    """The characters `content` of a line, from character `start` on; the line has `line_length` characters."""

    request: int
    text: str
    line: int
    start: int
    content: str
    line_length: int


class Reprinted(Frame, frozen=True):
    """The generic form of `text` is stored as the text `form`, which has `lines` lines."""

    request: int
    text: str
    form: str
    lines: int


class OpSummary(Frame, frozen=True):
    """`text` is the dialect's documentation of op `name`, "" if the bindings have none."""

    request: int
    name: str
    text: str


class Search(Request["SearchResult"], frozen=True):
    """Find the first `limit` lines of `text` that contain `pattern`: a plain string, or with `regex`, an expression."""

    text: str
    pattern: str
    regex: bool = False
    ignore_case: bool = False
    limit: int = 10_000


class SearchEach(Request["FoundEach"], frozen=True):
    """Search several texts. A text that is named twice is searched once; a text that is no longer stored is left out.

    Answered by `FoundEach`, with the numbers of the first `limit` matching lines of each text, and the first `excerpts`
    of these lines.
    """

    texts: tuple[str, ...]
    pattern: str
    regex: bool = False
    ignore_case: bool = False
    excerpts: int = 200
    limit: int = 10_000


# The header, return and end of a function or a module: these lines come from the nodes of all ops inside.
BOUNDARY_LINE = re.compile(r"\s*(?:[\w.]*func\b|define\b|[\w.]*module\b|[\w.]*return\b|ret\b|\})")


class FindNode(Request["SearchResult"], frozen=True):
    """Find the lines of `text` that come from the FX node with the stable name `node`; answered by `SearchResult`."""

    text: str
    node: str
    limit: int = 10_000


class FindMainLine(Request["SearchResult"], frozen=True):
    """Find the line of `text` that represents a node best, and get the lines around it.

    This line comes from the node and from as few other nodes as possible. If no line comes from the node, or only lines
    that match `BOUNDARY_LINE`, the first of the nodes `otherwise` that has another line is used instead. If there is no
    such node either, the line is a boundary line of the node, or the first line of the text.

    The text is divided into pages of `page` lines. Answered by `Lines` for each page that has one of the `around` lines
    before or after the line, then by a `SearchResult` with the line; the result has no line if none comes from the
    nodes.
    """

    text: str
    node: str
    page: int
    around: int
    otherwise: tuple[str, ...] = ()


class Compare(Request["Compared"], frozen=True):
    """Find where the text `after` differs from `before`: line by line, or `structural`; answered by `Compared`.

    Structural differences ignore lines of `language` in which only numbering, the order of attributes, locations or
    comments changed.
    """

    before: str
    after: str
    how: Literal["line", "structural"] = "line"
    language: str = "mlir"


class SearchResult(Frame, frozen=True):
    """The numbers of the lines of `text` that match. `more` says that further lines match."""

    request: int
    text: str
    lines: tuple[int, ...]
    more: bool = False


class Hits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The matches in a text: the numbers of the matching lines, and the first of these lines as text.

    `more` says that further lines match.
    """

    text: str
    lines: tuple[int, ...]
    excerpts: tuple[str, ...]
    more: bool = False


class FoundEach(Frame, frozen=True):
    """The texts that contain the pattern, in the requested order."""

    request: int
    hits: tuple[Hits, ...]


class Compared(Frame, frozen=True):
    """The runs of lines that differ between the texts `before` and `after`, in order.

    A hunk `(start, removed, other_start, added)` means that the `removed` lines of `before` from line `start` on are
    replaced by the `added` lines of `after` from line `other_start` on. Between hunks the lines correspond one to one.
    `before_lines` and `after_lines` are the numbers of lines of the texts. `aliases` are those of
    `buddy.compiler.protocol.text.diff.Difference`.
    """

    request: int
    before: str
    after: str
    hunks: tuple[tuple[int, int, int, int], ...]
    before_lines: int
    after_lines: int
    aliases: tuple[tuple[str, str], ...] = ()


class CheckIr(Request["IrChecked"], frozen=True):
    """Check that `content` is a module that parses and verifies; answered by `IrChecked`."""

    content: str


class TryPasses(Request["TriedAll"], frozen=True):
    """Preview what each of `candidates` would change in the module that is the text `text`.

    Answered by a `Tried` for each candidate, then `TriedAll`. One candidate may take `candidate_seconds`, all
    candidates together `timeout` seconds.
    """

    text: str
    candidates: tuple[PassStep, ...]
    threads: int = 1
    candidate_seconds: float = 5.0
    timeout: float = 60.0


class IrChecked(Frame, frozen=True):
    """The first error in a module, "" if it is valid; line and column count from 1, 0 if unknown."""

    request: int
    line: int = 0
    column: int = 0
    message: str = ""


class Tried(Frame, frozen=True):
    """The changes by candidate `number`: differences of op counts by op name, or why it failed (`problem`)."""

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
