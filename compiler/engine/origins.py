"""Answers requests about provenance: a node's lines in every stage, the nodes of lines, Python files, jumps."""

from __future__ import annotations

import asyncio
from array import array
from collections import defaultdict
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from buddy.compiler.engine.texts import excerpt_of, stored_text
from buddy.compiler.protocol import (
    Diagnostic,
    FindJumps,
    FindOrigins,
    Followed,
    FollowNode,
    Jumps,
    LineOrigins,
    NodeRow,
    NodeTrace,
    OpenPython,
    OriginsFound,
    PythonOpened,
)
from buddy.compiler.protocol.provenance import DiskState
from buddy.compiler.protocol.text import structure
from buddy.compiler.protocol.text.diff import hunks
from buddy.compiler.protocol.text.lines import IndexedText, jumps
from buddy.compiler.protocol.text.store import TextStore, text_name
from buddy.compiler.protocol.text.structure import decode_python, python_structure
from buddy.compiler.protocol.worker_messages import PythonText
from buddy.compiler.support.processes.jobs import Job, JobFailed

if TYPE_CHECKING:
    from buddy.compiler.protocol.connection import Frame


_MAX_JUMPS = 20_000

# Returns the rows of a graph of an opened program, by source, arguments and number.
RowsOf = Callable[[str, tuple[str, ...], int], tuple[NodeRow, ...]]
# Takes source, arguments and path; returns the Python code with that path if nodes come from it, `None` otherwise.
TextOf = Callable[[str, tuple[str, ...], str], PythonText | None]


class ProvenanceHandler:
    """Answers requests about the nodes of the store's texts.

    `rows_of` returns the nodes of a graph, `text_of` the Python code that they come from.
    """

    def __init__(self, store: TextStore, send: Callable[[Frame], None], rows_of: RowsOf, text_of: TextOf) -> None:
        self._store, self._send, self._rows_of, self._text_of = store, send, rows_of, text_of

    async def follow_node(self, frame: FollowNode, job: Job) -> None:
        stored_texts = [
            (name, text) for name in dict.fromkeys(frame.texts) if (text := self._store.get(name)) is not None
        ]
        traces = [await asyncio.to_thread(_trace, name, text, frame) for name, text in stored_texts]
        self._send(Followed(job.request, frame.node, tuple(traces)))

    async def find_origins(self, frame: FindOrigins, job: Job) -> None:
        text = stored_text(self._store, frame.text)
        counts = await asyncio.to_thread(text.nodes_of_lines, frame.first, frame.last)
        origins = [LineOrigins(node, direct, derived) for node, (direct, derived) in counts.items()]
        origins.sort(key=lambda origin: (-origin.direct, -origin.derived))
        self._send(OriginsFound(job.request, frame.text, tuple(origins), text.line_count))

    async def find_jumps(self, frame: FindJumps, job: Job) -> None:
        text = stored_text(self._store, frame.text)
        jumps_and_lines = await asyncio.to_thread(_jumps_around, text, frame.line)
        self._send(Jumps(job.request, frame.text, *jumps_and_lines))

    async def open_python(self, frame: OpenPython, job: Job) -> None:
        python_text = self._text_of(frame.source, frame.arguments, frame.path)
        if python_text is None:
            # The engine may be remote, so a client must not read other files through it.
            todo = "choose a file that nodes of the graph come from"
            raise JobFailed(Diagnostic(f"no node of the graph comes from {frame.path}", "the request", todo))
        if python_text.problem:
            raise JobFailed(Diagnostic(python_text.problem, frame.path))
        nodes_by_line: defaultdict[int, list[str]] = defaultdict(list)
        for row in self._rows_of(frame.source, frame.arguments, frame.graph):
            path, line = split_location(row.location)
            if path == frame.path:
                nodes_by_line[line].append(row.stable)
        name, text = _with_nodes(python_text.content, nodes_by_line)
        on_disk, missing_ranges = await asyncio.to_thread(_compare_with_disk, python_text)
        blocks = await asyncio.to_thread(python_structure, python_text.content)
        self._store.put(name, text)
        self._store.pin(("python", frame.path), [name])
        self._send(PythonOpened(job.request, frame.path, name, text.line_count, on_disk, missing_ranges, blocks))


def split_location(location: str) -> tuple[str, int]:
    """Returns the file and the line (from 1) of a node's location; ("", 0) if `location` is not `file:line`."""
    path, _, line = location.rpartition(":")
    return (path, int(line)) if path and line.isdecimal() else ("", 0)


def _trace(name: str, text: IndexedText, frame: FollowNode) -> NodeTrace:
    """Returns the lines of a text that come from a node, at most `frame.limit`, direct ones before derived ones."""
    lines_from_node = list(text.lines_from_node(frame.node))
    derived_count = sum(is_derived for _, is_derived in lines_from_node)
    first_lines = list(islice(sorted(lines_from_node, key=lambda pair: pair[1]), frame.limit))
    lines = tuple(line for line, _ in first_lines)
    derived_flags = tuple(is_derived for _, is_derived in first_lines)
    excerpts = tuple(excerpt_of(text, line) for line in lines)
    return NodeTrace(name, len(lines_from_node) - derived_count, derived_count, lines, derived_flags, excerpts)


def _jumps_around(text: IndexedText, line: int) -> tuple[tuple[tuple[int, int], ...], int, int]:
    """Returns the jumps in the assembly function that contains `line`, and its first and last line."""
    functions = structure.symbols(text, "asm")
    function = next((function for function in functions if function.first <= line <= function.last), None)
    if function is None:
        return (), 0, 0
    function_lines = [text.line(number) for number in range(function.first, function.last + 1)]
    return tuple(jumps(function_lines, function.first)[:_MAX_JUMPS]), function.first, function.last


def _compare_with_disk(text: PythonText) -> tuple[DiskState, tuple[tuple[int, int], ...]]:
    """Returns the state of the file of `text`, and the ranges of lines of `text` that the file no longer contains.

    A range is its first line and its number of lines. If the state is "deleted" or "uncertain", it has all lines.
    """
    if not text.is_file:
        return "none", ()
    lines = text.content.split("\n")
    try:
        current = decode_python(Path(text.path).read_bytes()).split("\n")
    except OSError:
        return "deleted", ((0, len(lines)),)
    if text.changed:
        return "uncertain", ((0, len(lines)),)
    if current == lines:
        return "same", ()
    return "changed", tuple((hunk.before, hunk.removed) for hunk in hunks(lines, current) if hunk.removed)


def _with_nodes(content: str, nodes_by_line: dict[int, list[str]]) -> tuple[str, IndexedText]:
    """Returns the text `content` with the nodes of its lines, and before it its name in the store.

    `nodes_by_line` has line numbers from 1.
    """
    sets = ((), *(tuple(nodes) for nodes in nodes_by_line.values()))
    set_numbers = {line: number for number, line in enumerate(nodes_by_line, 1)}
    line_sets = array("I", (set_numbers.get(line, 0) for line in range(1, content.count("\n") + 2)))
    return text_name(content, line_sets.tobytes(), sets), IndexedText(content, line_sets, sets)
