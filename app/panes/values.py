"""SSA values on a line of IR, and the patterns that find where they are defined and used. No Textual."""

from __future__ import annotations

import re

VALUE = re.compile(r"%[\w$.\-]+")
RESULTS = re.compile(r"^\s*(%[\w$.\-]+(?::\d+)?(?:,\s*%[\w$.\-]+(?::\d+)?)*)\s*=")


def defined(line: str) -> list[str]:
    """The values that the line's op defines."""
    found = RESULTS.match(line)
    return VALUE.findall(found.group(1)) if found else []


def used(line: str) -> list[str]:
    """The values that the line uses, each once, in order."""
    found = RESULTS.match(line)
    return list(dict.fromkeys(VALUE.findall(line[found.end() :] if found else line)))


def definition_pattern(value: str) -> str:
    """Finds the op or the block argument that defines `value`."""
    name = re.escape(value)
    return rf"(^|[(,\s]){name}((:\d+)?(,\s*%[\w$.:\-]+)*\s*=|: )"


def use_pattern(value: str) -> str:
    """Finds `value` wherever it stands."""
    return rf"{re.escape(value)}(?![\w$.\-])"
