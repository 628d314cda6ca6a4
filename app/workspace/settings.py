"""The user's settings: `config.toml` in the configuration folder, and the themes next to it.

Does not import Textual.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from buddy.app.actions import key_map
from buddy.app.workspace.inputs import read_file
from buddy.compiler.protocol import compatibility
from buddy.compiler.protocol.compatibility import ACTION_IDS, with_new_names
from buddy.themes.palette import add_themes, theme_error
from buddy.themes.toml import TomlError, line_of, parse_toml

# The path of the wrong value at the end of a message of msgspec.
_PATH_SUFFIX = re.compile(r" - at `\$\.?(.*?)`$")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of `config.toml`; `FIELD_SUMMARIES` describes them.

    `keys` maps the id of an action to the keys that replace its default keys; an empty value removes the keys.
    """

    theme: str = ""
    auto_run: bool = False
    keys: dict[str, str | list[str]] = {}
    bell_after: float = 10.0
    equal_nan: bool = False
    memory: float | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] = 120.0
    reopen: bool = True


FIELD_SUMMARIES = {
    "theme": "name of the colour theme",
    "auto_run": "run the program after each edit, not only on request",
    "bell_after": "ring the terminal bell when a job of at least this many seconds ends; 0: never",
    "memory": "memory limit of each engine process in GiB; 0: no limit; default: 90 % of the machine's memory",
    "equal_nan": "accept NaN where eager also has NaN when outputs are compared",
    "timeout": "time limit of a run in seconds",
    "reopen": "show the graphs of the last session until the script has run again",
    "keys": "keys of actions, by action id",
}


def settings_path() -> Path:
    """Returns the path of the settings file; `BUDDY_TUI_CONFIG` overrides it."""
    import platformdirs

    override = os.environ.get("BUDDY_TUI_CONFIG")
    return Path(override) if override else platformdirs.user_config_path("buddy-tui") / "config.toml"


def themes_folder(path: Path) -> Path:
    """Returns the folder of user themes, next to the settings file."""
    return path.parent / "themes"


def read_settings(path: Path) -> tuple[Settings, str]:
    """Returns the settings in the file at `path`, and an error, empty if the file is valid or does not exist."""
    try:
        text = read_file(path)
    except FileNotFoundError:
        return Settings(), ""
    except (OSError, ValueError) as error:
        return Settings(), f"{path} is ignored: {getattr(error, 'strerror', None) or error}"
    try:
        return _parse_settings(text), ""
    except TomlError as error:
        where = f"{path}, line {error.line}" if error.line else str(path)
        return Settings(), f"{where}: {error.what}; the defaults are used"


def load_settings(path: Path) -> tuple[Settings, list[str]]:
    """Loads and applies the settings and the user themes. Returns the settings and all errors."""
    settings, problem = read_settings(path)
    problems = [problem, *add_themes(themes_folder(path))]
    unknown_theme = theme_error(settings.theme)
    if unknown_theme:
        problems.append(f"{path}: {unknown_theme}; the default is used")
    return settings, [problem for problem in problems if problem]


def _parse_settings(text: str) -> Settings:
    """Parses the text of a settings file. Raises `TomlError` for invalid TOML, settings or key bindings."""
    fields = parse_toml(text)
    try:
        compatibility.SETTINGS.check(fields.pop(compatibility.FORMAT, 1), fields.pop(compatibility.WRITER, ""))
    except compatibility.LaterFormatError as error:
        raise TomlError(str(error), line_of(text, [compatibility.FORMAT])) from error
    try:
        settings = msgspec.convert(fields, Settings, strict=True)
    except msgspec.ValidationError as error:
        raise _as_toml_error(str(error), text, fields) from error
    for name, keys in settings.keys.items():
        problem = key_map.key_error(ACTION_IDS.get(name, name), keys)
        if problem:
            raise TomlError(f"keys.{name}: {problem}", line_of(text, ["keys", name]))
    return msgspec.structs.replace(settings, keys=with_new_names(settings.keys, ACTION_IDS, "settings: action"))


def _as_toml_error(message: str, text: str, fields: Mapping[str, Any]) -> TomlError:
    """Returns the error for `message`, by which msgspec rejects `fields`, with the line of the entry in `text`."""
    path_match = _PATH_SUFFIX.search(message)
    problem = _PATH_SUFFIX.sub("", message)
    path = [part for part in (path_match[1] if path_match else "").split(".") if part]
    unknown = re.search(r"unknown field `(.*)`", problem)
    if unknown:
        return TomlError(
            f"unknown setting {unknown[1]!r}; known: {', '.join(FIELD_SUMMARIES)}", line_of(text, [unknown[1]])
        )
    if path and path[0].startswith("keys["):
        # msgspec does not name the key of an invalid value.
        invalid = [key for key, value in fields["keys"].items() if not _is_key_binding(value)]
        path = ["keys", invalid[0]] if invalid else ["keys"]
    name = ".".join(path)
    return TomlError(f"{name}: {problem[:1].lower()}{problem[1:]}", line_of(text, path) if path else 0)


def _is_key_binding(value: object) -> bool:
    """Whether `value` has the type of an entry of `keys`: a string or a list of strings."""
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(key, str) for key in value))
