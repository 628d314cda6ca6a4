"""Search patterns as in vim, and the matches of a pattern in each stage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from buddy.app.session.stages import StageRow
from buddy.compiler.protocol import Hits
from buddy.compiler.protocol.texts import compile_pattern

# The prefix of a pattern that is plain text.
PLAIN_PREFIX = "\\V"


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


# The pattern without a search.
NO_PATTERN = Pattern("", "")


def read_pattern(typed: str) -> Pattern:
    """Parses the user's input. The search ignores case unless the input has capitals (smartcase)."""
    is_plain = typed.startswith(PLAIN_PREFIX)
    source = typed.removeprefix(PLAIN_PREFIX) if is_plain else typed
    return Pattern(typed, source, regex=not is_plain, ignore_case=source == source.lower())


def case_sensitive_regex(expression: str) -> Pattern:
    """A case-sensitive regular expression."""
    return Pattern(expression, expression)


@dataclass(frozen=True)
class StageHits:
    """The lines of a stage that match. `same_as` is the name of an earlier stage with the same text, "" without one."""

    row: StageRow
    hits: Hits
    same_as: str = ""

    @property
    def count(self) -> int:
        return len(self.hits.lines)


def stages_with_hits(rows: Sequence[StageRow], hits_of_texts: Sequence[Hits]) -> list[StageHits]:
    """The stages with matches, in pipeline order. `hits_of_texts` are the matches in each text."""
    by_text = {hits.text: hits for hits in hits_of_texts}
    first_with_text: dict[str, str] = {}
    stages = []
    for row in rows:
        hits = by_text.get(row.stage.text)
        if hits is not None:
            stages.append(StageHits(row, hits, first_with_text.get(row.stage.text, "")))
            first_with_text.setdefault(row.stage.text, row.stage.name)
    return stages


def first_and_last_text(rows: Sequence[StageRow], stages: Sequence[StageHits]) -> str:
    """A summary of the stages with matches: `first in A (3 lines), gone after B`. After pass B, no line matches."""
    if not stages:
        return "in no stage"
    last = next(index for index, row in enumerate(rows) if row.key == stages[-1].row.key)
    next_stage = rows[last + 1].stage.name if last + 1 < len(rows) else ""
    first = f"first in {stages[0].row.stage.name} ({_line_count_text(stages[0])})"
    return f"{first}, gone after {next_stage}" if next_stage else f"{first}, and in the last stage"


def _line_count_text(stage: StageHits) -> str:
    more = "+" if stage.hits.more else ""
    return f"{stage.count:,}{more} line{'s' * (stage.count != 1)}"


def stage_note(stage: StageHits, is_first: bool) -> str:
    """The text next to the name of a stage in the list of results."""
    same_text = f"same text as {stage.same_as}" if stage.same_as else ""
    facts = [_line_count_text(stage), same_text, "first" if is_first else ""]
    return ", ".join(fact for fact in facts if fact)
