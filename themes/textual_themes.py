"""Converts the themes to Textual's."""

from __future__ import annotations

from typing import Any

from textual.theme import Theme

from buddy.themes.palette import ThemeData, themes

# Variables in Textual's style sheets that its generator of ANSI themes leaves out.
ANSI_VARIABLES = {
    "ansi-background": "ansi_default",
    "ansi-foreground": "ansi_default",
    "foreground-disabled": "ansi_default",
    "surface-active": "ansi_default",
}


def textual_themes() -> list[Theme]:
    """A Textual theme for each of ours, under the same name."""
    return [_textual_theme(theme) for theme in themes().values()]


def _textual_theme(theme: ThemeData) -> Theme:
    colors: dict[str, Any] = dict(theme.colors)
    variables = {**(ANSI_VARIABLES if theme.ansi else {}), **theme.variables}
    return Theme(name=theme.name, dark=theme.dark, ansi=theme.ansi, variables=variables, **colors)
