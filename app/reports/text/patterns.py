"""Search patterns: a regular expression or, after `\\V`, plain text as in vim. No Textual."""

from __future__ import annotations

import re
from typing import NamedTuple

from buddy.compiler.protocol.regex import compiled

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

    def compiled(self) -> re.Pattern[str]:
        """The compiled pattern. Raises `PatternError` for an invalid regular expression."""
        return compiled(self.expression, self.ignore_case)


NOTHING = Pattern("", "")


def read_pattern(typed: str) -> Pattern:
    """Parse the user's input. The search is case-sensitive if the input has capitals."""
    plain = typed.startswith(PLAIN)
    source = typed.removeprefix(PLAIN) if plain else typed
    return Pattern(typed, source, not plain, source == source.lower())


def case_sensitive_regex(expression: str) -> Pattern:
    """A case-sensitive regular expression."""
    return Pattern(expression, expression)
