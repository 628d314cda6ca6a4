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
_PARAMETERS = re.compile(
    r"(?P<head>\b(?:strided|affine_map|affine_set|array|dense|distinct|spirv\.\w+)|!llvm\.struct|#[\w.]+)"
    rf"<(?:{INSIDE}|<(?:{INSIDE}|<(?:{INSIDE})*>)*>){{{MIN_ABBREVIATED},}}>"
)
_DICTIONARY = re.compile(rf"\{{[^{{}}\n]{{{2 * MIN_ABBREVIATED},}}\}}")


def abbreviate_types(line: str, ellipsis: str) -> str:
    """Replaces the content of layouts, struct types, inline maps and attribute dictionaries by `ellipsis`."""
    if line[:1] in "#!":
        # The definition of an alias stays in full.
        return line
    short = _PARAMETERS.sub(lambda match: f"{match['head']}<{ellipsis}>", line)
    return _DICTIONARY.sub(lambda match: f"{{{ellipsis}}}", short)


class TypeNames:
    """Names such as `!T1` for long types. A type has the same name in all texts."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        # The long types of each text.
        self._types: dict[str, tuple[LongType, ...]] = {}
        self._shown_texts: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None

    def has_types_of(self, text: str) -> bool:
        """Whether the types of a text were added."""
        return text in self._types

    def add(self, text: str, types: Sequence[LongType]) -> None:
        """Add the types of a text, and give names to those that have none."""
        self._types[text] = tuple(types)
        keep_newest(self._types, MAX_CACHED_TEXTS)
        for long_type in types:
            self._names.setdefault(long_type.text, f"!T{len(self._names) + 1}")

    def show(self, *texts: str) -> bool:
        """Set the texts whose types are replaced by names. Returns whether they have changed."""
        shown = tuple(text for text in texts if text in self._types)
        if shown == self._shown_texts:
            return False
        types = {long_type.text for text in shown for long_type in self._types[text]}
        # The longest types first: otherwise a type that is a prefix of another one would match in its place.
        ordered = sorted(types, key=len, reverse=True)
        self._shown_texts = shown
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        return True

    def types_of(self, text: str) -> list[tuple[str, LongType]]:
        """The types of a text with their names, in text order."""
        return [(self._names[long_type.text], long_type) for long_type in self._types.get(text, ())]

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
_GAP = re.compile(r"… \(([\d,]+) more characters\)")


class ConstantGap(NamedTuple):
    """An elided part of a line: the `missing` characters of the full line from `start` on.

    With `at_end`, it is the end of a truncated line. Then `missing` counts the constants in it as elided.
    """

    start: int
    missing: int
    at_end: bool = False


def find_gaps(line: str) -> list[ConstantGap]:
    """The gaps of a line, in order."""
    gaps: list[ConstantGap] = []
    # The difference between an offset in the full line and in `line`.
    shift = 0
    for match in _GAP.finditer(line):
        count = int(match[1].replace(",", ""))
        gaps.append(ConstantGap(match.start() + shift, count, match.end() == len(line)))
        shift += count - len(match[0])
    return gaps


class Expansions:
    """The contents of the gaps that the user has filled, and the lines that are shown without abbreviations."""

    def __init__(self) -> None:
        # By text and line: the content of each filled gap, by its index.
        self._filled: dict[tuple[str, int], dict[int, str]] = {}
        self._full: set[tuple[str, int]] = set()

    def clear(self) -> None:
        self._filled.clear()
        self._full.clear()

    def show_full(self, text: str, number: int) -> None:
        """Show a line without abbreviations, until `collapse`."""
        self._full.add((text, number))

    def next_gap(self, text: str, number: int, line: str) -> tuple[int, ConstantGap] | None:
        """The index of the first gap of a line that is not filled, and the gap."""
        filled = self._filled.get((text, number), {})
        return next(((index, gap) for index, gap in enumerate(find_gaps(line)) if index not in filled), None)

    def fill(self, text: str, number: int, index: int, content: str, rest: int) -> None:
        """Fill gap `index` with `content`, followed by a note that `rest` characters are still missing."""
        note = f"… ({rest:,} more characters)" if rest > 0 else ""
        self._filled.setdefault((text, number), {})[index] = content + note

    def collapse(self, text: str, number: int) -> bool:
        """Restore the elided and abbreviated form of a line. Returns whether the line had another form."""
        was_full = (text, number) in self._full
        self._full.discard((text, number))
        return self._filled.pop((text, number), None) is not None or was_full

    def apply(self, text: str, number: int, line: AnnotatedLine | None) -> AnnotatedLine | None:
        """The line with its filled gaps, marked as full if it is shown without abbreviations."""
        if line is not None and (text, number) in self._full:
            line = replace(line, is_full=True)
        filled = self._filled.get((text, number))
        if not filled or line is None:
            return line
        parts, start = [], 0
        for index, match in enumerate(_GAP.finditer(line.text)):
            parts += [line.text[start : match.start()], filled.get(index, match[0])]
            start = match.end()
        return replace(line, text="".join([*parts, line.text[start:]]))
