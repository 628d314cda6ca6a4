"""The nodes of Python lines: own ones and called ones, colours, times, and why a line has none."""

from __future__ import annotations

import pytest

from buddy.app.reports.python_lines import (
    N_COLOURS,
    LineTimes,
    PythonLines,
    PythonLocation,
    facts_text,
    line_facts,
    missing_nodes_text,
    parse_location,
)
from buddy.compiler.protocol import NodeRow, NodeTime
from buddy.compiler.protocol.provenance import PythonStructure
from buddy.compiler.protocol.text.structure import python_structure

CODE = """import torch


def layer(x):
    y = x.mm(w)
    return y.exp()


def model(x):
    if flag:
        x = x.neg()
    for _ in range(2):
        x = layer(
            x
        )
    return x
"""


def node(name: str, line: int, callers: tuple[int, ...] = (), path: str = "/m.py") -> NodeRow:
    return NodeRow(
        0, name, "call_function", name, name, "", "", location=f"{path}:{line}" if line else "", callers=callers
    )


ROWS = (
    node("w", 0), node("mm.0", 5, (0,)), node("exp.0", 6, (0,)), node("mm.1", 5, (0,)), node("exp.1", 6, (0,)),
    node("add", 3, (1,), "/other.py"),
)  # fmt: skip
LINES = PythonLines(ROWS, ("/m.py:13", "/m.py:6"))


def at(line: int, path: str = "/m.py") -> PythonLocation:
    return PythonLocation(path, line - 1)


def test_a_line_has_the_nodes_that_it_computes_or_calls() -> None:
    assert LINES.location_of("mm.1") == at(5)
    assert LINES.location_of("w") is None
    assert LINES.nodes_of(at(5)) == ("mm.0", "mm.1")
    assert LINES.nodes_of(at(13)) == ("mm.0", "exp.0", "mm.1", "exp.1")
    assert LINES.nodes_of(at(6)) == ("exp.0", "exp.1"), "own nodes, not those that the line calls"
    assert LINES.called_at(at(6)) == ("add",)
    assert LINES.paths == ["/m.py", "/other.py"]


@pytest.mark.parametrize("text", ["", "m.py", ":3", "m.py:x", "m.py:"])
def test_other_texts_are_no_places(text: str) -> None:
    assert parse_location(text) is None


def test_a_colour_belongs_to_a_line() -> None:
    assert LINES.colour_of(("w", "mm.1")) == LINES.colour_of(("mm.0",)) == LINES.colour_at(at(5)) == "line-1"
    assert LINES.colour_at(at(6)) == "line-2"
    assert LINES.colour_at(at(13)) == LINES.colour_of(("w",)) == LINES.colour_of(()) == ""
    many = PythonLines([node(str(line), line) for line in range(1, N_COLOURS + 2)])
    assert many.colour_at(at(N_COLOURS + 1)) == many.colour_at(at(1))


def test_facts_of_lines() -> None:
    lowerings = {"mm.0": "linalg", "mm.1": "linalg", "exp.0": "linalg", "exp.1": "eager"}
    times = LineTimes(
        {
            "mm.0": NodeTime("mm.0", 0.003), "mm.1": NodeTime("mm.1", 0.001), "exp.0": NodeTime("exp.0", into="mm.0"),
            "exp.1": NodeTime("exp.1", into="mm.1"),
        },
        0.008,
    )  # fmt: skip
    products, exps, call, none = (line_facts(LINES, at(line), lowerings, times) for line in (5, 6, 13, 1))
    assert [facts.mark for facts in (products, exps, call, none)] == ["x", "e", ":", " "]
    assert (products.seconds, products.share, products.time_text, products.share_text) == (0.004, 0.5, "4.000", "50%")
    assert (call.seconds, call.n_eager) == (0.004, 1)
    assert (exps.is_fused, exps.time_text, exps.share_text) == (True, "fused", "")
    assert none.time_text == none.share_text == ""
    assert facts_text(products, "mm") == "mm (+1), compiled, 4.000 ms, 50% of the run"
    assert facts_text(exps, "exp") == ("exp (+1), 1 in eager, its time is part of other lines, into which it is fused")
    assert facts_text(call, "mm") == "calls functions with 4 nodes, 1 in eager, 4.000 ms, 50% of the run"
    assert line_facts(LINES, at(5), lowerings, None).time_text == ""


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (1, "an import"),
        (2, "an empty line"),
        (4, "the header of layer"),
        (10, "no operation on tensors"),
        (11, "this `if` (line 10): not executed"),
        (14, "part of the statement at line 13"),
        (16, "no operation on tensors"),
    ],
)
def test_a_line_without_nodes_has_a_reason(line: int, reason: str) -> None:
    assert reason in missing_nodes_text(at(line), python_structure(CODE), LINES, {})


def test_other_graphs_and_code_without_structure_are_named() -> None:
    other = {"forward #2": PythonLines([node("x", 11)])}
    assert "its nodes are in the graph forward #2" in missing_nodes_text(at(11), python_structure(CODE), LINES, other)
    assert missing_nodes_text(at(11), PythonStructure(), LINES, {}) == "no node of this graph comes from this line"
    no_nodes = missing_nodes_text(at(5), python_structure(CODE), PythonLines(), {})
    assert no_nodes.startswith("no node of this graph comes from layer: not called in this capture, or without ")
