"""Converts the themes of this folder and of the user to Textual themes."""

from __future__ import annotations

from typing import Any

from textual.theme import Theme

from buddy.themes.palette import ThemeData, themes

# Variables that Textual's style sheets use and that Textual does not define for ANSI themes.
ANSI_VARIABLES = {
    "ansi-background": "ansi_default",
    "ansi-foreground": "ansi_default",
    "foreground-disabled": "ansi_default",
    "surface-active": "ansi_default",
}


def textual_themes() -> list[Theme]:
    """The Textual theme of each theme, with the same name."""
    return [_textual_theme(theme) for theme in themes().values()]


def _textual_theme(theme: ThemeData) -> Theme:
    colors: dict[str, Any] = dict(theme.colors)
    variables = {**(ANSI_VARIABLES if theme.ansi else {}), **theme.variables}
    return Theme(name=theme.name, dark=theme.dark, ansi=theme.ansi, variables=variables, **colors)
