"""Bookmarks: marked lines in stages of graphs. No Textual."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

# A stage by its pass and the number of earlier stages of that pass, which does not change when steps are renumbered.
Key = tuple[str, int]


class Bookmark(msgspec.Struct, frozen=True):
    """Line `line` of stage `key` of a graph, with its text, by which it is found again after an edit."""

    graph: int
    key: Key
    line: int
    text: str


class Bookmarks:
    """All bookmarks, in the order of their creation."""

    def __init__(self, marks: Iterable[Bookmark] = ()) -> None:
        self.marks = list(marks)

    def toggle(self, mark: Bookmark) -> bool:
        """Set or remove a bookmark. Returns whether the line has one now."""
        before = len(self.marks)
        self.marks = [other for other in self.marks if not _same_place(other, mark)]
        if len(self.marks) < before:
            return False
        self.marks.append(mark)
        return True

    def lines_of(self, graph: int, key: Key | None) -> set[int]:
        """The lines of a stage that have bookmarks."""
        return {mark.line for mark in self.marks if (mark.graph, mark.key) == (graph, key)}

    def to_data(self) -> list[Any]:
        """The bookmarks as plain values for `from_data`, equal to those read from a file."""
        found: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(self.marks))
        return found

    @staticmethod
    def from_data(data: Any) -> Bookmarks:
        """Read the values of `to_data`. Raises `msgspec.ValidationError` if they are not a list of bookmarks."""
        return Bookmarks(msgspec.convert(data, list[Bookmark]))


def _same_place(one: Bookmark, other: Bookmark) -> bool:
    return (one.graph, one.key, one.line) == (other.graph, other.key, other.line)
