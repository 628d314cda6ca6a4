"""TOML from whichever parser this Python has."""

from __future__ import annotations

import sys
from typing import Any


def parse_toml(text: str) -> dict[str, Any]:
    """The table in `text`.

    Raises `ValueError` (a parser's own kind of it) that says where the text is not TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)
