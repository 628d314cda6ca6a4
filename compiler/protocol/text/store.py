"""The texts of the stages, each stored once under a hash of its content, and search in them."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from buddy.compiler.protocol.text.lines import IndexedText
from buddy.compiler.protocol.texts import compile_pattern

# The lines found in a text, and whether there are more.
Found = tuple[list[int], bool]
Finder = Callable[[str], Iterable[int]]

# Printable characters, `\d`, `\w`, `\S`, `\b` and escaped punctuation; no `[^`, no `(?` but `(?:`, no `*+`.
_TAME = re.compile(r"(?!.*(?:\[\^|\(\?(?!:)|[*+?}]\+))(?:[ -\[\]-~]|\\[dwSb]|\\[^\w\s])*")


def search(
    text: IndexedText, pattern: str, *, regex: bool = False, ignore_case: bool = False, limit: int = 10_000
) -> Found:
    """Returns the numbers of the first `limit` lines that match `pattern`, and whether there are more.

    Raises `PatternError` for an invalid regular expression.
    """
    hits = _hits(text, _finder(pattern, regex, ignore_case)) if pattern else iter(())
    found = list(islice(hits, limit + 1))
    return found[:limit], len(found) > limit


def search_each(
    contents: Sequence[str], pattern: str, *, regex: bool = False, ignore_case: bool = False, limit: int = 10_000
) -> list[Found]:
    """Returns the result of `search` for each text; equal texts are searched once."""
    found: dict[str, Found] = {}
    for content in contents:
        if content not in found:
            text = IndexedText(content)
            found[content] = search(text, pattern, regex=regex, ignore_case=ignore_case, limit=limit)
    return [found[content] for content in contents]


def is_literal(pattern: str) -> bool:
    """Returns whether a regular expression matches only its own characters."""
    return re.escape(pattern) == pattern


def keeps_to_lines(pattern: str) -> bool:
    """Returns whether a regular expression matches the same in a text as in each of its lines alone.

    True only if it can neither match a line's end nor look past it: no negated class, no look-around, no flag, no
    escape that matches a newline or an end of the text, and no possessive or atomic construct.
    """
    return bool(_TAME.fullmatch(pattern))


def check(pattern: str) -> None:
    """Raises `PatternError` unless `pattern` is a valid regular expression."""
    compile_pattern(pattern, False)


def _hits(text: IndexedText, lines_in: Finder) -> Iterator[int]:
    for first, piece in text.chunks():
        for number in lines_in(piece):
            yield first + number


def _finder(pattern: str, regex: bool, ignore_case: bool) -> Finder:
    """Returns a function that finds the lines of a piece of text that match the pattern, by number."""
    if regex:
        found = compile_pattern(pattern, ignore_case)
        lines = re.compile(pattern, found.flags | re.MULTILINE)
        return _by_piece(lines) if keeps_to_lines(pattern) else _by_line(found)
    if not ignore_case:
        return lambda piece: _with_text(piece, pattern)
    relaxed = _by_line(compile_pattern(re.escape(pattern), ignore_case))
    # Beyond ASCII, lower case does not map single characters to single characters.
    return lambda piece: (
        _with_text(piece.lower(), pattern.lower()) if piece.isascii() and pattern.isascii() else relaxed(piece)
    )


def _with_text(piece: str, pattern: str) -> Iterator[int]:
    number = start = 0
    place = piece.find(pattern) if "\n" not in pattern else -1
    while place >= 0:
        number += piece.count("\n", start, place)
        yield number
        start = piece.find("\n", place) + 1
        number += 1
        place = piece.find(pattern, start) if start else -1


def _by_piece(pattern: re.Pattern[str]) -> Finder:
    """For a pattern that stays within lines, and begins lines anywhere (`MULTILINE`): one search covers many lines."""

    def lines(piece: str) -> Iterator[int]:
        number = start = 0
        piece = piece.removesuffix("\n")
        while (found := pattern.search(piece, start)) is not None:
            number += piece.count("\n", start, found.start())
            yield number
            start = piece.find("\n", found.start()) + 1
            number += 1
            if not start:
                return

    return lines


def _by_line(pattern: re.Pattern[str]) -> Finder:
    matches = pattern.search
    return lambda piece: (number for number, line in enumerate(piece.removesuffix("\n").split("\n")) if matches(line))


DEFAULT_LIMIT = 1 << 30


def text_name(
    content: str, line_sets: bytes, sets: tuple[tuple[str, ...], ...],
    derived: Mapping[int, tuple[str, ...]] | None = None, machine: bytes = b"",
) -> str:  # fmt: skip
    """Returns the name of a text: equal for equal contents and machine code that come from equal nodes."""
    state = hashlib.sha256(content.encode("utf-8", "surrogatepass"))
    state.update(line_sets)
    state.update("\0".join("\1".join(names) for names in sets).encode())
    state.update("\0".join(f"{number}\1" + "\1".join(names) for number, names in (derived or {}).items()).encode())
    state.update(machine)
    return state.hexdigest()[:24]


class TextStore:
    """Texts by name. Pinned texts stay; the others are evicted, least recently used first, beyond `limit` bytes."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._texts: OrderedDict[str, IndexedText] = OrderedDict()
        self._pins: dict[Hashable, frozenset[str]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._texts

    def names(self) -> tuple[str, ...]:
        return tuple(self._texts)

    @property
    def size(self) -> int:
        """The size of all texts in bytes."""
        return sum(text.size for text in self._texts.values())

    def put(self, name: str, text: IndexedText) -> None:
        if name not in self._texts:
            self._texts[name] = text
        self._texts.move_to_end(name)
        self._evict(spare=name)

    def get(self, name: str) -> IndexedText | None:
        text = self._texts.get(name)
        if text is not None:
            self._texts.move_to_end(name)
        return text

    def drop(self, name: str) -> None:
        """Removes a text, unless it is pinned."""
        if not any(name in pinned for pinned in self._pins.values()):
            self._texts.pop(name, None)

    def pin(self, owner: Hashable, names: Iterable[str]) -> None:
        """Keeps the texts `names` for `owner`, instead of those pinned for it before."""
        self._pins[owner] = frozenset(names)
        self._evict()

    def unpin(self, owner: Hashable) -> None:
        self._pins.pop(owner, None)
        self._evict()

    def _evict(self, spare: str = "") -> None:
        size = self.size
        if size <= self._limit:
            return
        pinned = frozenset({spare}).union(*self._pins.values())
        for name in [name for name in self._texts if name not in pinned]:
            if size <= self._limit:
                return
            size -= self._texts.pop(name).size
