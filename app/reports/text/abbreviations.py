"""Abbreviates IR: short names for long types, and layouts and attributes without their contents. No Textual."""

from __future__ import annotations

import re
from collections.abc import Sequence

from buddy.app.session.bounded import TEXTS, keep_newest
from buddy.compiler.protocol import LongType
from buddy.compiler.protocol.regex import INSIDE

# Shorter texts are not worth abbreviating.
LONGEST = 16
_INNER = re.compile(
    r"(?P<head>\b(?:strided|affine_map|affine_set|array|dense|distinct|spirv\.\w+)|!llvm\.struct|#[\w.]+)"
    rf"<(?:{INSIDE}|<(?:{INSIDE}|<(?:{INSIDE})*>)*>){{{LONGEST},}}>"
)
_DICTIONARY = re.compile(rf"\{{[^{{}}\n]{{{2 * LONGEST},}}\}}")


def abbreviate_types(line: str, ellipsis: str) -> str:
    """`line` with layouts, struct types, inline maps and attribute dictionaries reduced to their names."""
    if line[:1] in "#!":
        # The definition of an alias stays in full.
        return line
    short = _INNER.sub(lambda match: f"{match['head']}<{ellipsis}>", line)
    return _DICTIONARY.sub(lambda match: f"{{{ellipsis}}}", short)


class TypeNames:
    """Names such as `!T1` for long types. A type has the same name in all texts."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._types: dict[str, tuple[LongType, ...]] = {}
        self._shown: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None

    def knows(self, text: str) -> bool:
        """Whether the types of a text are known."""
        return text in self._types

    def take(self, text: str, types: Sequence[LongType]) -> None:
        """Give names to the types of a text that have none."""
        self._types[text] = tuple(types)
        keep_newest(self._types, TEXTS)
        for one in types:
            self._names.setdefault(one.text, f"!T{len(self._names) + 1}")

    def show(self, *texts: str) -> bool:
        """Set the texts that are shown. Returns whether they have changed."""
        shown = tuple(text for text in texts if text in self._types)
        if shown != self._shown:
            types = {one.text for text in shown for one in self._types[text]}
            # The longest first, so that a type is not matched by a prefix.
            ordered = sorted(types, key=len, reverse=True)
            self._shown, self._pattern = shown, re.compile("|".join(map(re.escape, ordered))) if ordered else None
            return True
        return False

    def of(self, text: str) -> list[tuple[str, LongType]]:
        """The types of a text with their names, in text order."""
        return [(self._names[one.text], one) for one in self._types.get(text, ())]

    def inside(self, line: str) -> dict[str, str]:
        """The full types of the names on a line, in line order."""
        if self._pattern is None or line[:1] in "#!":
            return {}
        return {self._names[found]: found for found in self._pattern.findall(line)}

    def named(self, line: str) -> str:
        """`line` with names for its types."""
        if self._pattern is None or line[:1] in "#!":
            # The definition of an alias stays in full.
            return line
        return self._pattern.sub(lambda match: self._names[match[0]], line)
