"""The themes: complete, readable, and made of colours that a 256-colour terminal has."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from buddy.app.widgets.look import look_of
from buddy.themes.lexers import SYNTAX
from buddy.themes.palette import DEFAULT, ThemeData, add_themes, read_theme, themes
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


def test_there_is_a_theme_for_every_eye_and_every_terminal() -> None:
    names = ["buddy-dark", "buddy-light", "buddy-high-contrast", "buddy-colour-blind", "buddy-ansi", "buddy-ansi-light"]
    assert list(themes()) == names
    assert themes()[DEFAULT].dark


# What simulates each kind of colour blindness in linear RGB, at full severity: Machado, Oliveira and Fernandes,
# "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009), table 1.
SIMULATIONS = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
# Two colours at this distance in CIELAB are not taken for each other in text; about 2 is the least that is seen.
TOLD_APART = 25.0
PAIRS = [("added", "removed"), ("added-word", "removed-word"), ("ok", "bad"), ("ok", "warn"), ("accent", "linked")]


def lab(linear: list[float]) -> tuple[float, float, float]:
    """CIELAB of linear sRGB, with the white point D65."""
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    xyz = [sum(a * b for a, b in zip(row, linear, strict=True)) / w for row, w in zip(rows, white, strict=True)]
    x, y, z = (value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def seen(colour: str, kind: str) -> tuple[float, float, float]:
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in rgb(colour))]
    rows = SIMULATIONS[kind]
    return lab([min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear, strict=True)))) for row in rows])


def distance(one: str, other: str, kind: str) -> float:
    return math.dist(seen(one, kind), seen(other, kind))


@pytest.mark.parametrize("kind", SIMULATIONS)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_colour_blind_eyes_tell_what_counts_apart(pair: tuple[str, str], kind: str) -> None:
    roles = themes()["buddy-colour-blind"].roles
    one, other = (roles[role].split()[-1] for role in pair)
    assert distance(one, other, kind) > TOLD_APART


def test_the_simulation_would_find_red_and_green_alike() -> None:
    assert distance("#5f8700", "#875f00", "deuteranopia") < TOLD_APART


@pytest.mark.parametrize("name", ["buddy-ansi", "buddy-ansi-light"])
def test_the_themes_of_16_colours_name_no_other(name: str) -> None:
    assert themes()[name].ansi
    assert colours(themes()[name]) == []


@PARAMETERS
def test_every_colour_is_in_the_xterm_palette(theme: ThemeData) -> None:
    assert [colour for colour in colours(theme) if rgb(colour) not in XTERM] == []


@PARAMETERS
def test_every_theme_styles_the_same_roles_and_all_syntax(theme: ThemeData) -> None:
    assert theme.roles.keys() == themes()[DEFAULT].roles.keys()
    assert set(SYNTAX.values()) == theme.syntax.keys()


# The least contrast of text and of graphics in WCAG 2, level AA, and of text in level AAA.
AA, AA_GRAPHICS, AAA = 4.5, 3.0, 7.0
# What is disabled, for which WCAG has no limit, and bars and borders, which are graphics.
GRAPHICS = ("faint", "bar", "bar-other")
# The names of backgrounds on which any text may be drawn.
BACKGROUNDS = ("", "panel", "cursor", "cursor-blurred", "linked-line")


def drawn_colours(theme: ThemeData, role: str, background: str) -> tuple[str, str]:
    """The colours of a text of that role, and of its background, as the panes draw it."""
    (segment, *_) = look_of(theme.name).strip([("text", role)], 4, background)
    assert segment.style is not None
    assert segment.style.color is not None
    assert segment.style.bgcolor is not None
    return segment.style.color.get_truecolor().hex, segment.style.bgcolor.get_truecolor().hex


@PARAMETERS
def test_text_has_the_contrast_of_wcag_on_every_background(theme: ThemeData) -> None:
    """All texts of panes have level AA, also in the row of the cursor. The high-contrast theme has AAA elsewhere."""
    if theme.ansi:
        pytest.skip("the terminal's own colours")
    faint = {}
    for background in BACKGROUNDS:
        for role in (*theme.roles, *(f"syntax:{name}" for name in theme.syntax)):
            if role in BACKGROUNDS or (role == "faint" and background):
                continue
            found = contrast(*drawn_colours(theme, role, background))
            text = AAA if theme.name == "buddy-high-contrast" and not background else AA
            if found < (AA_GRAPHICS if role in GRAPHICS else text):
                faint[role, background] = round(found, 2)
    assert faint == {}


def test_textual_accepts_all_of_them() -> None:
    made = {theme.name: theme.to_color_system().generate()["background"].lower() for theme in textual_themes()}
    assert made == {theme.name: theme.colors["background"] for theme in themes().values()}


def test_style_sheets_find_every_variable_in_every_theme() -> None:
    made = {theme.name: set(theme.to_color_system().generate()) for theme in textual_themes()}
    assert {name: made[DEFAULT] - found for name, found in made.items() if made[DEFAULT] - found} == {}


def test_a_file_that_is_not_a_theme_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text("name = 3")
    with pytest.raises(ValueError, match=r"odd\.toml"):
        read_theme(path)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    add_themes(tmp_path / "none")


def test_the_user_s_own_theme_says_only_what_is_different(folder: Path) -> None:
    (folder / "mine.toml").write_text(
        'base = "buddy-light"\n[roles]\nadded = "bold blue"\n[syntax]\ntype = "#000087"\n'
    )
    assert add_themes(folder) == []
    mine, light = themes()["mine"], themes()["buddy-light"]
    assert (mine.title, mine.dark, mine.roles["added"], mine.roles["text"]) == (
        "mine", False, "bold blue", light.roles["text"],
    )  # fmt: skip
    assert look_of("mine").style("syntax:type").color.name == "#000087"  # type: ignore[union-attr]
    assert "mine" in [theme.name for theme in textual_themes()]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ('base = "buddy-dark"\n\n[roles]\ntext = "bolt red"\n', 4, "roles.text"),
        ('base = "buddy-dark"\n[roles]\ntexxt = "red"\n', 3, "unknown entry"),
        ('base = "nothing"\n', 1, "buddy-dark"),
        ('base = "buddy-dark"\n[colors]\nprimary = 3\n', 3, "must be a string"),
        ('base = "buddy-dark"\n[colors]\nprimary = "rgb(1,2)"\n', 3, "not a colour"),
        ('base = "buddy-dark"\ndark = "yes"\n', 2, "true or false"),
        ('base = "buddy-dark"\ncolours = 3\n', 2, "colours"),
        ('base = "buddy-dark"\n[roles\n', 2, ""),
        ('name = "x"\n', 0, "title is missing"),
    ],
)
def test_a_broken_theme_is_named_with_its_line_and_the_others_are_there(
    folder: Path, text: str, line: int, what: str
) -> None:
    (folder / "broken.toml").write_text(text)
    (folder / "whole.toml").write_text('base = "buddy-dark"\n')
    (problem,) = add_themes(folder)
    assert str(folder / "broken.toml") in problem
    assert what in problem
    assert (f", line {line}:" in problem) == bool(line)
    assert "whole" in themes()
    assert "broken" not in themes()


def test_bytes_that_are_no_text_are_no_theme(folder: Path) -> None:
    (folder / "odd.toml").write_bytes(b"\xff\xfe")
    assert "odd.toml" in add_themes(folder)[0]
