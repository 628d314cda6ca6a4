"""Parses TOML with the parser of this Python version, and finds the lines of entries."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

_AT_LINE = re.compile(r"at line (\d+)")


class TomlError(ValueError):
    """An error in a TOML file; `line` is counted from 1, 0 for the whole file."""

    def __init__(self, what: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {what}" if line else what)
        self.what, self.line = what, line


def parse_toml(text: str) -> dict[str, Any]:
    """Parses `text`.

    Raises `TomlError` with the line of the error.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise TomlError("it is nested too deeply") from error
    except ValueError as error:
        found = _AT_LINE.search(str(error))
        what = re.sub(r" ?\(at .*\)$", "", str(error))
        raise TomlError(what, int(found[1]) if found else max(1, text.rstrip().count("\n") + 1)) from error


def line_of(text: str, keys: Sequence[str]) -> int:
    """The line, from 1, of an entry of a table at most one level deep; that of the table if the entry is not found."""
    *tables, key = keys
    inside, found = not tables, 0
    entry = re.compile(rf"""\s*(["']?){re.escape(key)}\1\s*=""")
    for number, line in enumerate(text.split("\n"), 1):
        head = re.match(r"\s*\[\s*([^\]]+?)\s*\]", line)
        if head:
            inside = head[1].strip("\"'") in tables
            found = number if inside else found
        elif inside and entry.match(line):
            return number
    return found
