"""Parses TOML with `tomllib`, or with `tomli` before Python 3.11, and finds the lines of entries."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

_AT_LINE = re.compile(r"at line (\d+)")


class TomlError(ValueError):
    """A TOML file is invalid. `line` is counted from 1; 0 means that the error has no line."""

    def __init__(self, what: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {what}" if line else what)
        self.what, self.line = what, line


def parse_toml(text: str) -> dict[str, object]:
    """Parses `text`. Raises `TomlError` for invalid TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise TomlError("the TOML is nested too deeply") from error
    except ValueError as error:
        position = _AT_LINE.search(str(error))
        what = re.sub(r" ?\(at .*\)$", "", str(error))
        # An error without a line is at the end of the document.
        raise TomlError(what, int(position[1]) if position else max(1, text.rstrip().count("\n") + 1)) from error


def line_of(text: str, keys: Sequence[str]) -> int:
    """The line of an entry, counted from 1. `keys` are the name of its table, if any, and its key.

    If there is no such line, returns the line of the table's heading, or 0.
    """
    *tables, key = keys
    in_table, heading_line = not tables, 0
    entry = re.compile(rf"""\s*(["']?){re.escape(key)}\1\s*=""")
    for number, line in enumerate(text.split("\n"), 1):
        heading = re.match(r"\s*\[\s*([^\]]+?)\s*\]", line)
        if heading:
            in_table = heading[1].strip("\"'") in tables
            heading_line = number if in_table else heading_line
        elif in_table and entry.match(line):
            return number
    return heading_line
