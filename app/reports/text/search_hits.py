"""Search patterns, as in vim, and search matches by stage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from buddy.app.session.stages import StageRow
from buddy.compiler.protocol import Hits
from buddy.compiler.protocol.texts import compile_pattern

PLAIN = "\\V"


class Pattern(NamedTuple):
    """`source` is a regular expression if `regex`, plain text otherwise; `typed` is the user's input."""

    typed: str
    source: str
    regex: bool = True
    ignore_case: bool = False

    @property
    def expression(self) -> str:
        """The pattern as a regular expression."""
        return self.source if self.regex else re.escape(self.source)

    def compile(self) -> re.Pattern[str]:
        """The compiled pattern. Raises `PatternError` for an invalid regular expression."""
        return compile_pattern(self.expression, self.ignore_case)


NOTHING = Pattern("", "")


def read_pattern(typed: str) -> Pattern:
    """Parse the user's input. The search is case-sensitive if the input has capitals."""
    plain = typed.startswith(PLAIN)
    source = typed.removeprefix(PLAIN) if plain else typed
    return Pattern(typed, source, not plain, source == source.lower())


def case_sensitive_regex(expression: str) -> Pattern:
    """A case-sensitive regular expression."""
    return Pattern(expression, expression)


@dataclass(frozen=True)
class StageHits:
    """The matches in a stage; `same_as` names an earlier stage with the same text, and so the same lines."""

    row: StageRow
    hits: Hits
    same_as: str = ""

    @property
    def count(self) -> int:
        return len(self.hits.lines)


def stages_with_hits(rows: Sequence[StageRow], found: Sequence[Hits]) -> list[StageHits]:
    """The stages with matches, in order."""
    by_text = {hits.text: hits for hits in found}
    seen: dict[str, str] = {}
    listed = []
    for row in rows:
        hits = by_text.get(row.stage.text)
        if hits is not None:
            listed.append(StageHits(row, hits, seen.get(row.stage.text, "")))
            seen.setdefault(row.stage.text, row.stage.name)
    return listed


def first_and_last_text(rows: Sequence[StageRow], listed: Sequence[StageHits]) -> str:
    """A summary of the stages with matches: `first in A (3 lines), gone after B`."""
    if not listed:
        return "in no stage"
    last = next(place for place, row in enumerate(rows) if row.key == listed[-1].row.key)
    gone = rows[last + 1].stage.name if last + 1 < len(rows) else ""
    first = f"first in {listed[0].row.stage.name} ({_lines(listed[0])})"
    return f"{first}, gone after {gone}" if gone else f"{first}, and in the last stage"


def _lines(found: StageHits) -> str:
    more = "+" if found.hits.more else ""
    return f"{found.count:,}{more} line{'s' * (found.count != 1)}"


def stage_note(found: StageHits, first: bool) -> str:
    """The text next to the name of a stage in the list."""
    facts = [_lines(found), f"as {found.same_as}" if found.same_as else "", "first" if first else ""]
    return ", ".join(fact for fact in facts if fact)
