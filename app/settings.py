"""The user's settings: `config.toml` in the user's configuration folder. No Textual.

theme = "buddy-light"        # buddy-dark, buddy-light, buddy-high-contrast
auto_run = true              # run after each edit
[keys]                       # other keys for actions, by the ids that `buddy.app.actions` gives
"graph.toggle" = "x"
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from buddy.themes.toml import parse_toml


class Settings(msgspec.Struct, frozen=True):
    theme: str = ""
    auto_run: bool = False
    keys: dict[str, str] = {}


def settings_path() -> Path:
    """Where the settings are; `BUDDY_TUI_CONFIG` names another file."""
    import platformdirs

    given = os.environ.get("BUDDY_TUI_CONFIG")
    return Path(given) if given else platformdirs.user_config_path("buddy-tui") / "config.toml"


def read_settings(path: Path) -> tuple[Settings, str]:
    """The settings in the file at `path`, and what is wrong with it ("" where nothing is, or there is no file)."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return Settings(), ""
    except OSError as error:
        return Settings(), f"{path}: {error.strerror}"
    try:
        return msgspec.convert(parse_toml(text), Settings, strict=True), ""
    except (msgspec.ValidationError, ValueError) as error:
        return Settings(), f"{path} is not used: {error}"
