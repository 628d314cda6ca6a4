"""Regular expressions: compiles those of users, and a part of those that match MLIR types."""

from __future__ import annotations

import re
import warnings

from buddy.compiler.protocol.errors import BuddyError

# One character between angle brackets, or an arrow `->`, whose `>` closes no bracket. Each text matches in only one
# way: if there were two, matching a line of arrows would take cubic time or worse.
INSIDE = r"[^<>\n-]|->|-(?!>)"
# Maximum number of characters of an invalid pattern in a message.
_MAX_PATTERN_CHARACTERS = 200


class PatternError(BuddyError, ValueError):
    """An invalid regular expression. `reason` says what is wrong and where; the error's text adds the pattern."""

    def __init__(self, reason: str, pattern: str) -> None:
        is_short = len(pattern) <= _MAX_PATTERN_CHARACTERS
        excerpt = repr(pattern) if is_short else f"{pattern[:_MAX_PATTERN_CHARACTERS]!r}..."
        super().__init__(f"{reason} in the pattern {excerpt}")
        self.reason = reason


def compile_pattern(pattern: str, ignore_case: bool) -> re.Pattern[str]:
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
