"""Reads real traces and logs, written by `make_data.py`, and files that are damaged or no traces."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from buddy.compiler.protocol.dynamo import DynamoReport, read_break
from buddy.compiler.tools.explain.guards import kind_of_expression, read_reason, scope_of
from buddy.compiler.tools.explain.records import function_title, is_user_file
from buddy.compiler.tools.explain.trace_files import TraceError, read_trace

DATA = Path(__file__).with_name("data")
TRACE, LOG = DATA / "trace", DATA / "torch_logs.txt"
MODEL = "/home/user/model.py"


def changes(report: DynamoReport) -> list[tuple[str, int, str, str, str]]:
    """The first failure of each recompilation: function, number, expression, before, after."""
    failures = [(compiled, compiled.failures[0]) for compiled in report.recompilations]
    return [(c.function, c.number, f.expression, f.before, f.after) for c, f in failures]


CHANGES = [
    ("forward", 2, "size(0) of x is 2", "[2, 4]", "[3, 4]"),
    ("forward after line 15", 2, "size(0) of y is 2", "[2, 4]", "[3, 4]"),
    ("step", 2, "mode == 'a'", "'a'", "'b'"),
    ("step", 3, "mode == 'b'", "'b'", ""),
    ("<lambda>", 2, "SCALE == 3", "3", "4"),
]


@pytest.mark.parametrize("path", [TRACE, TRACE / "torch_trace.log", LOG], ids=["folder", "file", "log"])
def test_a_trace_says_what_a_run_did(path: Path) -> None:
    report = read_trace(path)
    assert changes(report) == CHANGES
    assert [found.reason for found in report.breaks] == ["Failed to trace builtin operator", "Data-dependent branching"]
    stack = [(frame.location, frame.function, frame.text) for frame in report.breaks[0].frames]
    assert stack == [
        (f"{MODEL}:43", "<module>", "main()"),
        (f"{MODEL}:30", "main", "net(torch.ones(2, 4))"),
        (f"{MODEL}:15", "forward", 'print("scaled")'),
    ]
    assert "torch.where" in report.breaks[1].fixes[0]
    assert report.breaks[0].link.endswith("gb0059.html")
    (limit,) = report.limits
    assert (limit.function, limit.location, limit.setting, limit.limit) == ("step", f"{MODEL}:21", "recompile_limit", 2)
    guards = {guard.expression: guard for guard in reversed(report.guards) if not guard.library}
    assert guards["x is float32 [2, 4], stride [4, 1]"].kind == "tensor"
    scale = guards["SCALE == 3"]
    assert scale.frame is not None
    assert (scale.kind, scale.scope, scale.frame.location, scale.checked) == ("value", "global", f"{MODEL}:14", -1)
    assert scale.frame.text == "y = self.linear(x) * SCALE"
    assert report.notes == ()


def test_a_structured_trace_has_times_and_callers() -> None:
    report = read_trace(TRACE)
    assert report.torch.startswith("2.")
    calls = {(compiled.function, compiled.number): compiled.call for compiled in report.compiles}
    assert calls["forward", 2] is not None
    assert calls["forward", 2].location == f"{MODEL}:31"
    assert all(compiled.seconds > 0 for compiled in report.compiles)
    ids = [compiled.id for compiled in report.compiles]
    assert ids == ["0/0", "1/0", "2/0", "0/1", "1/1", "3/0", "3/1", "3/2", "4/0", "4/1"]


def test_a_truncated_trace_is_read_up_to_its_end(tmp_path: Path) -> None:
    data = (TRACE / "torch_trace.log").read_bytes()
    place = data.index(b'"recompile_reasons"')
    (tmp_path / "cut.log").write_bytes(data[: place + 300])
    report = read_trace(tmp_path)
    assert changes(report) == [(*CHANGES[0][:4], "3")]
    (tmp_path / "cut.log").write_bytes(data[: place - 10])
    report = read_trace(tmp_path)
    assert report.notes == (f"{tmp_path / 'cut.log'}: 1 record could not be read",)
    assert len(report.breaks) == 2


def test_other_lines_and_control_characters_are_skipped(tmp_path: Path) -> None:
    lines = LOG.read_text().splitlines()
    mixed = [text for line in lines for text in (line, "\x1b[31mepoch 3\x07 loss 0.1", "V1126 not a record")]
    path = tmp_path / "log.txt"
    path.write_text("\n".join(mixed))
    assert changes(read_trace(path)) == CHANGES


def test_the_processes_of_a_run_are_told_apart(tmp_path: Path) -> None:
    text = (TRACE / "torch_trace.log").read_text()
    for rank in (0, 1):
        (tmp_path / f"dedicated_log_torch_trace_rank_{rank}_abc.log").write_text(text)
    report = read_trace(tmp_path)
    assert changes(report) == CHANGES * 2
    assert [compiled.id for compiled in report.recompilations][::5] == ["rank 0 0/1", "rank 1 0/1"]


def test_ranks_that_write_one_log_are_told_apart(tmp_path: Path) -> None:
    """`torchrun` starts each line with its rank, and the lines of the ranks alternate."""
    lines = [line for line in LOG.read_text().splitlines() if line[:1] in "VIWEC"]
    path = tmp_path / "stderr.txt"
    path.write_text("".join(f"[rank{rank}]:{line}\n" for line in lines for rank in (0, 1)))
    report = read_trace(path)
    assert sorted(changes(report)) == sorted(CHANGES * 2)
    assert {compiled.id for compiled in report.recompilations} >= {"rank 0 0/1", "rank 1 0/1"}


@pytest.mark.skipif(os.getuid() == 0, reason="this user may read every file")
def test_a_file_of_a_folder_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(LOG.read_text())
    (tmp_path / "a.log").chmod(0)
    assert read_trace(tmp_path).notes == (f"{tmp_path / 'a.log'} cannot be read: Permission denied",)


def test_files_that_are_no_trace_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_trace(tmp_path / "missing")
    with pytest.raises(TraceError, match=r"has no file ending in \.log, \.txt or \.err") as caught:
        read_trace(tmp_path)
    assert "TORCH_TRACE=DIR" in caught.value.todo
    (tmp_path / "a.log").write_text("hello\n")
    (tmp_path / "b.log").write_bytes(gzip.compress(LOG.read_bytes()))
    with pytest.raises(TraceError, match="is not a trace of TorchDynamo"):
        read_trace(tmp_path)
    (tmp_path / "c.log").write_text(LOG.read_text())
    report = read_trace(tmp_path)
    assert [note.removeprefix(str(tmp_path)) for note in report.notes] == [
        "/a.log has no line of TORCH_TRACE or TORCH_LOGS", "/b.log is a binary file",
    ]  # fmt: skip
    assert changes(report) == CHANGES


def test_progress_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buddy.compiler.tools.explain.trace_files._PROGRESS_BYTES", 10_000)
    told = list[float]()
    read_trace(TRACE, told.append)
    assert told == sorted(told)
    assert told
    assert 0 < told[0] < told[-1] <= 1


@pytest.mark.parametrize(
    ("text", "kind", "source", "before", "after"),
    [
        ("tensor 'x' stride mismatch at index 1. expected 4, actual 1", "stride", "x", "4", "1"),
        ("tensor 'L['x']' dtype mismatch. expected Float, actual Double", "dtype", "L['x']", "Float", "Double"),
        ("tensor 'x' requires_grad mismatch. expected requires_grad=1", "requires_grad", "x", "True", "False"),
        ("GLOBAL_STATE changed: grad_mode ", "global state", "grad_mode", "", ""),
        ("Duplicate tensors found: [\"x\", \"y\"]", "aliasing", "x, y", "different", "one tensor"),
        ("___check_type_id(c, 9438), type=<class 'a.B'>  # x  # f.py:1 in f (HINT: type B)", "type", "c", "a.B", ""),
        ("not ___dict_contains('k', d)", "keys", "d", "without 'k'", "with 'k'"),
        ("len(xs) == 2", "length", "xs", "length 2", ""),
        ("m is not None", "value", "m", "not None", "None"),
        ("2 <= x.size()[0]", "symbolic size", "x", "", ""),
        ("Cache line invalidated because L['x'] got deallocated", "identity", "", "alive", "deleted"),
        ("an unknown reason", "other", "", "", ""),
        ("", "other", "", "", ""),
    ],
)  # fmt: skip
def test_reasons_are_read(text: str, kind: str, source: str, before: str, after: str) -> None:
    reason = read_reason(text)
    assert (reason.kind, reason.source, reason.before, reason.after) == (kind, source, before, after)


def test_parts_of_records_are_read() -> None:
    assert kind_of_expression("L['s'] == 'Mod(s0)'") == "value"
    assert scope_of("L['n']", frozenset(("n",))) == "closure"
    assert scope_of("L['self']._modules['head']") == "attribute"
    assert function_title("torch_dynamo_resume_in_forward_at_13") == "forward after line 13"
    assert not is_user_file("/usr/lib/python3/dist-packages/torch/nn/modules/linear.py")
    assert not is_user_file("nn/modules/linear.py")
    assert is_user_file("/home/user/model.py")


def test_messages_of_older_versions_are_read() -> None:
    message = read_break("generic_jump TensorVariable()\n\nUser code traceback:\n  File ...")
    assert message.reason == "a branch on a tensor's value"
    assert "torch.cond" in message.fixes[0]
    text = "Graph Break Reason: Unsupported context manager\n  Explanation: No.\n  Hint: Move it\n    out.\n"
    assert read_break(f"{text}  Hint: Please report")[:3] == ("Unsupported context manager", "No.", ("Move it out.",))
