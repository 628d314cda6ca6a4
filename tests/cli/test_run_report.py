"""The text of `buddy-tui run`: a row for each output, and beneath them what was measured of roundings."""

from __future__ import annotations

from buddy.app.reports.run_report import as_json, as_text
from buddy.compiler.protocol import Assignment, GraphInfo, OutputReport, RunReport, Timing


def text_of(*outputs: OutputReport) -> str:
    timing = Timing(2e-3, 2e-3, 2e-3, 5)
    return as_text(GraphInfo("model", ()), RunReport(0, outputs, timing, timing, 3, 0, 1.0, ratio=1.0))


def test_what_two_correct_runs_differ_by_is_said_beneath_the_table() -> None:
    lines = text_of(OutputReport("y", (2,), "float32", 3.1e-5, 1e-6, "ok", spread=2.4e-5)).splitlines()
    row = next(number for number, line in enumerate(lines) if line.startswith("y "))
    assert lines[row].split() == ["y", "2", "float32", "ok", "3.10e-05", "1.00e-06"]
    assert lines[row + 1] == "y: error 3.1e-05; two correct runs differ by up to 2.4e-05"


def test_the_root_mean_square_decides_too_and_is_said() -> None:
    wrong = OutputReport("y", (2,), "float32", 3e-6, 1e-6, "mismatch", spread=2e-6, rms=2.5e-6, spread_rms=3e-7)
    assert "y: error 3.0e-06 (rms 2.5e-06); two correct runs differ by up to 2.0e-06 (rms 3.0e-07)" in text_of(wrong)


def test_other_positions_are_said_to_be_as_good() -> None:
    near = OutputReport("argmax", (2,), "int64", 64.0, 1.0, "ok", tolerance="1.2e-04 of eager's choice")
    assert "argmax: different positions, with values within 1.2e-04 of eager's choice" in text_of(near)


def test_nothing_is_said_of_what_was_within_its_tolerance() -> None:
    assert "y:" not in text_of(OutputReport("y", (2,), "float32", 1e-7, 1e-6, "ok"))


def test_slow_and_error_paths_are_counted_and_listed_with_their_conditions() -> None:
    timing = Timing(2e-3, 2e-3, 2e-3, 5)
    report = RunReport(0, (), timing, timing, 2, 0, 1.0, slow_paths=1, error_paths=1)
    assignments = (
        Assignment("svd.0", "linalg", slow_path="a matrix has an infinity or NaN"),
        Assignment("embedding.0", "linalg", error_path="an index is out of range"),
    )
    lines = as_text(GraphInfo("model", ()), report, assignments).splitlines()
    assert lines[0] == (
        "graph 0, model: 2 nodes compiled, 0 in eager, 1 with a slow path in eager, 1 with an error path in eager, "
        "compiled in 1.00 s"
    )
    assert "slow path in eager: svd.0: if a matrix has an infinity or NaN" in lines
    assert "error path in eager: embedding.0: if an index is out of range" in lines
    found = as_json(GraphInfo("model", ()), report, assignments)
    assert found["nodes"] == {"compiled": 2, "eager": 0, "with_slow_path": 1, "with_error_path": 1}
    assert found["slow_paths"] == [{"node": "svd.0", "condition": "a matrix has an infinity or NaN"}]
    assert found["error_paths"] == [{"node": "embedding.0", "condition": "an index is out of range"}]
