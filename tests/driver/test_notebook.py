"""A compilation in a notebook: HTML that is whole, escaped, and holds what was compiled."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser
from itertools import cycle, islice

import pytest
import torch
from msgspec.structs import replace

from buddy.compiler.driver import notebook
from buddy.compiler.driver.compilation import Compilation
from tests.programs import Line

_VOID = {"br", "hr", "img", "input", "meta", "link"}


class Outline(HTMLParser):
    """Raises `AssertionError` where tags do not close what they open; collects text, summaries, tags, cells of rows."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words: list[str] = []
        self.summaries: list[str] = []
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.open and self.open[-1] == "summary":
            self.summaries.append(data)
        if "td" in self.open:
            self.rows[-1][-1] += data


def outline(html: str) -> Outline:
    found = Outline()
    found.feed(html)
    found.close()
    assert found.open == []
    return found


@pytest.fixture(scope="module")
def line() -> Line:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ y, -1).relu()

    return Line(f, torch.randn(4, 6), torch.randn(6, 5))


@pytest.fixture(scope="module")
def compilation(line: Line) -> Compilation:
    return line.compile()


def test_it_shows_graph_and_stages(compilation: Compilation) -> None:
    html = compilation._repr_html_()
    found = outline(html)
    text = "".join(found.words)
    assert f"{len(compilation.stages)} stages" in found.summaries
    assert f"{len(compilation.assignments)} nodes" in found.summaries
    assert all(assignment.node in text for assignment in compilation.assignments)
    assert all(stage.name in text for stage in compilation.stages)
    assert {stage.name for stage in compilation.stages if stage.changed} <= set(found.summaries)
    assert "linalg.contract" in text


# Milliseconds, and how they are shown.
TIMES = {0.04: "0.0 ms", 0.26: "0.3 ms", 12.34: "12.3 ms", 999.9: "999.9 ms", 1000.0: "1.00 s", 61234.0: "61.23 s"}


def test_it_shows_the_time_of_each_stage_and_of_the_compilation(compilation: Compilation) -> None:
    times = list(islice(cycle(TIMES), len(compilation.stages)))
    stages = tuple(replace(stage, milliseconds=time) for stage, time in zip(compilation.stages, times, strict=True))
    found = outline(dataclasses.replace(compilation, stages=stages, seconds=2.5)._repr_html_())
    # Stage, phase, time, ops, change: the other tables have fewer columns.
    rows = [row for row in found.rows if len(row) == 5]
    assert all(row[0].startswith(stage.name) for row, stage in zip(rows, stages, strict=True))
    assert [row[2] for row in rows] == [TIMES[time] for time in times]
    assert "".join(found.words).startswith("compiled in 2.50 s")


def test_it_needs_nothing_but_itself(compilation: Compilation) -> None:
    found = outline(compilation._repr_html_())
    assert not found.tags & {"script", "style", "link", "img", "iframe"}
    assert found.attributes <= {"style", "open"}


def test_what_comes_from_the_program_is_escaped(line: Line) -> None:
    recipe_text = "<script>alert('x')</script> & co"
    made = line.compile()
    spoiled = dataclasses.replace(
        made,
        remarks=((recipe_text,) * 3,),
        texts=tuple(type(text)(recipe_text) for text in made.texts),
    )
    found = outline(spoiled._repr_html_())
    assert "script" not in found.tags
    assert any(recipe_text in word for word in found.words)


def test_long_texts_and_tables_are_cut(compilation: Compilation) -> None:
    lines = notebook.MAX_LINES + 7
    found = outline(notebook._text("x" * 1000 + "\n" + "y\n" * (lines - 1)))
    assert "… 7 more lines" in "".join(found.words)
    assert max(map(len, "".join(found.words).splitlines())) == notebook.MAX_CHARACTERS + 1
    rows = [(str(i),) for i in range(notebook.MAX_ROWS + 3)]
    assert "… 3 more" in "".join(outline(notebook._table(("n",), rows)).words)


def test_a_compilation_prints_without_its_texts(compilation: Compilation) -> None:
    assert "func.func @" not in repr(compilation)
