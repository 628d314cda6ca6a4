"""Options of our passes: values of the defaults' types, or an error that says what an option takes."""

from __future__ import annotations

import pytest

from buddy.compiler.protocol.recipe import OptionValue, typed_options

KNOWN: dict[str, OptionValue] = {"rows": 0, "arena": True, "winograd": "auto", "share": 0.5}


@pytest.mark.parametrize(
    ("key", "value", "typed"),
    [("rows", "7", 7), ("rows", 2.0, 2), ("arena", "false", False), ("arena", 0, False), ("winograd", 4, "4")],
)
def test_what_is_spelled_otherwise_means_the_same(key: str, value: OptionValue, typed: OptionValue) -> None:
    found = typed_options("p", KNOWN, {key: value})[key]
    assert (found, type(found)) == (typed, type(typed))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rows", "x", "p: rows is a whole number, not 'x'"),
        ("rows", 2.5, "p: rows is a whole number, not 2.5"),
        ("arena", "junk", "p: arena is true or false, not 'junk'"),
        ("arena", 2, "p: arena is true or false, not 2"),
        ("share", "much", "p: share is a number, not 'much'"),
        ("row", 1, "p has no option 'row'; it has rows, arena, winograd, share"),
    ],
)
def test_what_an_option_does_not_take_is_told(key: str, value: OptionValue, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        typed_options("p", KNOWN, {key: value})


def test_a_text_option_keeps_its_letters_and_a_switch_is_spelt_as_mlir_does() -> None:
    assert typed_options("p", {"kind": ""}, {"kind": "Up"}) == {"kind": "Up"}
    assert typed_options("p", {"kind": ""}, {"kind": True}) == {"kind": "true"}


def test_a_pass_without_options_says_so() -> None:
    with pytest.raises(ValueError, match=r"^p has no option 'size'; it has none$"):
        typed_options("p", {}, {"size": 1})
