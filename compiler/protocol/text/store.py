"""The texts of the stages, each stored once under a hash of its content, and search in them."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.text.lines import IndexedText

# The numbers of the first matching lines, and whether there are more.
SearchHits = tuple[list[int], bool]
# Returns the numbers of the matching lines in a piece of text, counted from 0.
LineFinder = Callable[[str], Iterable[int]]

# The patterns for which `stays_within_lines` is true consist of printable characters, `\d`, `\w`, `\S`, `\b` and
# escaped punctuation, without `[^`, `(?` other than `(?:`, and `*+`.
_STAYS_WITHIN_LINES = re.compile(r"(?!.*(?:\[\^|\(\?(?!:)|[*+?}]\+))(?:[ -\[\]-~]|\\[dwSb]|\\[^\w\s])*")

# Maximum number of characters of an invalid pattern in a message.
_MAX_PATTERN_CHARACTERS = 200


class PatternError(BuddyError, ValueError):
    """An invalid regular expression. `reason` says what is wrong and where; the error's text adds the pattern."""

    def __init__(self, reason: str, pattern: str) -> None:
        is_short = len(pattern) <= _MAX_PATTERN_CHARACTERS
        excerpt = repr(pattern) if is_short else f"{pattern[:_MAX_PATTERN_CHARACTERS]!r}..."
        super().__init__(f"{reason} in the pattern {excerpt}")
        self.reason = reason


def compile_pattern(pattern: str, ignore_case: bool) -> re.Pattern[str]:
    """Compiles a regular expression. Raises `PatternError`, also for one that exceeds the limits of `re`."""
    try:
        with warnings.catch_warnings():
            # The user cannot do anything about changes in a future Python.
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        where = f" at position {error.pos}" if error.pos is not None else ""
        raise PatternError(f"{error.msg}{where}", pattern) from error
    except OverflowError as error:
        raise PatternError(str(error), pattern) from error
    except RecursionError as error:
        raise PatternError("parentheses too deep", pattern) from error


def search(
    text: IndexedText, pattern: str, *, regex: bool = False, ignore_case: bool = False, limit: int = 10_000
) -> SearchHits:
    """Returns the numbers of the first `limit` lines that match `pattern`, and whether there are more.

    Raises `PatternError` for an invalid regular expression.
    """
    matches = _matching_lines(text, _make_finder(pattern, regex, ignore_case)) if pattern else iter(())
    lines = list(islice(matches, limit + 1))
    return lines[:limit], len(lines) > limit


def search_each(
    contents: Sequence[str], pattern: str, *, regex: bool = False, ignore_case: bool = False, limit: int = 10_000
) -> list[SearchHits]:
    """Returns the result of `search` for each text; equal texts are searched once."""
    results: dict[str, SearchHits] = {}
    for content in contents:
        if content not in results:
            text = IndexedText(content)
            results[content] = search(text, pattern, regex=regex, ignore_case=ignore_case, limit=limit)
    return [results[content] for content in contents]


def is_literal(pattern: str) -> bool:
    """Returns whether a regular expression matches only its own characters."""
    return re.escape(pattern) == pattern


def stays_within_lines(pattern: str) -> bool:
    """Returns whether a regular expression certainly has the same matches in a whole text as in each of its lines.

    Such an expression neither matches a line's end nor looks past it: it has no negated class, look-around or flag, no
    escape that matches a newline or the end of the text, and no possessive or atomic construct.
    """
    return bool(_STAYS_WITHIN_LINES.fullmatch(pattern))


def check_pattern(pattern: str) -> None:
    """Raises `PatternError` unless `pattern` is a valid regular expression."""
    compile_pattern(pattern, False)


def _matching_lines(text: IndexedText, find_lines: LineFinder) -> Iterator[int]:
    """Yields the numbers of the lines that `find_lines` finds, piece by piece."""
    for first, piece in text.chunks():
        for number in find_lines(piece):
            yield first + number


def _make_finder(pattern: str, regex: bool, ignore_case: bool) -> LineFinder:
    """Returns the fastest line finder for a pattern."""
    if regex:
        line_pattern = compile_pattern(pattern, ignore_case)
        piece_pattern = re.compile(pattern, line_pattern.flags | re.MULTILINE)
        return _search_whole_piece(piece_pattern) if stays_within_lines(pattern) else _search_line_by_line(line_pattern)
    if not ignore_case:
        return lambda piece: _lines_with_text(piece, pattern)
    find_non_ascii = _search_line_by_line(compile_pattern(re.escape(pattern), ignore_case))
    # Beyond ASCII, lower case does not map single characters to single characters.
    return lambda piece: (
        _lines_with_text(piece.lower(), pattern.lower())
        if piece.isascii() and pattern.isascii()
        else find_non_ascii(piece)
    )


def _lines_with_text(piece: str, pattern: str) -> Iterator[int]:
    """Yields the numbers of the lines of `piece` that contain the text `pattern`."""
    number = start = 0
    position = piece.find(pattern) if "\n" not in pattern else -1
    while position >= 0:
        number += piece.count("\n", start, position)
        yield number
        start = piece.find("\n", position) + 1
        number += 1
        position = piece.find(pattern, start) if start else -1


def _search_whole_piece(pattern: re.Pattern[str]) -> LineFinder:
    """Returns a finder that searches many lines at once, for a `MULTILINE` pattern that stays within lines."""

    def find_lines(piece: str) -> Iterator[int]:
        number = start = 0
        piece = piece.removesuffix("\n")
        while (match := pattern.search(piece, start)) is not None:
            number += piece.count("\n", start, match.start())
            yield number
            start = piece.find("\n", match.start()) + 1
            number += 1
            if not start:
                return

    return find_lines


def _search_line_by_line(pattern: re.Pattern[str]) -> LineFinder:
    """Returns a finder that matches each line alone, for any pattern."""
    matches = pattern.search
    return lambda piece: (number for number, line in enumerate(piece.removesuffix("\n").split("\n")) if matches(line))


_DEFAULT_LIMIT = 1 << 30  # bytes


def text_name(
    content: str, line_sets: bytes, sets: tuple[tuple[str, ...], ...],
    derived: Mapping[int, tuple[str, ...]] | None = None, machine: bytes = b"",
) -> str:  # fmt: skip
    """Returns the name of a text. Texts with equal content, nodes of lines and machine code have the same name.

    The arguments are the fields of `IndexedText`; `line_sets` are the bytes of its array.
    """
    hasher = hashlib.sha256(content.encode("utf-8", "surrogatepass"))
    hasher.update(line_sets)
    hasher.update("\0".join("\1".join(names) for names in sets).encode())
    hasher.update("\0".join(f"{number}\1" + "\1".join(names) for number, names in (derived or {}).items()).encode())
    hasher.update(machine)
    return hasher.hexdigest()[:24]


class TextReader(Protocol):
    """Reads texts from files, by name; `None` for an unknown name. Called in threads too."""

    def read(self, name: str) -> IndexedText | None: ...

    def content(self, name: str) -> str | None: ...


class TextStore:
    """Texts by name. Pinned texts stay; the others are evicted, least recently used first, beyond `limit` bytes."""

    def __init__(self, limit: int = _DEFAULT_LIMIT) -> None:
        self.limit = limit
        self._readers: dict[str, TextReader] = {}
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
        """Stores a text, unless a text with this name is stored already. May evict other texts."""
        if name not in self._texts:
            self._texts[name] = text
        self._texts.move_to_end(name)
        self._evict(spare=name)

    def add_reader(self, prefix: str, reader: TextReader) -> None:
        """Adds a reader of the texts whose names start with `prefix`, which ends with its only "-"."""
        self._readers[prefix] = reader

    def get(self, name: str) -> IndexedText | None:
        """Returns a text, which is read and stored if it is not stored yet; `None` if it is unknown."""
        text = self._texts.get(name)
        if text is not None:
            self._texts.move_to_end(name)
        elif (reader := self._reader_of(name)) is not None and (text := reader.read(name)) is not None:
            self.put(name, text)
        return text

    def content(self, name: str) -> str | None:
        """Returns the content of a text, `None` if it is unknown. A text that is read for this is not stored."""
        if name in self._texts:
            return self._texts[name].content
        reader = self._reader_of(name)
        return reader.content(name) if reader is not None else None

    def _reader_of(self, name: str) -> TextReader | None:
        """Returns the reader of the texts with the prefix of `name`."""
        return self._readers.get(name[: name.find("-") + 1])

    def drop(self, name: str) -> None:
        """Removes a text, unless it is pinned."""
        if not any(name in pinned for pinned in self._pins.values()):
            self._texts.pop(name, None)

    def pin(self, owner: Hashable, names: Iterable[str]) -> None:
        """Pins the texts `names` for `owner`, and unpins the texts that were pinned for `owner` before."""
        self._pins[owner] = frozenset(names)
        self._evict()

    def unpin(self, owner: Hashable) -> None:
        """Unpins the texts that were pinned for `owner`."""
        self._pins.pop(owner, None)
        self._evict()

    def _evict(self, spare: str = "") -> None:
        """Removes texts until the limit holds, but no pinned text and not the text `spare`."""
        size = self.size
        if size <= self.limit:
            return
        pinned = frozenset({spare}).union(*self._pins.values())
        for name in [name for name in self._texts if name not in pinned]:
            if size <= self.limit:
                return
            size -= self._texts.pop(name).size
