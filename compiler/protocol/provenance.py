"""Frames about provenance: a node's lines in every stage, the nodes of lines, and LLVM's remarks."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

import msgspec

from buddy.compiler.protocol.connection import Frame, Request
from buddy.compiler.protocol.recipe import Recipe


class FollowNode(Request["Followed"], frozen=True):
    """Find the first `limit` lines of each of `texts` from the node with stable name `node`; answered by `Followed`."""

    texts: tuple[str, ...]
    node: str
    limit: int = 200


class NodeTrace(msgspec.Struct, frozen=True, omit_defaults=True):
    """The lines of `text` that come from a node.

    The ops of `direct` lines name the node; for `derived` lines the node was derived, because a pass had dropped the
    op's location. `lines` are the numbers of the first lines, direct ones before derived ones. For each of `lines`,
    `marks` says whether the node was derived for it, and `excerpts` has its text.
    """

    text: str
    direct: int
    derived: int
    lines: tuple[int, ...] = ()
    marks: tuple[bool, ...] = ()
    excerpts: tuple[str, ...] = ()


class Followed(Frame, frozen=True):
    """One entry for each requested text that is still stored, in order; equal texts have one entry."""

    request: int
    node: str
    traces: tuple[NodeTrace, ...]


class FindOrigins(Request["OriginsFound"], frozen=True):
    """Find the nodes that lines `first` to `last` of `text` come from; answered by `OriginsFound`."""

    text: str
    first: int
    last: int


class LineOrigins(msgspec.Struct, frozen=True, omit_defaults=True):
    """The numbers of requested lines that come from `node`: `direct` and `derived` ones, as in `NodeTrace`."""

    node: str
    direct: int
    derived: int = 0


class OriginsFound(Frame, frozen=True):
    """The nodes that the requested lines come from, those with most direct lines first.

    `line_count` is the number of lines of the whole text.
    """

    request: int
    text: str
    origins: tuple[LineOrigins, ...]
    line_count: int = 0


class OpenPython(Request["PythonOpened"], frozen=True):
    """Open the Python code `path` that nodes of the program come from, as it was captured, each line with its nodes.

    Answered by `PythonOpened`.
    """

    source: str
    arguments: tuple[str, ...]
    graph: int
    path: str


class LineKind(IntEnum):
    """What a line of Python is, as a byte of `PythonStructure.kinds`: the code of an ASCII character."""

    # `STRING` is a statement that is only a string, such as a docstring; `HEADER` is a `def` or `class` line.
    CODE, BLANK, COMMENT, STRING, IMPORT, HEADER = b" .#sid"


BlockKind = Literal["function", "class", "branch", "statement"]


class PythonBlock(msgspec.Struct, frozen=True, omit_defaults=True):
    """Lines `first` to `last`, from 0, of a function or a class called `name`, a branch, or a long statement.

    `head` is the line that decides whether a branch runs, and `name` its keyword: `if`, `else`, `for`, `except`.
    """

    first: int
    last: int
    kind: BlockKind
    name: str = ""
    head: int = -1

    def contains(self, line: int) -> bool:
        return self.first <= line <= self.last


class PythonStructure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One byte of `kinds` for each line, and the blocks, those that contain others first.

    Both are empty for code that is not valid Python, or too long.
    """

    kinds: bytes = b""
    blocks: tuple[PythonBlock, ...] = ()

    def blocks_at(self, line: int, *kinds: BlockKind) -> list[PythonBlock]:
        """Returns the blocks of these kinds that contain a line, the innermost first."""
        return [block for block in reversed(self.blocks) if block.kind in kinds and block.contains(line)]


# The state on disk of a file that was captured. "uncertain" is a file that was written while the program ran, so
# its lines may be other than those that ran; "none" is code that has no file.
DiskState = Literal["same", "changed", "deleted", "uncertain", "none"]


class PythonOpened(Frame, frozen=True):
    """The code as it was captured is stored as the text `text` with `lines` lines, each with the nodes from it.

    `old` are the ranges of lines (the first one, and the number of lines) that the file on disk does not have any more.
    """

    request: int
    path: str
    text: str
    lines: int
    on_disk: DiskState = "same"
    old: tuple[tuple[int, int], ...] = ()
    structure: PythonStructure = PythonStructure()


class FindJumps(Request["Jumps"], frozen=True):
    """Find the jumps in the assembly function that contains line `line` of `text`; answered by `Jumps`."""

    text: str
    line: int


class Jumps(Frame, frozen=True):
    """Pairs of lines, a jump and its target, of the function in lines `first` to `last`."""

    request: int
    text: str
    jumps: tuple[tuple[int, int], ...] = ()
    first: int = 0
    last: int = 0


# Stands for the pass in remarks from LLVM, which does not say which of its passes they come from.
LLVM = "llvm"


class ExplainCode(Request["CodeExplained"], frozen=True):
    """Collect LLVM's remarks on each node's code under a recipe; answered by `CodeExplained`, or `Failed`.

    The functions are compiled again for this, so it takes as long as code generation.
    """

    recipe: Recipe


class CodeExplained(Frame, frozen=True):
    """`remarks` are tuples (`LLVM`, node, text), like those of `Compiled`."""

    request: int
    graph: int
    remarks: tuple[tuple[str, str, str], ...]
