"""What a user types to search for: a regular expression, or, behind `\\V`, plain text as in vim. No Textual."""

from __future__ import annotations

import re
from typing import NamedTuple

from buddy.compiler.protocol.regex import compiled

PLAIN = "\\V"


class Pattern(NamedTuple):
    """`source` is a regular expression if `regex`, plain text otherwise; `typed` is what the user wrote."""

    typed: str
    source: str
    regex: bool = True
    ignore_case: bool = False

    @property
    def expression(self) -> str:
        """The pattern as a regular expression."""
        return self.source if self.regex else re.escape(self.source)

    def compiled(self) -> re.Pattern[str]:
        """Raises `PatternError` for a regular expression that is none."""
        return compiled(self.expression, self.ignore_case)


NOTHING = Pattern("", "")


def read_pattern(typed: str) -> Pattern:
    """The pattern that `typed` stands for; case matters where it has capitals."""
    plain = typed.startswith(PLAIN)
    source = typed.removeprefix(PLAIN) if plain else typed
    return Pattern(typed, source, not plain, source == source.lower())


def exact(expression: str) -> Pattern:
    """A regular expression in which case matters."""
    return Pattern(expression, expression)
