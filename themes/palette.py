"""The themes as data: colours, roles of text and IR syntax, read from the TOML files beside this module.

Imports neither Textual nor Rich: styles are strings such as `"bold #87afd7"`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from buddy.themes.toml import parse_toml

FOLDER = Path(__file__).parent
FILES = ("dark", "light", "high_contrast")
DEFAULT = "buddy-dark"


class ThemeData(msgspec.Struct, frozen=True):
    """One theme: `colors` and `variables` are Textual's, `roles` and `syntax` map a name to a style."""

    name: str
    title: str
    dark: bool
    colors: dict[str, str]
    roles: dict[str, str]
    syntax: dict[str, str]
    variables: dict[str, str] = {}


@lru_cache(maxsize=1)
def themes() -> dict[str, ThemeData]:
    """Every theme by its name, the default first."""
    found = [read_theme(FOLDER / f"{file}.toml") for file in FILES]
    return {theme.name: theme for theme in found}


def read_theme(path: Path) -> ThemeData:
    """The theme in the file at `path`.

    Raises `ValueError` that names the file when it is not a theme.
    """
    try:
        return msgspec.convert(parse_toml(path.read_text("utf-8")), ThemeData, strict=True)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"{path}: not a theme: {error}") from error
