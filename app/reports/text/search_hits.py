"""Search patterns as in vim, and the matches of a pattern in each stage."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from buddy.app.session.stages import StageRow
from buddy.compiler.protocol import Hits
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.text.store import PatternError, compile_pattern

# The prefix of a pattern that is plain text.
PLAIN_PREFIX = "\\V"


class Pattern(NamedTuple):
    """A search pattern.

    `source` is a regular expression if `regex`, otherwise plain text; `typed` is the user's input.
    """

    typed: str
    source: str
    regex: bool = True
    ignore_case: bool = False

    @property
    def expression(self) -> str:
        """The pattern as a regular expression."""
        return self.source if self.regex else re.escape(self.source)

    def compile(self) -> re.Pattern[str]:
        """Returns the compiled pattern. Raises `PatternError` for an invalid regular expression."""
        return compile_pattern(self.expression, self.ignore_case)


# Stands for no search.
NO_PATTERN = Pattern("", "")


def read_pattern(typed: str) -> Pattern:
    """Parses the user's input. The search ignores case unless the input has capitals (smartcase)."""
    is_plain = typed.startswith(PLAIN_PREFIX)
    source = typed.removeprefix(PLAIN_PREFIX) if is_plain else typed
    return Pattern(typed, source, regex=not is_plain, ignore_case=source == source.lower())


def pattern_error(pattern: Pattern) -> str:
    """Returns why a pattern cannot be used, and what to do; an empty string if it is valid."""
    try:
        pattern.compile()
    except PatternError as error:
        return f"invalid regular expression: {error.reason}; start with \\V to search for plain text"
    return ""


class SlowPatternError(BuddyError):
    """A search has exceeded its time limit. The time of `(a+)+$`, for example, doubles with each letter of a text."""


@contextlib.contextmanager
def limited_time(seconds: float) -> Iterator[None]:
    """Raises `SlowPatternError` if the block needs more processor time. Does nothing outside of the main thread.

    `re` handles signals while it matches, so a timer interrupts the match.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGVTALRM, _interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def _interrupt(*_: object) -> None:
    raise SlowPatternError


def case_sensitive_regex(expression: str) -> Pattern:
    """Returns a case-sensitive regular expression."""
    return Pattern(expression, expression)


def matching_lines(texts: Sequence[str], pattern: Pattern, *, joined: bool = False) -> list[int]:
    """Returns the numbers of the texts in which a valid pattern matches.

    With `joined`, a text may continue the one before it: a space in the pattern also matches the end of a text with the
    indentation of the next. Such a match counts for the text in which it starts.
    """
    compiled = pattern.compile()
    if not joined or " " not in pattern.expression.strip():
        return [number for number, text in enumerate(texts) if compiled.search(text)]
    parts = pattern.expression.replace("\\ ", " ").split()
    across_lines = pattern._replace(source="(?m)" + r"\s+".join(parts), regex=True)
    # The new pattern is invalid if a space was inside of a construct, such as a set of characters. Then spaces match
    # only spaces.
    with contextlib.suppress(PatternError):
        compiled = across_lines.compile()
    starts = list(accumulate((len(text) + 1 for text in texts), initial=0))
    matching = (bisect_right(starts, match.start()) - 1 for match in compiled.finditer("\n".join(texts)))
    return sorted({number for number in matching if number < len(texts)})


@dataclass(frozen=True)
class StageHits:
    """The lines of a stage that match. `same_as` is the name of an earlier stage with the same text, "" without one."""

    row: StageRow
    hits: Hits
    same_as: str = ""

    @property
    def count(self) -> int:
        """The number of lines that match."""
        return len(self.hits.lines)


def stages_with_hits(rows: Sequence[StageRow], hits_of_texts: Sequence[Hits]) -> list[StageHits]:
    """Returns the stages with matches, in pipeline order. `hits_of_texts` are the matches in each text."""
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
    """Returns a summary of the stages with matches: `first in A (3 lines), gone after B`.

    After pass B, no line matches.
    """
    if not stages:
        return "in no stage"
    last_index = next(index for index, row in enumerate(rows) if row.key == stages[-1].row.key)
    next_stage = rows[last_index + 1].stage.name if last_index + 1 < len(rows) else ""
    first = f"first in {stages[0].row.stage.name} ({_line_count_text(stages[0])})"
    return f"{first}, gone after {next_stage}" if next_stage else f"{first}, and in the last stage"


def _line_count_text(stage: StageHits) -> str:
    more = "+" if stage.hits.more else ""
    return f"{stage.count:,}{more} line{'' if stage.count == 1 else 's'}"


def stage_note(stage: StageHits, is_first: bool) -> str:
    """Returns the number of matches in a stage, and whether it is the first one or has the text of an earlier one."""
    same_text = f"same text as {stage.same_as}" if stage.same_as else ""
    facts = [_line_count_text(stage), same_text, "first" if is_first else ""]
    return ", ".join(fact for fact in facts if fact)
