"""The table of what is not compiled: rows, their order and cost, the summary, text and JSON."""

from __future__ import annotations

import msgspec

from buddy.app.reports.fallbacks import (
    BREAK_FIX,
    CHOICE_FIX,
    EAGER_FIX,
    GraphFacts,
    fallback_rows,
    fallbacks_json,
    fallbacks_summary,
    fallbacks_text,
)
from buddy.compiler import protocol as p
from buddy.compiler.ops.reasons import NO_LOWERING

TIMING = p.Timing(0.1, 0.09, 0.11, 10)
ROWS = tuple(
    p.NodeRow(i, stable, "call_function", name, "aten", "", "", bytes=size, location=f"/m/net.py:{i}")
    for i, (stable, name, size) in enumerate(
        [("enc/svd.0", "svd", 10), ("enc/svd.1", "svd_1", 4000), ("scale.0", "scale", 20), ("add.0", "add", 8)]
    )
)
INFO = p.GraphInfo(
    "Net", ROWS, break_reason="Failed to trace", break_line="/m/net.py:9", break_fix="use logging",
    guards=(p.Guard("n == 2", "/m/net.py:1"), p.Guard("x is float32 [4, *]")),
)  # fmt: skip
ASSIGNMENTS = (
    p.Assignment("enc/svd.0", "eager", reason=p.BY_HAND),
    p.Assignment("enc/svd.1", "eager", reason="no registry lowers it"),
    p.Assignment("scale.0", "linalg", slow_path="a value is NaN"),
    p.Assignment("add.0", "linalg", error_path="an index is out of range"),
)
REST = p.GraphInfo("Net #2", ROWS[:1], break_reason="a branch", break_line="/m/net.py:12", guards=INFO.guards[:1])
PROGRAM = [GraphFacts(0, INFO, ASSIGNMENTS), GraphFacts(1, REST, None)]


def test_rows_are_by_kind_and_then_by_cost() -> None:
    rows = [(row.kind, row.graph, row.title, row.cost) for row in fallback_rows(PROGRAM)]
    assert rows == [
        ("not compiled", 1, "Net #2", ""),
        ("eager", 0, "enc/svd.1", "4 kB"),
        ("eager", 0, "enc/svd.0", "10 B"),
        ("break", 0, "Failed to trace", ""),
        ("break", 1, "a branch", ""),
        ("slow path", 0, "scale.0", "20 B"),
        ("error path", 0, "add.0", "8 B"),
        ("guard", 0, "n == 2", ""),
        ("guard", 0, "x is float32 [4, *]", ""),
    ]


def test_a_profile_gives_the_share_of_the_time() -> None:
    times = (p.NodeTime("enc/svd.0", 0.03), p.NodeTime("enc/svd.1", 0.01), p.NodeTime("add.0", into="enc/svd.1"))
    profile = p.ProfileReport(0, times, (), TIMING, TIMING, 0.0, whole=0.1, inside=0.04)
    rows = fallback_rows([GraphFacts(0, INFO, ASSIGNMENTS, profile)])
    costs = {row.node: row.cost for row in rows if row.node}
    assert costs == {
        "enc/svd.0": "30.0% of time",
        "enc/svd.1": "10.0% of time",
        "scale.0": "20 B",
        "add.0": "8 B",
    }
    assert [row.node for row in rows if row.kind == "eager"] == ["enc/svd.0", "enc/svd.1"]


def test_each_row_says_what_to_do() -> None:
    fixes = {(row.kind, row.title): row.fix for row in fallback_rows(PROGRAM)}
    assert fixes["break", "Failed to trace"] == "use logging"
    assert fixes["break", "a branch"] == BREAK_FIX
    assert fixes["eager", "enc/svd.0"] == CHOICE_FIX
    assert fixes["eager", "enc/svd.1"] == EAGER_FIX


def test_a_reason_that_names_the_guide_gets_no_second_advice() -> None:
    (assignment,) = [a for a in ASSIGNMENTS if a.node == "enc/svd.1"]
    reason = NO_LOWERING.format(op="SvdOp")
    facts = GraphFacts(0, INFO, (msgspec.structs.replace(assignment, reason=reason),))
    (row,) = [row for row in fallback_rows([facts]) if row.kind == "eager"]
    assert (row.node, row.fix) == ("enc/svd.1", "")


def test_the_summary_counts_what_is_known() -> None:
    assert fallbacks_summary(PROGRAM) == (
        "2 graphs, 2 nodes compiled, 2 in eager (svd x2), 2 graph breaks, 1 not compiled yet"
    )
    assert fallbacks_summary([GraphFacts(0, p.GraphInfo("f", ROWS[:1]), (p.Assignment("add.0", "linalg"),))]) == (
        "1 graph, 1 node compiled, none in eager, 0 graph breaks"
    )


def test_text_and_json_have_every_row() -> None:
    rows = fallback_rows(PROGRAM)
    text = fallbacks_text(rows, fallbacks_summary(PROGRAM))
    for row in rows:
        assert row.title in text
        assert row.fix in text
    values = fallbacks_json(rows)
    assert len(values) == len(rows)
    assert values[1] == {
        "kind": "eager", "graph": 0, "name": "enc/svd.1", "node": "enc/svd.1", "line": "/m/net.py:1",
        "reason": "no registry lowers it", "fix": rows[1].fix, "bytes": 4000,
    }  # fmt: skip
