"""Lines that the user wants to come back to, in any stage of any graph. No Textual."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

# A stage that survives a renumbering of the steps: its pass, and how many of that name stand before it.
Key = tuple[str, int]


class Bookmark(msgspec.Struct, frozen=True):
    """Line `line` of stage `key` of a graph, and what it said, by which it is found again after an edit."""

    graph: int
    key: Key
    line: int
    text: str


class Bookmarks:
    """All bookmarks, in the order in which they were set."""

    def __init__(self, marks: Iterable[Bookmark] = ()) -> None:
        self.marks = list(marks)

    def toggle(self, mark: Bookmark) -> bool:
        """Set a bookmark, or take the one on that line away; whether there is one now."""
        before = len(self.marks)
        self.marks = [other for other in self.marks if not _same_place(other, mark)]
        if len(self.marks) < before:
            return False
        self.marks.append(mark)
        return True

    def lines_of(self, graph: int, key: Key | None) -> set[int]:
        """The marked lines of a stage."""
        return {mark.line for mark in self.marks if (mark.graph, mark.key) == (graph, key)}

    def to_data(self) -> list[Any]:
        """Plain values from which `from_data` makes the same bookmarks: equal to those that come out of a file."""
        found: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(self.marks))
        return found

    @staticmethod
    def from_data(data: Any) -> Bookmarks:
        """Raises `msgspec.ValidationError` for what is no list of bookmarks."""
        return Bookmarks(msgspec.convert(data, list[Bookmark]))


def _same_place(one: Bookmark, other: Bookmark) -> bool:
    return (one.graph, one.key, one.line) == (other.graph, other.key, other.line)
