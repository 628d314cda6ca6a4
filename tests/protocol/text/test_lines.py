"""Windows over large texts: right lines, right nodes, bounded cost."""

from __future__ import annotations

import time
from array import array

import pytest

from buddy.compiler.protocol.text.lines import (
    MAX_CONSTANT_CHARACTERS,
    MAX_LINE_CHARACTERS,
    IndexedText,
    elide,
    line_count,
    line_ends,
)


@pytest.mark.parametrize("content", ["", "a", "a\n", "a\nb", "\n", "\n\nx\r\n\x0b\n", "é\nü ✓\n\n"])
def test_lines_are_those_between_newlines(content: str) -> None:
    text = IndexedText(content)
    expected = content.split("\n")
    if expected[-1] == "":
        expected.pop()
    assert [text.line(number) for number in range(text.line_count)] == expected
    assert text.line_count == line_count(content)


def test_the_index_is_the_same_however_the_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    content = "".join(f"line {number} {'x' * (number % 7)}\n" for number in range(500)) + "the end"
    whole = line_ends(content)
    monkeypatch.setattr("buddy.compiler.protocol.text.lines._CHUNK_CHARACTERS", 64)
    assert line_ends(content) == whole
    assert whole[-1] == len(content)


def test_a_window_names_the_nodes_of_its_lines_once() -> None:
    text = IndexedText("a\nb\nc\nd\n", array("I", [0, 2, 1]), ((), ("x",), ("x", "y")))
    window = text.window(1, 10)
    assert window.lines == ("b", "c", "d")
    assert [[window.names[node] for node in line] for line in window.nodes] == [["x", "y"], ["x"], []]
    assert sorted(window.names) == ["x", "y"]


@pytest.mark.parametrize(("start", "count", "lines"), [(-5, 1, ("a",)), (1, 99, ("b",)), (7, 3, ()), (0, -1, ())])
def test_a_window_outside_the_text_is_cut_to_it(start: int, count: int, lines: tuple[str, ...]) -> None:
    assert IndexedText("a\nb\n").window(start, count).lines == lines


def test_lines_of_a_node_are_found_and_limited() -> None:
    text = IndexedText("a\nb\nc\n", array("I", [1, 0, 2]), ((), ("x",), ("y", "x")))
    assert text.lines_of_node("x", 10) == ([0, 2], False)
    assert text.lines_of_node("x", 1) == ([0], True)
    assert text.lines_of_node("z", 10) == ([], False)


def test_long_constants_are_cut_in_a_window_and_kept_in_the_text() -> None:
    constant = '"0x' + "AB" * 100_000 + '"'
    content = f"%0 = arith.constant dense<{constant}> : tensor<50000xf32>\n"
    text = IndexedText(content)
    shown = text.window(0, 1).lines[0]
    assert len(shown) < MAX_CONSTANT_CHARACTERS
    assert shown.startswith("%0 = arith.constant dense<")
    assert shown.endswith("more characters)> : tensor<50000xf32>")
    assert text.content == content


def test_short_lines_are_left_alone_and_endless_ones_cut() -> None:
    assert elide("dense<[1, 2, 3]>") == "dense<[1, 2, 3]>"
    assert elide("y" * MAX_LINE_CHARACTERS) == "y" * MAX_LINE_CHARACTERS
    cut = elide("y" * (MAX_LINE_CHARACTERS + 1500))
    assert cut.startswith("y" * MAX_LINE_CHARACTERS)
    assert cut.endswith("(1,500 more characters)")


def test_a_page_of_a_million_lines_takes_milliseconds() -> None:
    content = "".join(f"  %{number} = arith.addf %a, %b : f32\n" for number in range(1_000_000))
    text = IndexedText(content, array("I", [1]) * 1_000_000, ((), ("add",)))
    assert text.line_count == 1_000_000
    start = time.process_time()
    for first in range(0, 1_000_000, 10_000):
        text.window(first, 60)
    assert (time.process_time() - start) / 100 < 0.005


def test_the_own_line_of_a_node_is_the_one_that_comes_from_fewest() -> None:
    content = "func @f {\n  %0 = arith.constant\n  %1 = add\n  %2 = add\n}\n"
    text = IndexedText(content, array("I", [1, 2, 1, 2, 1]), ((), ("mm", "add"), ("add",)))
    assert text.own_line("add") == 3, "not the constant, which comes first"
    assert text.own_line("mm") == 0
    assert text.own_line("relu") == -1
