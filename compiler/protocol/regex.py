"""Regular expressions from user input, and the shared parts of those for types, for application and engine."""

from __future__ import annotations

import re
import warnings

# A character between angle brackets, or an arrow, whose head never closes a bracket: so a text matches in only one way.
# With two ways, matching a line of arrows takes cubic time or worse.
INSIDE = r"[^<>\n-]|->|-(?!>)"
# Maximum number of characters of an invalid pattern in a message.
_SHOWN = 200


class PatternError(ValueError):
    """An invalid regular expression; `reason` says where it goes wrong, and includes the pattern."""

    def __init__(self, reason: str, pattern: str) -> None:
        shown = repr(pattern) if len(pattern) <= _SHOWN else f"{pattern[:_SHOWN]!r}..."
        super().__init__(f"{reason} in the pattern {shown}")
        self.reason = reason


def compiled(pattern: str, ignore_case: bool) -> re.Pattern[str]:
    """Compiles a regular expression. Raises `PatternError`, also for one that exceeds the limits of `re`."""
    try:
        with warnings.catch_warnings():
            # The user cannot do anything about changes in a future Python.
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        where = f" at position {error.pos}" if error.pos is not None else ""
        raise PatternError(f"{error.msg}{where}", pattern) from error
    except OverflowError as error:
        raise PatternError(str(error), pattern) from error
    except RecursionError as error:
        raise PatternError("parentheses too deep", pattern) from error
