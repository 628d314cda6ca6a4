"""The text of one stage: an index of its lines, the nodes that lines come from, jumps of assembly, and long types."""

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

# The pattern of one character between the angle brackets of a type, or of an arrow `->`, whose `>` closes no bracket.
# Each text matches in only one way: if there were two, matching a line of arrows would take cubic time or worse.
INSIDE = r"[^<>\n-]|->|-(?!>)"
# In assembly: a local label, and a jump to one, after the address and the mnemonic.
_LABEL = re.compile(r"^(\.L\w+):")
_JUMP = re.compile(r"^\s+[0-9a-f]+\s+\S+\s+(?:.*\s)?(\.L\w+)\s*(?:#.*)?$")


def jumps(lines: Sequence[str], first: int = 0) -> list[tuple[int, int]]:
    """Returns the line number of each jump with that of its target label, in order. Numbers `lines` from `first`."""
    labels = {match[1]: number for number, line in enumerate(lines, first) if (match := _LABEL.match(line))}
    matches = ((number, _JUMP.match(line)) for number, line in enumerate(lines, first))
    return [(number, labels[match[1]]) for number, match in matches if match and match[1] in labels]


# A longer `dense<…>` constant is shortened to its first `_CONSTANT_PREFIX_CHARACTERS`. A line that is then longer than
# `MAX_LINE_CHARACTERS` is truncated.
MAX_CONSTANT_CHARACTERS = 200
_CONSTANT_PREFIX_CHARACTERS = 32
MAX_LINE_CHARACTERS = 4000
# The number of lines, from the first one of a node on, in which its own line is searched.
_OWN_LINE_WINDOW = 2000
# The size of the chunks in which a text is indexed and searched.
_CHUNK_CHARACTERS = 4 << 20
_CONSTANT = re.compile(rf"(?<=dense<)[^>]{{{MAX_CONSTANT_CHARACTERS + 1},}}(?=>)")


@dataclass(frozen=True)
class LineWindow:
    """Lines `start`… of a text; `nodes[i]` are indices into `names`, the nodes that line `start + i` comes from.

    An index in `derived` stands for a node that was derived for the line, because a pass had dropped the location of
    its op; any other index for a node that the op itself names. The name of a node may therefore occur twice.
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

    def hex_of_lines(self, first: int, last: int) -> tuple[str, ...]:
        """Returns the machine code of lines `first` to `last - 1` in hexadecimal digits; () if the text has none."""
        if not self.sizes:
            return ()
        if self._ends is None:
            self._ends = array("Q", accumulate(self.sizes))
        ends = self._ends
        starts = [ends[line] - self.sizes[line] for line in range(first, last)]
        return tuple(self.content[start : ends[line]].hex(" ") for line, start in enumerate(starts, first))


@dataclass
class IndexedText:
    """A text, and for each line the set of nodes that it comes from.

    `line_sets` has an index into `sets` for each line; lines beyond its end have index 0, the empty set. `derived[k]`
    are the names in `sets[k]` that were derived (see `StageText`). Lines are numbered from 0 and end at "\\n" alone.
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
        index_size = 0 if self._ends is None else len(self._ends) * 8
        return len(self.content) + len(self.line_sets) * 4 + len(self.machine.content) + index_size

    @property
    def is_indexed(self) -> bool:
        return self._ends is not None

    @property
    def ends(self) -> array[int]:
        """The offset after the "\\n" of each line; computed at the first use."""
        if self._ends is None:
            self._ends = line_ends(self.content)
        return self._ends

    @property
    def line_count(self) -> int:
        return len(self.ends)

    def line(self, number: int) -> str:
        """Returns a line, without its "\\n"."""
        start = self.ends[number - 1] if number else 0
        return self.content[start : self.ends[number]].removesuffix("\n")

    def window(self, start: int, count: int) -> LineWindow:
        """Returns at most `count` lines from `start` on, with long constants shortened."""
        first = min(max(0, start), self.line_count)
        last = min(first + max(0, count), self.line_count)
        set_numbers = [self._set_number(line) for line in range(first, last)]
        # The index of each (name, is derived) in the result, in the order of first appearance.
        index_of_name: dict[tuple[str, bool], int] = {}
        nodes = tuple(
            tuple(index_of_name.setdefault(name, len(index_of_name)) for name in self._names_of_set(number))
            for number in set_numbers
        )
        lines = tuple(elide(self.line(line)) for line in range(first, last))
        derived = tuple(index for index, (_, is_derived) in enumerate(index_of_name) if is_derived)
        names = tuple(name for name, _ in index_of_name)
        return LineWindow(first, lines, nodes, names, derived, self.machine.hex_of_lines(first, last))

    def _names_of_set(self, number: int) -> list[tuple[str, bool]]:
        """Returns the names of a set, each with whether it is derived."""
        derived = self.derived.get(number, ())
        return [(name, name in derived) for name in self.sets[number]]

    def lines_of_node(self, node: str, limit: int) -> tuple[list[int], bool]:
        """Returns the first `limit` lines that come from `node`, and whether there are more."""
        lines = list(islice(self.lines_from_node(node), limit + 1))
        return [line for line, _ in lines[:limit]], len(lines) > limit

    def own_line(self, node: str) -> int:
        """Returns the line that comes from `node` and the fewest other nodes; -1 if no line comes from `node`.

        Of several such lines, returns the first one without a constant, if any. A line that comes from many nodes, such
        as the first line of a function, does not represent one of them.
        """
        lines, _ = self.lines_of_node(node, _OWN_LINE_WINDOW)
        candidates = [line for line in lines if line < lines[0] + _OWN_LINE_WINDOW]
        return min(
            candidates,
            key=lambda line: (len(self.sets[self._set_number(line)]), ".constant" in self.line(line), line),
            default=-1,
        )

    def lines_from_node(self, node: str) -> Iterator[tuple[int, bool]]:
        """Yields the lines that come from `node`, each with whether the node was derived for the line."""
        # The numbers of the sets that contain the node, each with whether the node was derived there.
        is_derived = {
            number: node in self.derived.get(number, ()) for number, names in enumerate(self.sets) if node in names
        }
        if is_derived:
            yield from (
                (line, is_derived[number]) for line, number in enumerate(self.line_sets) if number in is_derived
            )

    def nodes_of_lines(self, first: int, last: int) -> dict[str, tuple[int, int]]:
        """Returns the nodes that lines `first` to `last` come from, with the numbers of direct and of derived lines."""
        counts: dict[str, tuple[int, int]] = {}
        for number, count in Counter(self.line_sets[max(first, 0) : last + 1]).items():
            for name, is_derived in self._names_of_set(number):
                direct, derived = counts.get(name, (0, 0))
                counts[name] = (direct, derived + count) if is_derived else (direct + count, derived)
        return counts

    def chunks(self) -> Iterator[tuple[int, str]]:
        """Yields chunks of whole lines, of a few megabytes each, with the number of the first line.

        Chunks are short so that other threads can run between them.
        """
        number = 0
        for chunk in _split_chunks(self.content):
            yield number, chunk
            number += chunk.count("\n")

    def _set_number(self, line: int) -> int:
        """Returns the number of the set of nodes that a line comes from."""
        return self.line_sets[line] if line < len(self.line_sets) else 0


def line_ends(content: str) -> array[int]:
    """Returns the offset after the "\\n" of each line of `content`; for an unfinished last line, the text's length."""
    ends, start = array("Q"), 0
    for chunk in _split_chunks(content):
        lengths = [len(line) + 1 for line in chunk.split("\n")]
        lengths[-1] -= 1
        if lengths[-1] == 0:
            lengths.pop()
        ends.extend(array("Q", accumulate(lengths, initial=start))[1:])
        start += len(chunk)
    return ends


def line_count(content: str) -> int:
    """Returns the number of lines of a text; an unfinished last line counts."""
    return content.count("\n") + (bool(content) and not content.endswith("\n"))


def elide(line: str) -> str:
    """Returns `line` with long `dense<…>` constants shortened, and truncated if it is longer than any screen."""
    if len(line) <= MAX_CONSTANT_CHARACTERS:
        return line
    short = _CONSTANT.sub(_shorten, line)
    if len(short) <= MAX_LINE_CHARACTERS:
        return short
    return f"{short[:MAX_LINE_CHARACTERS]}… ({len(short) - MAX_LINE_CHARACTERS:,} more characters)"


def _shorten(match: re.Match[str]) -> str:
    """Returns the start of a long constant, and how much is left out."""
    value = match[0]
    return f"{value[:_CONSTANT_PREFIX_CHARACTERS]}… ({len(value) - _CONSTANT_PREFIX_CHARACTERS:,} more characters)"


def _split_chunks(content: str) -> Iterator[str]:
    """Yields `content` in chunks of about `_CHUNK_CHARACTERS` characters, each of which ends after a newline."""
    start = 0
    while start < len(content):
        cut = content.find("\n", start + _CHUNK_CHARACTERS) + 1 or len(content)
        yield content[start:cut]
        start = cut


# The workbench can print a short name instead of a long type. Types shorter than this minimum, such as
# `tensor<1x128x768xf32>`, are more readable than a name.
_MIN_TYPE_CHARACTERS = 32
# A type that occurs only once gains nothing from a name.
_MIN_USES = 2
# The maximum number of types that get names: a reader cannot distinguish more. The most frequent types get them.
MAX_TYPES = 500
_TYPE_PARAMETERS = rf"(?:{INSIDE}|<(?:{INSIDE}|<(?:{INSIDE}|<(?:{INSIDE})*>)*>)*>)*"
_TYPE = re.compile(rf"(?:\b(?:memref|tensor|vector|tuple|complex)|![A-Za-z_][\w.]*)<{_TYPE_PARAMETERS}>")
_ALIAS_DEFINITION = re.compile(r"^[#!][\w$.\-]+ = .*", re.MULTILINE)


def long_types(indexed_text: IndexedText) -> list[LongType]:
    """Returns the long types that occur in a text more than once, in order of appearance.

    A type inside a long type is not counted, nor are types in lines that define an alias.
    """
    uses: dict[str, int] = {}
    first_line: dict[str, int] = {}
    for chunk_start, chunk in indexed_text.chunks():
        # Alias definitions are blanked, not removed, so that line numbers stay valid.
        for match in _TYPE.finditer(_ALIAS_DEFINITION.sub("", chunk)):
            long_type = match[0]
            if len(long_type) < _MIN_TYPE_CHARACTERS:
                continue
            if long_type not in uses:
                first_line[long_type] = chunk_start + match.string.count("\n", 0, match.start())
            uses[long_type] = uses.get(long_type, 0) + 1
    by_uses = sorted((text for text, count in uses.items() if count >= _MIN_USES), key=lambda text: -uses[text])
    in_text_order = sorted(by_uses[:MAX_TYPES], key=lambda text: first_line[text])
    return [LongType(text, uses[text], first_line[text]) for text in in_text_order]


class Origins(NamedTuple):
    """The numbers of ops (or bytes of machine code) that name nodes, have only derived nodes, or have no nodes."""

    direct: int = 0
    derived: int = 0
    unmapped: int = 0


class StageText(msgspec.Struct, frozen=True):
    """The text of a stage without location marks (`content`), and the nodes that its lines come from.

    Line `i` comes from the nodes with the stable names `sets[line_sets[i]]`; `sets[0]` is empty. `derived[k]` are the
    names in `sets[k]` that were derived, because a pass had dropped the op's own location. `machine[i]` is the machine
    code of line `i`, at most 255 bytes.
    """

    content: str
    line_sets: tuple[int, ...] = ()
    sets: tuple[tuple[str, ...], ...] = ((),)
    derived: dict[int, tuple[str, ...]] = {}
    origins: Origins = Origins()
    machine: tuple[bytes, ...] = ()
