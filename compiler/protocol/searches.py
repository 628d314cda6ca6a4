"""Frames that search texts, also for the lines of a node, and compare them."""

from __future__ import annotations

from typing import Literal

import msgspec

from buddy.compiler.protocol.frame import Frame, Request


class Search(Request["SearchResult"], frozen=True):
    """Find the lines of `text` that contain `pattern` (a plain string, or a regular expression)."""

    text: str
    pattern: str
    regex: bool = False
    ignore_case: bool = False
    limit: int = 10_000


class SearchEach(Request["FoundEach"], frozen=True):
    """Search several texts, equal ones once.

    Answered by `FoundEach`, with the first `excerpts` matching lines of each text.

    Texts that are no longer stored are left out.
    """

    texts: tuple[str, ...]
    pattern: str
    regex: bool = False
    ignore_case: bool = False
    excerpts: int = 200
    limit: int = 10_000


class FindNode(Request["SearchResult"], frozen=True):
    """Find the lines of `text` that come from the FX node with the stable name `node`; answered by `SearchResult`."""

    text: str
    node: str
    limit: int = 10_000


class FindPlace(Request["SearchResult"], frozen=True):
    """Find a node in `text` and get the lines around it, in one answer.

    The pages of `page` lines that contain the `around` lines on both sides of the node's own line come as `Lines`, then
    that line in a `SearchResult`. If the text has no line of the node, the first page is sent.
    """

    text: str
    node: str
    page: int
    around: int


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
    request: int
    text: str
    lines: tuple[int, ...]
    more: bool = False


class Hits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The matches in a text: the lines' numbers (`more` if there are others), and the first of the lines."""

    text: str
    lines: tuple[int, ...]
    excerpts: tuple[str, ...]
    more: bool = False


class FoundEach(Frame, frozen=True):
    """The texts that contain the pattern, in the requested order."""

    request: int
    hits: tuple[Hits, ...]


class Compared(Frame, frozen=True):
    """Runs of lines that differ, in order: `removed` lines from line `before` on correspond to `added` lines from
    `after` on.

    `hunks` are `(before, removed, after, added)`; between them the lines correspond one to one. `before_lines` and
    `after_lines` are the lengths of the texts.
    """

    request: int
    before: str
    after: str
    hunks: tuple[tuple[int, int, int, int], ...]
    before_lines: int
    after_lines: int
