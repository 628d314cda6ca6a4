"""The text of one stage: an index of its lines, their nodes, jumps of assembly, and short names for long types."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import NamedTuple

import msgspec

from buddy.compiler.protocol import LongType
from buddy.compiler.protocol.texts import INSIDE

_LABEL = re.compile(r"^(\.L\w+):")
_JUMP = re.compile(r"^\s+[0-9a-f]+\s+\S+\s+(?:.*\s)?(\.L\w+)\s*(?:#.*)?$")


def jumps(lines: Sequence[str], first: int = 0) -> list[tuple[int, int]]:
    """Returns the pairs of lines, a jump and its target label, in order; `lines` are numbered from `first`."""
    labels = {found[1]: number for number, line in enumerate(lines, first) if (found := _LABEL.match(line))}
    matches = ((number, _JUMP.match(line)) for number, line in enumerate(lines, first))
    return [(number, labels[match[1]]) for number, match in matches if match and match[1] in labels]


MAX_CONSTANT = 200
MAX_LINE = 4000
_KEPT = 32
# How many lines from a node's first one are searched for its own line.
_NEAR = 2000
_CHUNK = 4 << 20
_CONSTANT = re.compile(rf"(?<=dense<)[^>]{{{MAX_CONSTANT + 1},}}(?=>)")


@dataclass(frozen=True)
class LineWindow:
    """Lines `start`… of a text; `nodes[i]` are indices into `names`, the nodes that line `start + i` comes from.

    A node may occur twice in `names`: at an index in `derived` it is derived, at any other it is the line's own.
    """

    start: int
    lines: tuple[str, ...]
    nodes: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    derived: tuple[int, ...] = ()
    machine: tuple[str, ...] = ()


@dataclass
class MachineCode:
    """The machine code of each line of a text: `content` concatenated, with one byte per line in `sizes`."""

    content: bytes = b""
    sizes: bytes = b""
    _ends: array[int] | None = None

    def of_lines(self, first: int, last: int) -> tuple[str, ...]:
        """Returns the machine code of lines `first` to `last` in hexadecimal digits; empty if the text has none."""
        if not self.sizes:
            return ()
        if self._ends is None:
            self._ends = array("Q", accumulate(self.sizes))
        ends = self._ends
        starts = [ends[line] - self.sizes[line] for line in range(first, last)]
        return tuple(self.content[start : ends[line]].hex(" ") for line, start in enumerate(starts, first))


@dataclass
class IndexedText:
    """`content` with, per line, the number of a set of node names (`line_sets` may be shorter than the text).

    `sets[0]` is empty; `derived` are those names of a set that were derived (see `StageText`). Lines are numbered from
    0 and end at "\\n" alone.
    """

    content: str
    line_sets: array[int] = field(default_factory=lambda: array("I"))
    sets: tuple[tuple[str, ...], ...] = ((),)
    derived: dict[int, tuple[str, ...]] = field(default_factory=dict)
    machine: MachineCode = field(default_factory=MachineCode)
    _ends: array[int] | None = None

    @property
    def size(self) -> int:
        """The approximate size in memory, in bytes."""
        index = 0 if self._ends is None else len(self._ends) * 8
        return len(self.content) + len(self.line_sets) * 4 + len(self.machine.content) + index

    @property
    def indexed(self) -> bool:
        return self._ends is not None

    @property
    def ends(self) -> array[int]:
        """For each line the offset after its "\\n"; computed at the first use."""
        if self._ends is None:
            self._ends = line_ends(self.content)
        return self._ends

    @property
    def total(self) -> int:
        return len(self.ends)

    def line(self, number: int) -> str:
        start = self.ends[number - 1] if number else 0
        return self.content[start : self.ends[number]].removesuffix("\n")

    def window(self, start: int, count: int) -> LineWindow:
        """At most `count` lines from `start`, with long constants elided; lines outside the text are left out."""
        first = min(max(0, start), self.total)
        last = min(first + max(0, count), self.total)
        numbers = [self._set_of(line) for line in range(first, last)]
        table: dict[tuple[str, bool], int] = {}
        nodes = tuple(
            tuple(table.setdefault(one, len(table)) for one in self._names_of_set(number)) for number in numbers
        )
        lines = tuple(elide(self.line(line)) for line in range(first, last))
        derived = tuple(place for place, (_, mark) in enumerate(table) if mark)
        names = tuple(name for name, _ in table)
        return LineWindow(first, lines, nodes, names, derived, self.machine.of_lines(first, last))

    def _names_of_set(self, number: int) -> list[tuple[str, bool]]:
        """Returns the names of a set, each with whether it is derived."""
        derived = self.derived.get(number, ())
        return [(name, name in derived) for name in self.sets[number]]

    def lines_of_node(self, node: str, limit: int) -> tuple[list[int], bool]:
        """Returns the first `limit` lines that come from `node`, and whether there are more."""
        found = list(islice(self.marked_lines(node), limit + 1))
        return [line for line, _ in found[:limit]], len(found) > limit

    def own_line(self, node: str) -> int:
        """The line that belongs most directly to `node` (a function comes from all its nodes), -1 if none does."""
        found, _ = self.lines_of_node(node, _NEAR)
        near = [line for line in found if line < found[0] + _NEAR]
        return min(
            near, key=lambda at: (len(self.sets[self._set_of(at)]), ".constant" in self.line(at), at), default=-1
        )

    def marked_lines(self, node: str) -> Iterator[tuple[int, bool]]:
        """Returns the lines that come from `node`, each with whether it is derived."""
        wanted = {k: node in self.derived.get(k, ()) for k, names in enumerate(self.sets) if node in names}
        if wanted:
            yield from ((line, wanted[k]) for line, k in enumerate(self.line_sets) if k in wanted)

    def nodes_of_lines(self, first: int, last: int) -> dict[str, tuple[int, int]]:
        """For each node that lines `first` to `last` come from, the numbers of own and of derived lines."""
        found: dict[str, tuple[int, int]] = {}
        for number, count in Counter(self.line_sets[max(first, 0) : last + 1]).items():
            for name, derived in self._names_of_set(number):
                own, other = found.get(name, (0, 0))
                found[name] = (own, other + count) if derived else (own + count, other)
        return found

    def chunks(self) -> Iterator[tuple[int, str]]:
        """Yields the text in runs of whole lines of a few megabytes, each with the number of its first line.

        Runs are short so that other threads can run between them.
        """
        position = number = 0
        for piece in _pieces(self.content):
            yield number, piece
            position += len(piece)
            number += piece.count("\n")

    def _set_of(self, line: int) -> int:
        return self.line_sets[line] if line < len(self.line_sets) else 0


def line_ends(content: str) -> array[int]:
    """For each line of `content` the offset after its "\\n", or after its last character for an unfinished line."""
    ends, start = array("Q"), 0
    for piece in _pieces(content):
        lengths = [len(line) + 1 for line in piece.split("\n")]
        lengths[-1] -= 1
        if lengths[-1] == 0:
            lengths.pop()
        ends.extend(array("Q", accumulate(lengths, initial=start))[1:])
        start += len(piece)
    return ends


def line_count(content: str) -> int:
    return content.count("\n") + (bool(content) and not content.endswith("\n"))


def elide(line: str) -> str:
    """`line` with long `dense<…>` constants shortened, and truncated if it is longer than any screen."""
    if len(line) <= MAX_CONSTANT:
        return line
    short = _CONSTANT.sub(_shorten, line)
    if len(short) <= MAX_LINE:
        return short
    return f"{short[:MAX_LINE]}… ({len(short) - MAX_LINE:,} more characters)"


def _shorten(match: re.Match[str]) -> str:
    value = match[0]
    return f"{value[:_KEPT]}… ({len(value) - _KEPT:,} more characters)"


def _pieces(content: str) -> Iterator[str]:
    """`content` cut after newlines into pieces of about `_CHUNK` characters."""
    start = 0
    while start < len(content):
        cut = content.find("\n", start + _CHUNK) + 1 or len(content)
        yield content[start:cut]
        start = cut


# Shorter types, such as `tensor<1x128x768xf32>`, are more readable than a name.
SHORTEST = 32
# A type that occurs only once gains nothing from a name.
LEAST_USES = 2
# More names would be indistinguishable; the most frequent types are kept.
MOST = 500
_BODY = rf"(?:{INSIDE}|<(?:{INSIDE}|<(?:{INSIDE}|<(?:{INSIDE})*>)*>)*>)*"
_TYPE = re.compile(rf"(?:\b(?:memref|tensor|vector|tuple|complex)|![A-Za-z_][\w.]*)<{_BODY}>")
_DEFINITION = re.compile(r"^[#!][\w$.\-]+ = .*", re.MULTILINE)


def long_types(text: IndexedText) -> list[LongType]:
    """Returns the types of at least `SHORTEST` characters that occur in `text` more than once, in order of appearance.

    Of nested types the outermost counts; lines that define an alias do not.
    """
    uses: dict[str, int] = {}
    first: dict[str, int] = {}
    for number, piece in text.chunks():
        # Alias definitions are blanked, not removed, so that line numbers stay valid.
        for match in _TYPE.finditer(_DEFINITION.sub("", piece)):
            found = match[0]
            if len(found) < SHORTEST:
                continue
            if found not in uses:
                first[found] = number + match.string.count("\n", 0, match.start())
            uses[found] = uses.get(found, 0) + 1
    repeated = sorted((name for name, count in uses.items() if count >= LEAST_USES), key=lambda name: -uses[name])
    kept = sorted(repeated[:MOST], key=lambda name: first[name])
    return [LongType(name, uses[name], first[name]) for name in kept]


class Origins(NamedTuple):
    """The numbers of ops, or bytes of machine code, with own nodes, with derived nodes only, and without nodes."""

    direct: int = 0
    derived: int = 0
    nowhere: int = 0


class StageText(msgspec.Struct, frozen=True):
    """`content` is the text without location marks; `line_sets[i]` indexes `sets` for line `i` (0: no node).

    `sets[k]` are stable node names; `sets[0]` is empty. `derived[k]` are the names in it that were derived because a
    pass had dropped the op's own location. `machine[i]` is the machine code of line `i`, at most 255 bytes.
    """

    content: str
    line_sets: tuple[int, ...] = ()
    sets: tuple[tuple[str, ...], ...] = ((),)
    derived: dict[int, tuple[str, ...]] = {}
    origins: Origins = Origins()
    machine: tuple[bytes, ...] = ()
