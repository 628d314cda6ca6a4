"""The text of what a training graph saves and recomputes."""

from __future__ import annotations

import msgspec
import pytest

from buddy.app.reports.nodes import role_text, training_memory, training_summary
from buddy.app.reports.run_report import lowering_table
from buddy.compiler.protocol import Assignment, GraphInfo, NodeRow


def row(index: int, name: str, **facts: object) -> NodeRow:
    values = {"shape": "3x16", **facts}
    return NodeRow(index, f"{name}.0", "call_function", name, f"aten.{name}.default", "()", "{}", **values)  # type: ignore[arg-type]


ROWS = (
    row(0, "mm", bytes=192, training="saved"),
    row(1, "gelu", captured_bytes=1500, shape="s0x16", training="saved"),
    row(2, "sin", bytes=96, training="recomputed"),
    row(3, "t", bytes=192, training="viewed"),
    row(4, "weight", bytes=4000, training="reread"),
    row(5, "sum", bytes=4),
)


def test_the_summary_gets_shorter_with_the_width() -> None:
    memory = training_memory(GraphInfo("f", ROWS))
    assert memory is not None
    assert training_summary(memory) == (
        "2 tensors saved for backward, ~1.69 kB; 1 op recomputed, 96 B; 1 input read again without a copy, 4 kB"
    )
    assert training_summary(memory, 60) == "2 tensors saved, ~1.69 kB; 1 op recomputed, 96 B"
    assert training_summary(memory, 40) == "saved ~1.69 kB, recomputed 96 B"
    assert memory.as_json()["saved"] == {"count": 2, "bytes": 1692, "of_captured_sizes": 1, "unknown": 0}


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([row(0, "nonzero", shape="u0x2", training="saved")], "? B"),
        ([row(0, "nonzero", shape="u0x2", training="saved"), ROWS[0]], ">192 B"),
        ([row(0, "empty", shape="0x2", training="saved"), ROWS[0]], "192 B"),
    ],
)
def test_sizes_that_are_unknown_are_not_shown_as_zero(rows: list[NodeRow], text: str) -> None:
    memory = training_memory(GraphInfo("f", tuple(rows)))
    assert memory is not None
    assert memory.saved.text == text


def test_the_details_of_a_node_name_its_role_and_bytes() -> None:
    assert role_text(ROWS[0]) == "saved 192 B: kept in memory for the backward graph"
    assert role_text(ROWS[1]).startswith("saved ~1.5 kB: ")
    assert role_text(ROWS[3]) == "viewed: a view of the forward graph, made again without a copy"
    assert role_text(ROWS[5]) == ""


def test_tables_of_other_graphs_have_no_roles() -> None:
    assignments = [Assignment("sum.0", "linalg")]
    assert training_memory(GraphInfo("f", ROWS[5:])) is None
    assert "training" not in lowering_table(GraphInfo("f", ROWS[5:]), assignments)
    text = lowering_table(GraphInfo("f", ROWS), [Assignment("mm.0", "linalg"), *assignments])
    assert text.startswith("# 2 tensors saved for backward")
    assert ["mm.0", "aten.mm.default", "linalg", "saved", "192", "B"] in [line.split() for line in text.splitlines()]


def test_rows_of_earlier_versions_have_no_role() -> None:
    plain = NodeRow(0, "mm.0", "call_function", "mm", "aten.mm.default", "()", "{}")
    keys = ("index", "stable", "opcode", "name", "target", "args", "kwargs")
    old = msgspec.msgpack.encode({key: getattr(plain, key) for key in keys})
    assert msgspec.msgpack.decode(old, type=NodeRow) == plain
