"""The table of what TorchDynamo did: rows and their order, guards, the summary, text and JSON."""

from __future__ import annotations

import msgspec

from buddy.app.reports.recompilations import dynamo_json, dynamo_rows, dynamo_summary, dynamo_text, user_guards
from buddy.compiler import protocol as p

LINE = p.UserFrame("/m/net.py", 6, "forward", "y = x * n")
CALL = p.UserFrame("/m/net.py", 20, "<module>", "net(x)")
SIZE = p.GuardFailure(
    0, "size", "size(0) of x is 2", "x", "local", "[2, 4]", "[3, 4]", LINE, "mark it", (("n", "1", "2"),)
)
VALUE = p.GuardFailure(1, "value", "n == 1", "n", "local", "1", "", LINE, "mark it")
REPORT = p.DynamoReport(
    (
        p.DynamoCompile("0/0", "forward", "/m/net.py", 5, seconds=0.5, calls=3),
        p.DynamoCompile("0/1", "forward", "/m/net.py", 5, 2, CALL, 0.25, failures=(SIZE,)),
        p.DynamoCompile("1/0", "inner", "/torch/_dynamo/external_utils.py", 67, call=CALL, problem="Unsupported: no"),
        p.DynamoCompile("0/2", "forward", "/m/net.py", 5, 3, CALL, 0.25, failures=(VALUE, SIZE)),
    ),
    (
        p.DynamoBreak(0, "print", "why", ("log", "move", "third"), (CALL, LINE), times=3),
        p.DynamoBreak(2, "no line", skipped=True),
    ),
    (
        p.DynamoGuard(0, "type", "type of x is Tensor", "x", "local", LINE, 4, 0),
        p.DynamoGuard(0, "value", "n == 1", "n", "local", LINE, 4, 1),
        p.DynamoGuard(1, "value", "n == 1", "n", "local", LINE, 2, 1),
        p.DynamoGuard(0, "identity", "len is the same object", library=True),
    ),
    (p.RecompileLimit("forward", "/m/net.py:5", "recompile_limit", 8, 3),),
)  # fmt: skip


def test_rows_are_in_the_order_of_the_run_and_guards_by_their_failures() -> None:
    rows = [(row.kind, row.title, row.change, row.cost, row.line) for row in dynamo_rows(REPORT)]
    limit = "recompile_limit (8) reached: calls that no compiled code fits run in eager"
    assert rows == [
        ("break", "print: y = x * n", "", "", "/m/net.py:6"),
        ("recompiled", "size(0) of x is 2", "[2, 4] -> [3, 4]", "250 ms", "/m/net.py:6"),
        ("break", "no line", "", "", ""),
        ("error", "Unsupported: no", "", "", "/m/net.py:20"),
        ("recompiled", "n == 1", "1 -> ?", "250 ms", "/m/net.py:6"),
        ("limit", limit, "", "", "/m/net.py:5"),
        ("guard", "n == 1", "", "2 failed", "/m/net.py:6"),
        ("guard", "type of x is Tensor", "", "0 failed", "/m/net.py:6"),
    ]


def test_a_row_says_what_to_do() -> None:
    rows = dynamo_rows(REPORT)
    assert rows[0].details == "fix: log · called from net.py:20 in <module> · why"
    assert rows[1].details == ("compilation 2 of forward · called at net.py:20 · fix: mark it · also changed: n 1 -> 2")
    assert rows[2].details == "Dynamo skips the function: all of it runs in eager"
    assert "checked 6 times" in rows[-2].details


def test_a_guard_of_several_compilations_is_one_row() -> None:
    guards = [(guard.expression, guard.checked, guard.failed) for guard in user_guards(REPORT)]
    assert guards == [("n == 1", 6, 2), ("type of x is Tensor", 4, 0)]


def test_the_text_has_a_section_for_each_kind() -> None:
    text = dynamo_text(REPORT)
    assert text.splitlines()[0] == (
        "2 functions compiled 4 times in 1.00 s, 2 recompilations, 2 graph breaks, recompile_limit reached by forward"
    )
    assert "  1. /m/net.py:6 in forward, 3 times: y = x * n\n     called from /m/net.py:20 in <module>: net(x)" in text
    assert "third" not in text
    assert (
        "    2: failed guard size(0) of x is 2, x: [2, 4] -> [3, 4] (read at net.py:6, called at net.py:20, 250 ms)"
        in text
    )
    assert text.count("fix: mark it") == 1, "a fix that the next recompilation shares is printed once"
    assert "  inner at /m/net.py:20: Unsupported: no" in text
    assert "  1 guard on values of torch and Python; --json lists all" in text


def test_a_report_without_rows_is_one_line() -> None:
    assert dynamo_text(p.DynamoReport()) == dynamo_summary(p.DynamoReport())
    assert "no function was compiled" in dynamo_summary(p.DynamoReport())


def test_json_has_everything() -> None:
    values = dynamo_json(REPORT)
    assert values["summary"] == dynamo_summary(REPORT)
    assert len(values["guards"]) == 4
    del values["summary"]
    assert msgspec.convert(values, p.DynamoReport) == REPORT
