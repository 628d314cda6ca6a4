"""Differences in the unified format of `diff -u`, and the words that differ between two lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import lru_cache

CONTEXT = 3
Hunk = tuple[int, int, int, int]


def unified_diff(before: str, after: str, hunks: Sequence[Hunk], title_before: str, title_after: str) -> str:
    """The unified diff of two texts; `hunks` are those of `buddy.compiler.protocol.Compared`.

    Lines that a structural diff ignores are printed as in the new text.
    """
    one, two = before.splitlines(), after.splitlines()
    lines = [f"--- {title_before}", f"+++ {title_after}"]
    for group in _groups(hunks):
        lines += _group_lines(one, two, group)
    return "\n".join([*lines, ""])


def _groups(hunks: Sequence[Hunk]) -> Iterator[list[Hunk]]:
    """Group hunks whose contexts overlap."""
    group: list[Hunk] = []
    for hunk in hunks:
        if group and hunk[0] - (group[-1][0] + group[-1][1]) > 2 * CONTEXT:
            yield group
            group = []
        group.append(hunk)
    if group:
        yield group


def _group_lines(one: list[str], two: list[str], group: list[Hunk]) -> list[str]:
    first, last = group[0], group[-1]
    lead = min(CONTEXT, first[0], first[2])
    tail = min(CONTEXT, len(two) - (last[2] + last[3]), len(one) - (last[0] + last[1]))
    start_one, start_two = first[0] - lead, first[2] - lead
    end_one, end_two = last[0] + last[1] + tail, last[2] + last[3] + tail
    lines = [f"@@ -{_span(start_one, end_one)} +{_span(start_two, end_two)} @@"]
    place = start_two
    for before, removed, after, added in group:
        lines += [f" {line}" for line in two[place:after]]
        lines += [f"-{line}" for line in one[before : before + removed]]
        lines += [f"+{line}" for line in two[after : after + added]]
        place = after + added
    return lines + [f" {line}" for line in two[place:end_two]]


def _span(start: int, end: int) -> str:
    """A range in unified format; an empty range has the number of the line before it."""
    return f"{start + (end > start)},{end - start}"


# Lines with less in common are unrelated: marking most of their words would not help.
LEAST_ALIKE = 0.4
# difflib is quadratic in the number of words; lines of this length take about a millisecond.
MOST_WORDS = 160
_WORD = re.compile(r"[\w.$%#@!^\-]+|\s+|.")

Spans = tuple[tuple[int, int], ...]


@lru_cache(maxsize=512)
def changed_words(
    before: str, after: str, *, names: bool = True, aliases: tuple[tuple[str, str], ...] = ()
) -> tuple[Spans, Spans]:
    """The ranges `(start, end)` of differing characters in each line; empty if the lines are unrelated.

    Without `names`, SSA values and labels count as equal, unless nothing else differs, and aliases count as their
    counterparts in `aliases` (see `buddy.compiler.protocol.Compared`).
    """
    one, other = _WORD.findall(before), _WORD.findall(after)
    if max(len(one), len(other)) > MOST_WORDS:
        return (), ()
    if names:
        return _differing(one, other, one, other)
    counterparts = dict(aliases)
    meant = [[counterparts.get(word, word) for word in one], other]
    kinds = [[word[0] if word[:1] in ("%", "^") else word for word in words] for words in meant]
    return _differing(one, other, *(kinds if kinds[0] != kinds[1] else meant))


def _differing(one: list[str], other: list[str], here: list[str], there: list[str]) -> tuple[Spans, Spans]:
    """The spans of the words of `one` and `other` at the positions where `here` and `there` differ."""
    start, end = _ends(here, there)
    a, b = here[start : len(here) - end], there[start : len(there) - end]
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    common = start + end + min(len(a), len(b))
    if 2 * common < LEAST_ALIKE * (len(here) + len(there)):
        return (), ()
    edits = [edit for edit in matcher.get_opcodes() if edit[0] != "equal"]
    common = len(here) - sum(edit[2] - edit[1] for edit in edits)
    if 2 * common < LEAST_ALIKE * (len(here) + len(there)):
        return (), ()
    left = _spans(one, ((start + edit[1], start + edit[2]) for edit in edits))
    return left, _spans(other, ((start + edit[3], start + edit[4]) for edit in edits))


def _ends(here: list[str], there: list[str]) -> tuple[int, int]:
    """The number of equal words at the start, and of the remaining words at the end."""
    most = min(len(here), len(there))
    start = next((k for k in range(most) if here[k] != there[k]), most)
    end = next((k for k in range(most - start) if here[-1 - k] != there[-1 - k]), most - start)
    return start, end


def _spans(words: list[str], runs: Iterable[tuple[int, int]]) -> Spans:
    starts = [0]
    for word in words:
        starts.append(starts[-1] + len(word))
    return tuple((starts[first], starts[end]) for first, end in runs if end > first)
