"""The themes as Textual knows them."""

from __future__ import annotations

from typing import Any

from textual.theme import Theme

from buddy.themes.palette import ThemeData, themes


def textual_themes() -> list[Theme]:
    """A Textual theme for each of ours, under the same name."""
    return [_textual_theme(theme) for theme in themes().values()]


def _textual_theme(theme: ThemeData) -> Theme:
    colors: dict[str, Any] = dict(theme.colors)
    return Theme(name=theme.name, dark=theme.dark, variables=dict(theme.variables), **colors)
