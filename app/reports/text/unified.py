"""Diffs in the unified format of `diff -u`, and the words that differ between two lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import lru_cache

# The number of equal lines before and after a change.
CONTEXT = 3
# (before, removed, after, added), as in `buddy.compiler.protocol.Compared`: the `removed` lines of the old text from
# line `before` on became the `added` lines of the new text from line `after` on.
Hunk = tuple[int, int, int, int]


def unified_diff(before: str, after: str, hunks: Sequence[Hunk], title_before: str, title_after: str) -> str:
    """Returns the unified diff of the texts `before` and `after`.

    Lines that differ outside of `hunks`, which a structural diff ignores, are printed as in `after`.
    """
    old, new = before.splitlines(), after.splitlines()
    lines = [f"--- {title_before}", f"+++ {title_after}"]
    for group in _groups(hunks):
        lines += _group_lines(old, new, group)
    return "\n".join([*lines, ""])


def _groups(hunks: Sequence[Hunk]) -> Iterator[list[Hunk]]:
    """Yields groups of consecutive hunks whose contexts touch or overlap."""
    group: list[Hunk] = []
    for hunk in hunks:
        if group:
            before, removed, _, _ = group[-1]
            if hunk[0] - (before + removed) > 2 * CONTEXT:
                yield group
                group = []
        group.append(hunk)
    if group:
        yield group


def _group_lines(old: list[str], new: list[str], group: list[Hunk]) -> list[str]:
    """Returns the lines of a group: its header, and its changes with their context."""
    first_before, _, first_after, _ = group[0]
    last_before, last_removed, last_after, last_added = group[-1]
    old_end, new_end = last_before + last_removed, last_after + last_added
    lead = min(CONTEXT, first_before, first_after)
    tail = min(CONTEXT, len(old) - old_end, len(new) - new_end)
    old_start, new_start = first_before - lead, first_after - lead
    old_end, new_end = old_end + tail, new_end + tail
    lines = [f"@@ -{_line_range(old_start, old_end)} +{_line_range(new_start, new_end)} @@"]
    printed_end = new_start
    for before, removed, after, added in group:
        lines += [f" {line}" for line in new[printed_end:after]]
        lines += [f"-{line}" for line in old[before : before + removed]]
        lines += [f"+{line}" for line in new[after : after + added]]
        printed_end = after + added
    return lines + [f" {line}" for line in new[printed_end:new_end]]


def _line_range(start: int, end: int) -> str:
    """Returns a range of lines in unified format: the first line, or the line before an empty range, and the number."""
    return f"{start + (end > start)},{end - start}"


# If a smaller share of the words of two lines is equal, the lines count as unrelated, and no words are marked.
MIN_EQUAL_SHARE = 0.4
# Longer lines are not compared: difflib is quadratic in the number of words; 160 words take about a millisecond.
MAX_WORDS = 160
# A word of IR, a run of spaces, or another character.
_WORD = re.compile(r"[\w.$%#@!^\-]+|\s+|.")

# Ranges of characters, as (start, end).
Spans = tuple[tuple[int, int], ...]


@lru_cache(maxsize=512)
def changed_words(
    before: str, after: str, *, names: bool = True, aliases: tuple[tuple[str, str], ...] = ()
) -> tuple[Spans, Spans]:
    """Returns the spans of the differing words in the line `before`, and in the line `after`.

    Both are empty if the lines are unrelated or longer than `MAX_WORDS`.

    Without `names`, SSA values and labels count as equal, unless nothing else differs, and aliases count as their
    counterparts in `aliases` (see `buddy.compiler.protocol.Compared`).
    """
    old, new = _WORD.findall(before), _WORD.findall(after)
    if max(len(old), len(new)) > MAX_WORDS:
        return (), ()
    if names:
        return _differing_spans(old, new, old, new)
    counterparts = dict(aliases)
    translated = [counterparts.get(word, word) for word in old]
    # A key is the word, but only its first character for an SSA value or a label.
    old_keys, new_keys = (
        [word[0] if word[:1] in ("%", "^") else word for word in words] for words in (translated, new)
    )
    if old_keys == new_keys:
        return _differing_spans(old, new, translated, new)
    return _differing_spans(old, new, old_keys, new_keys)


def _differing_spans(old: list[str], new: list[str], old_keys: list[str], new_keys: list[str]) -> tuple[Spans, Spans]:
    """Returns the spans of the words of `old` and of `new` whose keys differ; empty if the lines are unrelated."""
    start, end = _common_ends(old_keys, new_keys)
    old_middle, new_middle = old_keys[start : len(old_keys) - end], new_keys[start : len(new_keys) - end]
    required = MIN_EQUAL_SHARE * (len(old_keys) + len(new_keys))
    # A cheap upper bound of the number of equal words.
    if 2 * (start + end + min(len(old_middle), len(new_middle))) < required:
        return (), ()
    matcher = SequenceMatcher(None, old_middle, new_middle, autojunk=False)
    edits = [ranges for operation, *ranges in matcher.get_opcodes() if operation != "equal"]
    n_equal = len(old_keys) - sum(old_end - old_start for old_start, old_end, _, _ in edits)
    if 2 * n_equal < required:
        return (), ()
    old_spans = _spans(old, ((start + old_start, start + old_end) for old_start, old_end, _, _ in edits))
    return old_spans, _spans(new, ((start + new_start, start + new_end) for _, _, new_start, new_end in edits))


def _common_ends(old: list[str], new: list[str]) -> tuple[int, int]:
    """Returns the number of equal words at the start, and the number of equal words at the end among the others."""
    shorter = min(len(old), len(new))
    start = next((index for index in range(shorter) if old[index] != new[index]), shorter)
    end = next((index for index in range(shorter - start) if old[-1 - index] != new[-1 - index]), shorter - start)
    return start, end


def _spans(words: list[str], ranges: Iterable[tuple[int, int]]) -> Spans:
    """Returns the ranges of characters for ranges (start, end) of words, without empty ones."""
    starts = [0]
    for word in words:
        starts.append(starts[-1] + len(word))
    return tuple((starts[start], starts[end]) for start, end in ranges if end > start)
