"""The text of `buddy-tui run`: a row for each output, below them the conditions of the verdicts, and the nodes."""

from __future__ import annotations

from buddy.app.reports.run_report import part_seconds, part_times_text, run_report_json, run_report_text
from buddy.app.session.progress import PartTimes
from buddy.compiler.protocol import (
    Assignment,
    Divergence,
    GraphInfo,
    NodeRow,
    OutputReport,
    RunReport,
    SideReport,
    Timing,
)
from buddy.compiler.protocol.run_report import ErrorCheck


def text_of(*outputs: OutputReport) -> str:
    timing = Timing(2e-3, 2e-3, 2e-3, 5)
    return run_report_text(GraphInfo("model", ()), RunReport(0, outputs, timing, timing, 3, 0, 1.0, ratio=1.0))


CHECKS = (
    ErrorCheck("max abs error", 3.1e-5, 9.6e-5, "4 x spread 2.4e-05"),
    ErrorCheck("rms error", 1e-6, 2e-6, "1.1e-06 x rms of eager 1.9"),
    ErrorCheck("rms error of [3, :]", 1.2e-6, 2e-6, "4 x spread of the slice, at least the limit of all"),
)


def test_a_verdict_gives_both_numbers_of_its_conditions_and_the_relative_error() -> None:
    near_zero = OutputReport(
        "y", (9, 20), "float32", 3.1e-5, 0.13, "ok", checks=CHECKS, rel_where="[0, 4]", rel_size=4e-5, rel_floor=1e-5
    )
    lines = text_of(near_zero).splitlines()
    row = next(number for number, line in enumerate(lines) if line.startswith("y "))
    assert lines[row].split() == ["y", "9x20", "float32", "ok", "3.10e-05", "1.30e-01"]
    assert lines[row + 1 : row + 4] == [
        "y: max abs error 3.1e-05 <= 9.6e-05 allowed (4 x spread 2.4e-05)",
        "y: rms error 1.0e-06 <= 2.0e-06 allowed (1.1e-06 x rms of eager 1.9)",
        "y: largest relative error 1.3e-01 at [0, 4], where |eager| is 4.0e-05 "
        "(no limit; |eager| <= 1e-05 not counted)",
    ]


def test_of_a_wrong_output_only_the_conditions_that_fail_are_given() -> None:
    close = ErrorCheck("rms error of [3, :]", 2.00001e-6, 2e-6, "4 x spread of the slice, at least the limit of all")
    wrong = OutputReport("y", (9, 20), "float32", 3.1e-5, 1e-6, "mismatch", checks=(*CHECKS[:2], close))
    of_y = [line for line in text_of(wrong).splitlines() if line.startswith("y: ")]
    assert of_y == [
        "y: rms error of [3, :] 2.000010e-06 > 2.000000e-06 allowed "
        "(4 x spread of the slice, at least the limit of all)"
    ]
    other = OutputReport(
        "y", (64,), "int64", 3.0, 1.0, "mismatch", checks=(ErrorCheck("elements differ", 3, 0, "equal"),)
    )
    assert "y: 3 elements differ, 0 allowed" in text_of(other)
    infinite = OutputReport("y", (2,), "float32", float("inf"), 1.0, "mismatch")
    assert "y: an element is finite in one of the two only" in text_of(infinite)


def test_other_positions_are_said_to_be_as_good() -> None:
    near = OutputReport("argmax", (2,), "int64", 64.0, 1.0, "ok", tolerance="1.2e-04 of eager's choice")
    assert "argmax: different indices, whose values are within 1.2e-04 of eager's choice" in text_of(near)


def test_slow_and_error_paths_are_counted_and_listed_with_their_conditions() -> None:
    timing = Timing(2e-3, 2e-3, 2e-3, 5)
    report = RunReport(0, (), timing, timing, 2, 0, 1.0, slow_paths=1, error_paths=1)
    assignments = (
        Assignment("svd.0", "linalg", slow_path="a matrix has an infinity or NaN"),
        Assignment("embedding.0", "linalg", error_path="an index is out of range"),
    )
    lines = run_report_text(GraphInfo("model", ()), report, assignments).splitlines()
    assert lines[0] == (
        "graph 0, model: 2 nodes compiled, 0 in eager, 1 with a slow path in eager, 1 with an error path in eager, "
        "compiled in 1.00 s"
    )
    assert "slow path in eager: svd.0: if a matrix has an infinity or NaN" in lines
    assert "error path in eager: embedding.0: if an index is out of range" in lines
    found = run_report_json(GraphInfo("model", ()), report, assignments)
    assert found["nodes"] == {"compiled": 2, "eager": 0, "with_slow_path": 1, "with_error_path": 1}
    assert found["slow_paths"] == [{"node": "svd.0", "condition": "a matrix has an infinity or NaN"}]
    assert found["error_paths"] == [{"node": "embedding.0", "condition": "an index is out of range"}]


def test_the_time_of_the_command_is_listed_by_its_parts() -> None:
    clock = iter((0.0, 2.5, 2.5, 3.0, 3.0, 7.0))
    times = PartTimes(lambda: next(clock))
    for part in ("torch", "script", "run"):
        times.record(part)
    times.stop()
    assert part_seconds(times) == {"torch": 2.5, "script": 0.5, "run": 4.0}
    expected = "time 7.0 s: importing torch 2.5 s, running the script 0.5 s, running 4.0 s"
    assert part_times_text(part_seconds(times)) == expected


def _beside(divergence: Divergence | None, note: str = "") -> str:
    """The report of a run beside ONNX Runtime, as text."""
    wrong = OutputReport("y", (2,), "float32", 0.5, 0.1, "mismatch")
    side = SideReport("onnxruntime", (wrong,), Timing(2e-3, 1e-3, 3e-3, 5), 8.0, 1.5, divergence=divergence, note=note)
    rows = tuple(
        NodeRow(
            k,
            name,
            "call_function",
            name.partition(".")[0],
            "aten.mm.default",
            "",
            "",
            location=f"/user/net.py:{k}",
        )
        for k, name in enumerate(("mm.0", "gelu.0"))
    )
    timing = Timing(1e-3, 1e-3, 1e-3, 5)
    report = RunReport(0, (), timing, Timing(4e-3, 4e-3, 4e-3, 5), 2, 0, 0.1, sides=(side,))
    return run_report_text(GraphInfo("net", rows), report)


def test_the_first_node_that_differs_in_a_runtime_is_named_with_its_line() -> None:
    gelu = OutputReport("gelu.0", (2,), "float32", 3e-2, 0.1, "mismatch", where="[1]")
    text = _beside(Divergence("gelu.0", "node", gelu, ("mm.0",), 5, 12.3))
    assert "ONNX Runtime: first differs in gelu.0, net.py:1: max abs 3.00e-02 first at [1]; mm.0 before it" in text
    assert "(5 calls, 12" in text
    assert "ONNX Runtime takes 0.50 x the time of eager; MISMATCH in y, max abs 5.00e-01, exported in 8.00 s" in text


def test_a_fusion_at_fault_and_a_failed_search_are_named() -> None:
    text = _beside(Divergence("mm.0", "fusion", runs=1, seconds=1.0))
    assert "its results match if it returns the value of mm.0, net.py:0, so its fusion across this node differs" in text
    assert "(1 call, 1" in text
    assert "ONNX Runtime: the search failed: no memory" in _beside(None, "the search failed: no memory")


def test_all_marked_nodes_are_listed() -> None:
    marked = tuple(OutputReport(name, (2,), "float32", 1e-7, 0.0, "ok") for name in ("mm.0", "gelu.0"))
    text = _beside(Divergence("", marked=marked, runs=1))
    assert "ONNX Runtime: all 2 marked nodes match" in text
    (line,) = (line for line in text.splitlines() if line.startswith("gelu.0"))
    assert line.split() == ["gelu.0", "2", "float32", "ok", "1.00e-07", "net.py:1"]
