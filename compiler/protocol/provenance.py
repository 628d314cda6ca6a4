"""Frames about where things come from: a node's lines in every stage, the nodes of lines, Python sources, jumps."""

from __future__ import annotations

import msgspec

from buddy.compiler.protocol.frame import Frame, Request


class FollowNode(Request["Followed"], frozen=True):
    """The lines of each of `texts` that come from the node with the stable name `node`: `Followed`."""

    texts: tuple[str, ...]
    node: str
    limit: int = 200


class NodeTrace(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of `text` comes from a node: `own` lines and `derived` ones, of which the first are in `lines`.

    `marks` says of each of `lines` whether it is derived, `excerpts` what stands there; lines of the node's own come
    first.
    """

    text: str
    own: int
    derived: int
    lines: tuple[int, ...] = ()
    marks: tuple[bool, ...] = ()
    excerpts: tuple[str, ...] = ()


class Followed(Frame, frozen=True):
    """One entry for each text that was asked for and is still kept, in order; equal texts have one."""

    request: int
    node: str
    traces: tuple[NodeTrace, ...]


class FindOrigins(Request["OriginsFound"], frozen=True):
    """The nodes that lines `first` to `last` of `text` come from: `OriginsFound`."""

    text: str
    first: int
    last: int


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of the lines asked for, `own` come from the node itself; for `derived` ones a pass had dropped the location."""

    node: str
    own: int
    derived: int = 0


class OriginsFound(Frame, frozen=True):
    """The nodes with most lines of their own first; `total` is how many lines the text has."""

    request: int
    text: str
    origins: tuple[Origin, ...]
    total: int = 0


class OpenPython(Request["PythonOpened"], frozen=True):
    """The Python file `path` that nodes of the program come from, each line with its nodes: `PythonOpened`."""

    source: str
    arguments: tuple[str, ...]
    graph: int
    path: str


class PythonOpened(Frame, frozen=True):
    """The file is the text `text` of `lines` lines, whose nodes are those of the graph."""

    request: int
    path: str
    text: str
    lines: int


class FindJumps(Request["Jumps"], frozen=True):
    """The jumps inside the function of assembly that line `line` of `text` is in: `Jumps`."""

    text: str
    line: int


class Jumps(Frame, frozen=True):
    """Pairs of lines, a jump and where it goes, of the function in lines `first` to `last`."""

    request: int
    text: str
    jumps: tuple[tuple[int, int], ...] = ()
    first: int = 0
    last: int = 0
