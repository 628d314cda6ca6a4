"""The themes: complete, readable, and made of colours that a 256-colour terminal has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from buddy.themes.lexers import SYNTAX
from buddy.themes.palette import DEFAULT, ThemeData, read_theme, themes
from buddy.themes.textual_themes import textual_themes

STEPS = (0x00, 0x5F, 0x87, 0xAF, 0xD7, 0xFF)
XTERM = {(r, g, b) for r in STEPS for g in STEPS for b in STEPS} | {(8 + 10 * k,) * 3 for k in range(24)}
PARAMETERS = pytest.mark.parametrize("theme", themes().values(), ids=lambda theme: theme.name)


def colours(theme: ThemeData) -> list[str]:
    tables = (theme.colors, theme.variables, theme.roles, theme.syntax)
    return [colour for table in tables for value in table.values() for colour in re.findall(r"#\w{6}", value)]


def rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [value / 255 for value in rgb(colour)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_there_is_a_dark_a_light_and_a_high_contrast_theme() -> None:
    assert list(themes()) == ["buddy-dark", "buddy-light", "buddy-high-contrast"]
    assert themes()[DEFAULT].dark


@PARAMETERS
def test_every_colour_is_in_the_xterm_palette(theme: ThemeData) -> None:
    assert [colour for colour in colours(theme) if rgb(colour) not in XTERM] == []


@PARAMETERS
def test_every_theme_styles_the_same_roles_and_all_syntax(theme: ThemeData) -> None:
    assert theme.roles.keys() == themes()[DEFAULT].roles.keys()
    assert set(SYNTAX.values()) == theme.syntax.keys()


@PARAMETERS
def test_text_and_syntax_stand_out_from_the_background(theme: ThemeData) -> None:
    least = 7.0 if theme.name == "buddy-high-contrast" else 3.0
    styles = {**theme.syntax, "text": theme.roles["text"], "dim": theme.roles["dim"], "bad": theme.roles["bad"]}
    faint = {
        name: round(contrast(style.split()[-1], theme.colors["background"]), 1)
        for name, style in styles.items()
        if contrast(style.split()[-1], theme.colors["background"]) < least
    }
    assert faint == {}


def test_textual_accepts_all_of_them() -> None:
    assert [theme.to_color_system().generate()["background"].lower() for theme in textual_themes()] == [
        theme.colors["background"] for theme in themes().values()
    ]


def test_a_file_that_is_not_a_theme_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text("name = 3")
    with pytest.raises(ValueError, match=r"odd\.toml"):
        read_theme(path)
