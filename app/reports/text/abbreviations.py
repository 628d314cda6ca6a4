"""Long types in short, by names made up for them; layouts and attributes with what is inside cut. No Textual."""

from __future__ import annotations

import re
from collections.abc import Sequence

from buddy.app.session.bounded import TEXTS, keep_newest
from buddy.compiler.protocol import LongType
from buddy.compiler.protocol.regex import INSIDE

# What is shorter says more than an ellipsis saves.
LONGEST = 16
_INNER = re.compile(
    r"(?P<head>\b(?:strided|affine_map|affine_set|array|dense|distinct|spirv\.\w+)|!llvm\.struct|#[\w.]+)"
    rf"<(?:{INSIDE}|<(?:{INSIDE}|<(?:{INSIDE})*>)*>){{{LONGEST},}}>"
)
_DICTIONARY = re.compile(rf"\{{[^{{}}\n]{{{2 * LONGEST},}}\}}")


def abbreviated(line: str, ellipsis: str) -> str:
    """`line` with layouts, struct types, inline maps and dictionaries of attributes cut to their names."""
    if line[:1] in "#!":
        # What an alias stands for is there to be read.
        return line
    short = _INNER.sub(lambda match: f"{match['head']}<{ellipsis}>", line)
    return _DICTIONARY.sub(lambda match: f"{{{ellipsis}}}", short)


class TypeNames:
    """Names such as `!T1` for long types: a type has one name in all texts, whichever text it was seen in first."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._types: dict[str, tuple[LongType, ...]] = {}
        self._shown: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None

    def knows(self, text: str) -> bool:
        """Whether the types of a text have been told."""
        return text in self._types

    def take(self, text: str, types: Sequence[LongType]) -> None:
        """Name the types of a text that have no name yet."""
        self._types[text] = tuple(types)
        keep_newest(self._types, TEXTS)
        for one in types:
            self._names.setdefault(one.text, f"!T{len(self._names) + 1}")

    def show(self, *texts: str) -> bool:
        """Say which texts lines are drawn of; whether these are others than so far."""
        shown = tuple(text for text in texts if text in self._types)
        if shown != self._shown:
            types = {one.text for text in shown for one in self._types[text]}
            # The longest first: of types that begin alike, the whole one is meant.
            ordered = sorted(types, key=len, reverse=True)
            self._shown, self._pattern = shown, re.compile("|".join(map(re.escape, ordered))) if ordered else None
            return True
        return False

    def of(self, text: str) -> list[tuple[str, LongType]]:
        """The types of a text with their names, in the order in which it has them."""
        return [(self._names[one.text], one) for one in self._types.get(text, ())]

    def inside(self, line: str) -> dict[str, str]:
        """What the names that stand for types of a line stand for, in the line's order."""
        if self._pattern is None or line[:1] in "#!":
            return {}
        return {self._names[found]: found for found in self._pattern.findall(line)}

    def named(self, line: str) -> str:
        """`line` with names for its types."""
        if self._pattern is None or line[:1] in "#!":
            # What an alias stands for is there to be read.
            return line
        return self._pattern.sub(lambda match: self._names[match[0]], line)
