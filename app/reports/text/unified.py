"""Prints differences in the unified format of `diff -u` and `patch`. No Textual."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
