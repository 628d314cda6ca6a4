"""The themes as data: colours, text roles and IR syntax, read from this folder's TOML files and the user's.

Imports neither Textual nor Rich: styles are strings such as `"bold #87afd7"`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from buddy.themes.toml import TomlError, line_of, parse_toml

FOLDER = Path(__file__).parent
FILES = ("dark", "light", "high_contrast", "colour_blind", "ansi", "ansi_light")
DEFAULT = "buddy-dark"
TABLES = ("colors", "variables", "roles", "syntax")
NAMED = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_COLOUR = rf"(?:#[0-9a-fA-F]{{6}}|default|(?:bright_)?(?:{'|'.join(NAMED)}))"
_ANSI = re.compile(rf"ansi_(?:default|(?:bright_)?(?:{'|'.join(NAMED)}))")
_HEX = re.compile(r"#[0-9a-fA-F]{6}")
_STYLE = re.compile(
    rf"(?=\S)(?:(?:bold|dim|italic|underline|reverse|strike)(?:\s+|$))*(?:{_COLOUR}(?:\s+|$))?(?:on\s+{_COLOUR})?"
)


class ThemeData(msgspec.Struct, frozen=True):
    """One theme: `colors` and `variables` are Textual's, `roles` and `syntax` map a name to a style.

    With `ansi`, colours are names of the terminal's own sixteen, `ansi_red` in `colors` and `variables`.
    """

    name: str
    title: str
    dark: bool
    colors: dict[str, str]
    roles: dict[str, str]
    syntax: dict[str, str]
    variables: dict[str, str] = {}
    ansi: bool = False


# The user's themes, by name.
_added: dict[str, ThemeData] = {}


@lru_cache(maxsize=1)
def _built_in() -> dict[str, ThemeData]:
    found = [read_theme(FOLDER / f"{file}.toml") for file in FILES]
    return {theme.name: theme for theme in found}


def themes() -> dict[str, ThemeData]:
    """Every theme by its name, the default first, the user's own last."""
    return {**_built_in(), **_added}


def add_themes(folder: Path) -> list[str]:
    """Loads the user's themes from the TOML files in `folder`; returns an error for each invalid file."""
    problems = []
    _added.clear()
    try:
        files = sorted(path for path in folder.glob("*.toml") if path.is_file())
    except OSError:
        files = []
    for path in files:
        try:
            theme = read_theme(path, _built_in())
        except ValueError as error:
            problems.append(str(error))
            continue
        if theme.name in _built_in() or theme.name in _added:
            problems.append(f"{path}: a theme {theme.name} already exists: give it another name")
        else:
            _added[theme.name] = theme
    return problems


def read_theme(path: Path, bases: dict[str, ThemeData] | None = None) -> ThemeData:
    """Reads the theme in the file at `path`: all of it, or the differences from the theme in `bases` that `base`
    names.

    Raises `ValueError` that names the file, and the line, if it is not a theme.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a theme: {getattr(error, 'strerror', None) or error}") from error
    try:
        return _theme(text, parse_toml(text), path.stem, bases or {})
    except TomlError as error:
        where = f"{path}, line {error.line}" if error.line else str(path)
        raise ValueError(f"{where}: not a theme: {error.what}") from error


def _theme(text: str, given: dict[str, Any], stem: str, bases: dict[str, ThemeData]) -> ThemeData:
    data = dict(given)
    chosen = data.pop("base", None)
    base = bases.get(chosen) if isinstance(chosen, str) else None
    if chosen is not None and base is None:
        raise TomlError(f"base: there is no theme {chosen!r}; there are {', '.join(bases)}", line_of(text, ["base"]))
    for name, value in data.items():
        _check_entry(text, name, value, base)
    if base is not None:
        names = {"name": stem, "title": data.get("name", stem)}
        data = {**msgspec.structs.asdict(base), **names, **data}
        data |= {table: {**getattr(base, table), **given.get(table, {})} for table in TABLES}
    missing = [key for key in ("name", "title", "dark", "colors", "roles", "syntax") if key not in data]
    if missing:
        raise TomlError(f"{missing[0]} is missing; `base` names a theme to take what is missing from")
    return msgspec.convert(data, ThemeData)


def _check_entry(text: str, name: str, value: Any, base: ThemeData | None) -> None:
    """Raises `TomlError` for an unknown entry, or for an invalid colour or style."""
    if name in TABLES:
        if not isinstance(value, dict):
            raise TomlError(f"{name} must be a table", line_of(text, [name]))
        known = getattr(base, name) if base is not None else None
        for key, entry in value.items():
            problem = _wrong(name, key, entry, known)
            if problem:
                raise TomlError(f"{name}.{key}: {problem}", line_of(text, [name, key]))
        return
    types = {"name": str, "title": str, "dark": bool, "ansi": bool}
    if name not in types:
        known = ", ".join((*types, *TABLES))
        raise TomlError(f"unknown entry {name}; a theme has {known}", line_of(text, [name]))
    if not isinstance(value, types[name]):
        kind = "a text" if types[name] is str else "true or false"
        raise TomlError(f"{name} must be {kind}", line_of(text, [name]))


def _wrong(table: str, key: str, value: Any, known: dict[str, str] | None) -> str:
    """The error of an entry of a table, "" if it is valid; variables may be any of Textual's."""
    if not isinstance(value, str):
        return "must be a text"
    if table != "variables" and known is not None and key not in known:
        return f"there is no such entry; there are {', '.join(known)}"
    if table in ("roles", "syntax"):
        return "" if _STYLE.fullmatch(value.strip()) else f"{value!r} is no style such as 'bold #87afd7 on #1c1c1c'"
    if table == "colors" and not (_HEX.fullmatch(value) or _ANSI.fullmatch(value)):
        return f"{value!r} is not a colour such as '#87afd7' or 'ansi_blue'"
    return ""


def no_such_theme(name: str) -> str:
    """The error message for an unknown theme's name, "" if the theme exists or no name is given."""
    return "" if not name or name in themes() else f"there is no theme {name!r}; there are {', '.join(themes())}"
