"""The themes as data: colours, text roles and IR syntax, from the TOML files of this folder and of the user.

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
# The names of the built-in themes' files.
FILES = ("dark", "light", "high_contrast", "colour_blind", "ansi", "ansi_light")
DEFAULT = "buddy-dark"
# The tables of a theme's file.
TABLES = ("colors", "variables", "roles", "syntax")
# The colours of terminals with sixteen colours; `bright_` before a name is the other half.
COLOUR_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_COLOUR = rf"(?:#[0-9a-fA-F]{{6}}|default|(?:bright_)?(?:{'|'.join(COLOUR_NAMES)}))"
_ANSI = re.compile(rf"ansi_(?:default|(?:bright_)?(?:{'|'.join(COLOUR_NAMES)}))")
_HEX = re.compile(r"#[0-9a-fA-F]{6}")
_STYLE = re.compile(
    rf"(?=\S)(?:(?:bold|dim|italic|underline|reverse|strike)(?:\s+|$))*(?:{_COLOUR}(?:\s+|$))?(?:on\s+{_COLOUR})?"
)


class ThemeData(msgspec.Struct, frozen=True):
    """A theme: `colors` and `variables` are those of a Textual theme, `roles` and `syntax` map names to Rich styles.

    With `ansi`, the theme uses the sixteen colours of the terminal: `ansi_red` in `colors` and `variables`, `red` in
    styles.
    """

    name: str
    title: str
    dark: bool
    colors: dict[str, str]
    roles: dict[str, str]
    syntax: dict[str, str]
    variables: dict[str, str] = {}
    ansi: bool = False


# The themes of the user, by name.
_user_themes: dict[str, ThemeData] = {}


@lru_cache(maxsize=1)
def _built_in() -> dict[str, ThemeData]:
    built_in = [read_theme(FOLDER / f"{file}.toml") for file in FILES]
    return {theme.name: theme for theme in built_in}


def themes() -> dict[str, ThemeData]:
    """All themes by name: the default theme first, the themes of the user last."""
    return {**_built_in(), **_user_themes}


def add_themes(folder: Path) -> list[str]:
    """Replaces the user's themes by those in the TOML files of `folder`. Returns an error message per invalid file."""
    problems = []
    _user_themes.clear()
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
        if theme.name in _built_in() or theme.name in _user_themes:
            problems.append(f"{path}: a theme called {theme.name} already exists: give this one another name")
        else:
            _user_themes[theme.name] = theme
    return problems


def read_theme(path: Path, bases: dict[str, ThemeData] | None = None) -> ThemeData:
    """Reads the theme in the file at `path`.

    If the file has the entry `base`, its other entries replace those of this theme in `bases`. Raises `ValueError` with
    the file and the line, if the file is not a theme.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a theme: {getattr(error, 'strerror', None) or error}") from error
    try:
        return _make_theme(text, parse_toml(text), path.stem, bases or {})
    except TomlError as error:
        where = f"{path}, line {error.line}" if error.line else str(path)
        raise ValueError(f"{where}: not a theme: {error.what}") from error


def _make_theme(text: str, entries: dict[str, Any], stem: str, bases: dict[str, ThemeData]) -> ThemeData:
    """Makes a theme of the entries of the file `text`, whose name without suffix is `stem`. Raises `TomlError`."""
    data = dict(entries)
    base_name = data.pop("base", None)
    base = bases.get(base_name) if isinstance(base_name, str) else None
    if base_name is not None and base is None:
        raise TomlError(f"base: unknown theme {base_name!r}; known: {', '.join(bases)}", line_of(text, ["base"]))
    for name, value in data.items():
        _check_entry(text, name, value, base)
    if base is not None:
        names = {"name": stem, "title": data.get("name", stem)}
        data = {**msgspec.structs.asdict(base), **names, **data}
        data |= {table: {**getattr(base, table), **entries.get(table, {})} for table in TABLES}
    missing = [key for key in ("name", "title", "dark", "colors", "roles", "syntax") if key not in data]
    if missing:
        raise TomlError(f"{missing[0]} is missing: add it, or set `base` to the theme that has the missing entries")
    return msgspec.convert(data, ThemeData)


def _check_entry(text: str, name: str, value: object, base: ThemeData | None) -> None:
    """Raises `TomlError` for an unknown entry, or for an invalid colour or style."""
    if name in TABLES:
        if not isinstance(value, dict):
            raise TomlError(f"{name} must be a table", line_of(text, [name]))
        base_table = getattr(base, name) if base is not None else None
        for key, entry in value.items():
            problem = _table_entry_error(name, key, entry, base_table)
            if problem:
                raise TomlError(f"{name}.{key}: {problem}", line_of(text, [name, key]))
        return
    types = {"name": str, "title": str, "dark": bool, "ansi": bool}
    if name not in types:
        known = ", ".join((*types, *TABLES))
        raise TomlError(f"unknown entry {name}; known: {known}", line_of(text, [name]))
    if not isinstance(value, types[name]):
        kind = "a string" if types[name] is str else "true or false"
        raise TomlError(f"{name} must be {kind}", line_of(text, [name]))


def _table_entry_error(table: str, key: str, value: object, base_table: dict[str, str] | None) -> str:
    """The error message for an entry of a table, "" if it is valid.

    A theme with a base may only have entries of the base's table, except that variables may be any of Textual's.
    """
    if not isinstance(value, str):
        return "must be a string"
    if table != "variables" and base_table is not None and key not in base_table:
        return f"unknown entry; known: {', '.join(base_table)}"
    if table in ("roles", "syntax"):
        return "" if _STYLE.fullmatch(value.strip()) else f"{value!r} is not a style such as 'bold #87afd7 on #1c1c1c'"
    if table == "colors" and not (_HEX.fullmatch(value) or _ANSI.fullmatch(value)):
        return f"{value!r} is not a colour such as '#87afd7' or 'ansi_blue'"
    return ""


def theme_error(name: str) -> str:
    """The error message for an unknown theme, "" if the theme exists or `name` is empty."""
    return "" if not name or name in themes() else f"unknown theme {name!r}; known: {', '.join(themes())}"
