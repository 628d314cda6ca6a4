"""The difference of two stage texts, line by line or by structure, as runs of lines without their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from buddy.compiler.protocol.text.runs import Hunk, Pair, between, hunks, matches
from buddy.compiler.protocol.text.structure import LineShape, bound, shapes

How = Literal["line", "structural"]


class Difference(NamedTuple):
    """`hunks` are the differences, in order; `before` and `after` are the numbers of lines."""

    hunks: list[Hunk]
    before: int
    after: int


def difference(before: str, after: str, how: How = "line", language: str = "mlir") -> Difference:
    """Returns what to change in the text `before` to get `after`.

    A structural difference ignores lines that differ only by renamed values, order of attributes, locations and
    comments. Lines are split at "\\n" alone, as in `IndexedText`.
    """
    one, other = _lines(before), _lines(after)
    if before == after:
        found: list[Hunk] = []
    elif how == "line":
        found = hunks(one, other)
    else:
        found = _structural(one, other, language)
    return Difference(found, len(one), len(other))


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _structural(before: Sequence[str], after: Sequence[str], language: str) -> list[Hunk]:
    one, other = list(shapes(before, language)), list(shapes(after, language))
    numbers: dict[str, int] = {}
    keys = [[numbers.setdefault(shape.key, len(numbers)) for shape in side] for side in (one, other)]
    renaming = _Renaming()
    pairs: list[Pair] = []
    i = j = 0
    for x, y in matches(*keys):
        renaming.forget(before[i:x], one[i:x], 0)
        renaming.forget(after[j:y], other[j:y], 1)
        if renaming.takes(one[x], other[y], before[x]):
            pairs.append((x, y))
        i, j = x + 1, y + 1
    return between(pairs, len(before), len(after))


class _Renaming:
    """The one-to-one correspondence of names on both sides, according to the lines so far."""

    def __init__(self) -> None:
        self._there: tuple[dict[str, str], dict[str, str]] = ({}, {})

    def takes(self, one: LineShape, other: LineShape, line: str) -> bool:
        """Whether two lines with equal keys are consistent with it; their names correspond from now on in any case."""
        if one.fresh:
            self._begin_function()
        forth, back = self._there
        if len(one.names) != len(other.names):
            return False
        agrees, anew = True, None
        for a, b in zip(one.names, other.names, strict=True):
            if forth.get(a) == b and back.get(b) == a:
                continue
            if a in forth or b in back:
                anew = bound(line) if anew is None else anew
                if a not in anew:
                    agrees = False
                    continue
                self._drop(a, b)
            forth[a], back[b] = b, a
            agrees = agrees and a[0] == b[0]
        return agrees

    def forget(self, lines: Sequence[str], gone: Sequence[LineShape], side: int) -> None:
        """Removes the names of lines that only one side has: a later use of a name is another value."""
        there, back = self._there[side], self._there[1 - side]
        for line, shape in zip(lines, gone, strict=True):
            if any(name in there for name in shape.names):
                for name in bound(line):
                    other = there.pop(name, None)
                    if other is not None and back.get(other) == name:
                        del back[other]

    def _drop(self, a: str, b: str) -> None:
        forth, back = self._there
        if a in forth:
            back.pop(forth.pop(a), None)
        if b in back:
            forth.pop(back.pop(b), None)

    def _begin_function(self) -> None:
        """Values and labels are local to a function; aliases and metadata to the whole text."""
        for names in self._there:
            for name in [name for name in names if name[0] in "%^"]:
                del names[name]
