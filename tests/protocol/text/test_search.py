"""Search over stage texts."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from buddy.compiler.protocol.text.lines import IndexedText
from buddy.compiler.protocol.text.store import PatternError, check_pattern, search, search_each, stays_within_lines

TEXT = IndexedText("func @Main\n  %0 = add\n  %1 = mul %0\n}\n  return %1")


@pytest.mark.parametrize(
    ("pattern", "options", "lines"),
    [
        ("%1", {}, [2, 4]),
        ("main", {}, []),
        ("MAIN", {"ignore_case": True}, [0]),
        ("%0 = add.", {}, []),
        ("^  %[01] =", {"regex": True}, [1, 2]),
        ("ADD$", {"regex": True, "ignore_case": True}, [1]),
        (r"add\s+%1", {"regex": True}, []),
        ("", {}, []),
    ],
)
def test_lines_that_hold_the_pattern(pattern: str, options: dict[str, bool], lines: list[int]) -> None:
    assert search(TEXT, pattern, **options) == (lines, False)


def test_the_limit_says_that_there_are_more() -> None:
    assert search(TEXT, "%", limit=2) == ([1, 2], True)
    assert search(TEXT, "%", limit=3) == ([1, 2, 4], False)


def test_a_pattern_that_is_none_says_where_it_goes_wrong() -> None:
    with pytest.raises(PatternError, match="unterminated subpattern at position 2"):
        search(TEXT, "a (b", regex=True)


def test_line_numbers_do_not_depend_on_how_the_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    content = "\n".join(f"line {number * 37 % 1000}" for number in range(1000))
    expected = [number for number, line in enumerate(content.split("\n")) if re.search("7[0-9]$", line)]
    monkeypatch.setattr("buddy.compiler.protocol.text.lines._CHUNK_CHARACTERS", 100)
    assert search(IndexedText(content), "7[0-9]$", regex=True)[0] == expected


def test_equal_texts_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    whole = IndexedText.chunks

    def counted(text: IndexedText) -> Iterator[tuple[int, str]]:
        searched.append(text.content)
        return whole(text)

    monkeypatch.setattr(IndexedText, "chunks", counted)
    first, other = "a\nb %1\n", "b %1\n"
    assert search_each([first, other, first], "%1") == [([1], False), ([0], False), ([1], False)]
    assert searched == [first, other]


@pytest.mark.parametrize("pattern", ["größe", "GRÖSSE", "ß"])
def test_case_beyond_ascii_is_that_of_single_characters(pattern: str) -> None:
    text = "die Größe\nder %1\nDIE GRÖSSE\n"
    expected = [number for number, line in enumerate(text.split("\n")) if re.search(pattern, line, re.IGNORECASE)]
    assert search(IndexedText(text), pattern, ignore_case=True)[0] == expected


def test_the_end_of_the_text_is_no_line_of_its_own() -> None:
    assert search(IndexedText("a\n\nb\n"), "^$", regex=True)[0] == [1]


@pytest.mark.parametrize("pattern", ["a{99999999999}", "(" * 5000, "(" * 5000 + ")" * 5000, "[", "x" * 500 + "("])
def test_a_pattern_that_cannot_be_read_is_told_briefly(pattern: str) -> None:
    with pytest.raises(PatternError, match="pattern") as error:
        check_pattern(pattern)
    assert len(str(error.value)) < 300


LINES = ("  %1 = llvm.load %0 : f32", "", "a b", "ab]", "llvm.store f32", "}", "x" * 40, "\tvalue\t", "é f32")
TAME = (
    r"llvm\.(load|store) .*f32",
    "^", "$", "^$", "x*", r"\bvalue", "[a-z]+]", "(?:a|b) ?b", r"\S+$", "^}", ".", "f32$|^a",
    "x{3,9}", r"\.", "[!-~]b",
)  # fmt: skip
WILD = (
    r"\s",
    "[^a]b",
    r"(?<!\s)a",
    r"\Aa",
    "(?s)a.b",
    r"a\n",
    r"\Wb",
    "x*+",
    "[\t-z]",
    r"\x0a",
    r"[\t-~]",
    "(a)\\1",
    "é",
)


@pytest.mark.parametrize("pattern", TAME)
def test_a_pattern_that_keeps_to_lines_finds_what_it_finds_line_by_line(pattern: str) -> None:
    assert stays_within_lines(pattern)
    for seed in range(30):
        content = "\n".join(random.Random(seed).choices(LINES, k=seed)) + "\n" * (seed % 3)
        found, more = search(IndexedText(content), pattern, regex=True)
        lines = [
            number for number, line in enumerate(content.removesuffix("\n").split("\n")) if re.search(pattern, line)
        ]
        assert (found, more) == (lines if content else [], False)


@pytest.mark.parametrize("pattern", WILD)
def test_a_pattern_that_may_see_a_line_s_end_is_matched_line_by_line(pattern: str) -> None:
    assert not stays_within_lines(pattern)
