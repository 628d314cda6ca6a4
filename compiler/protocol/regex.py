"""Regular expressions as people type them, and what those of types share: read in one way by application and engine."""

from __future__ import annotations

import re
import warnings

# A character between angle brackets, or an arrow, whose head never closes a bracket: so there is one way to read a text
# by it. Where there are two, the time that a line of arrows takes grows with the cube of its length, or worse.
INSIDE = r"[^<>\n-]|->|-(?!>)"
# Characters of a wrong pattern that a message repeats.
_SHOWN = 200


class PatternError(ValueError):
    """A regular expression that cannot be read; `reason` says where it goes wrong, the text of which pattern too."""

    def __init__(self, reason: str, pattern: str) -> None:
        shown = repr(pattern) if len(pattern) <= _SHOWN else f"{pattern[:_SHOWN]!r}..."
        super().__init__(f"{reason} in the pattern {shown}")
        self.reason = reason


def compiled(pattern: str, ignore_case: bool) -> re.Pattern[str]:
    """The regular expression. Raises `PatternError`, also for one that is too much for `re`."""
    try:
        with warnings.catch_warnings():
            # What some later Python may read otherwise is nothing that a person at the keyboard can do about.
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        where = f" at position {error.pos}" if error.pos is not None else ""
        raise PatternError(f"{error.msg}{where}", pattern) from error
    except OverflowError as error:
        raise PatternError(str(error), pattern) from error
    except RecursionError as error:
        raise PatternError("parentheses too deep", pattern) from error
