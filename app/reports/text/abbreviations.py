"""Abbreviates lines of IR: long types get names, and elided constants can be filled in again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from buddy.app.session.line_cache import AnnotatedLine
from buddy.app.session.state import MAX_CACHED_TEXTS, keep_newest
from buddy.compiler.protocol import LongType
from buddy.compiler.protocol.text.lines import INSIDE

# The minimum number of characters between the brackets of a type that is abbreviated.
MIN_ABBREVIATED = 16
# The parameters of a type or attribute, in brackets that may be nested three deep.
_PARAMETERS = re.compile(
    r"(?P<head>\b(?:strided|affine_map|affine_set|array|dense|distinct|spirv\.\w+)|!llvm\.struct|#[\w.]+)"
    rf"<(?:{INSIDE}|<(?:{INSIDE}|<(?:{INSIDE})*>)*>){{{MIN_ABBREVIATED},}}>"
)
# A long attribute dictionary.
_DICTIONARY = re.compile(rf"\{{[^{{}}\n]{{{2 * MIN_ABBREVIATED},}}\}}")


def abbreviate_types(line: str, ellipsis: str) -> str:
    """Replaces the content of layouts, struct types, inline maps and attribute dictionaries by `ellipsis`."""
    if line[:1] in "#!":
        # The definition of an alias stays in full.
        return line
    short = _PARAMETERS.sub(lambda match: f"{match['head']}<{ellipsis}>", line)
    return _DICTIONARY.sub(lambda match: f"{{{ellipsis}}}", short)


class TypeNames:
    """Gives names such as `!T1` to long types. A type has the same name in all texts.

    Texts are identified by the hash of their content.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        # The long types of each text.
        self._types: dict[str, tuple[LongType, ...]] = {}
        self._shown_texts: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None

    def has_types_of(self, text_hash: str) -> bool:
        """Whether the types of a text were added."""
        return text_hash in self._types

    def add(self, text_hash: str, types: Sequence[LongType]) -> None:
        """Adds the types of a text, and gives names to those that have none."""
        self._types[text_hash] = tuple(types)
        keep_newest(self._types, MAX_CACHED_TEXTS)
        for long_type in types:
            self._names.setdefault(long_type.text, f"!T{len(self._names) + 1}")

    def show(self, *text_hashes: str) -> bool:
        """Sets the texts whose types are replaced by names. Returns whether the set of texts has changed."""
        shown = tuple(text_hash for text_hash in text_hashes if text_hash in self._types)
        if shown == self._shown_texts:
            return False
        types = {long_type.text for text_hash in shown for long_type in self._types[text_hash]}
        # The longest types first: otherwise a type that is a prefix of another one would match in its place.
        ordered = sorted(types, key=len, reverse=True)
        self._shown_texts = shown
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        return True

    def types_of(self, text_hash: str) -> list[tuple[str, LongType]]:
        """Returns the types of a text with their names, in text order."""
        return [(self._names[long_type.text], long_type) for long_type in self._types.get(text_hash, ())]

    def types_on(self, line: str) -> dict[str, str]:
        """Maps the names that replace the types on `line`, in line order, to the types."""
        if self._pattern is None or line[:1] in "#!":
            return {}
        return {self._names[long_type]: long_type for long_type in self._pattern.findall(line)}

    def abbreviate(self, line: str) -> str:
        """Replaces the long types on `line` by their names."""
        if self._pattern is None or line[:1] in "#!":
            # The definition of an alias stays in full.
            return line
        return self._pattern.sub(lambda match: self._names[match[0]], line)


# The maximum number of characters of a constant that are expanded at a time, so that lexing and wrapping stay fast.
MAX_EXPANDED = 16_000
# The text of a gap, which the engine puts in the place of the elided characters.
_GAP = re.compile(r"… \(([\d,]+) more characters\)")


class ConstantGap(NamedTuple):
    """An elided part of a line: the `missing` characters of the full line from `start` on.

    With `at_end`, the gap is the end of a truncated line, and `missing` counts the constants in the gap as elided.
    """

    start: int
    missing: int
    at_end: bool = False


def find_gaps(line: str) -> list[ConstantGap]:
    """Returns the gaps of a line, in order."""
    gaps: list[ConstantGap] = []
    # The difference between an offset in the full line and in `line`.
    shift = 0
    for match in _GAP.finditer(line):
        count = int(match[1].replace(",", ""))
        gaps.append(ConstantGap(match.start() + shift, count, match.end() == len(line)))
        shift += count - len(match[0])
    return gaps


class Expansions:
    """The gaps that the user has filled, and the lines that the user has shown without abbreviations.

    A line is identified by the hash of its text and its number, from 0.
    """

    def __init__(self) -> None:
        # By text and line: the content of each filled gap, by its index.
        self._filled: dict[tuple[str, int], dict[int, str]] = {}
        self._full: set[tuple[str, int]] = set()

    def clear(self) -> None:
        """Elides and abbreviates all lines again."""
        self._filled.clear()
        self._full.clear()

    def show_full(self, text_hash: str, number: int) -> None:
        """Shows a line without abbreviations, until `collapse`."""
        self._full.add((text_hash, number))

    def next_gap(self, text_hash: str, number: int, line: str) -> tuple[int, ConstantGap] | None:
        """Returns the index of the first gap of a line that is not filled, and the gap."""
        filled = self._filled.get((text_hash, number), {})
        return next(((index, gap) for index, gap in enumerate(find_gaps(line)) if index not in filled), None)

    def fill(self, text_hash: str, number: int, index: int, content: str, missing: int) -> None:
        """Fills gap `index` with `content`, followed by a note that `missing` characters are still missing."""
        note = f"… ({missing:,} more characters)" if missing > 0 else ""
        self._filled.setdefault((text_hash, number), {})[index] = content + note

    def collapse(self, text_hash: str, number: int) -> bool:
        """Restores the elided and abbreviated form of a line. Returns whether the line had another form."""
        was_full = (text_hash, number) in self._full
        self._full.discard((text_hash, number))
        return self._filled.pop((text_hash, number), None) is not None or was_full

    def apply(self, text_hash: str, number: int, line: AnnotatedLine | None) -> AnnotatedLine | None:
        """Returns the line with its filled gaps, marked as full if it is shown without abbreviations."""
        if line is not None and (text_hash, number) in self._full:
            line = replace(line, is_full=True)
        filled = self._filled.get((text_hash, number))
        if not filled or line is None:
            return line
        parts, start = [], 0
        for index, match in enumerate(_GAP.finditer(line.text)):
            parts += [line.text[start : match.start()], filled.get(index, match[0])]
            start = match.end()
        return replace(line, text="".join([*parts, line.text[start:]]))
