"""The harness finds what is planted and goes on after a crash and from where it was; a part of the samples agrees."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from buddy.app.cli import coverage
from buddy.compiler.ops.reasons import NO_CLASS, NO_LOWERING
from buddy.compiler.support import files
from buddy.compiler.tools.coverage import report, session
from buddy.compiler.tools.coverage.session import (
    RIGHT_OUTCOMES,
    STEPS,
    CallResult,
    CoreOp,
    CoverageListing,
    CoveragePlan,
    CoveragePlanError,
    OpDtypePair,
    Outcome,
    PairResult,
    make_pair_result,
    parse_shard,
    select_shard,
    worst_outcome,
)

KNOWN = PairResult("exp", "float32", "eager", {"eager": 1})

# One operator or two of each family: what stands for the whole database in a test run of a minute.
BOUNDED = (
    "add", "where", "pow", "bitwise_and", "sum", "var", "amax", "cumsum", "cat", "permute", "index_select", "gather",
    "matmul", "nn.functional.pad.constant", "nn.functional.conv2d", "nn.functional.max_pool2d",
    "nn.functional.layer_norm", "softmax", "nn.functional.gelu", "full_like",
)  # fmt: skip


@pytest.fixture(scope="module")
def planted() -> dict[str, PairResult]:
    """One run over four faults and a sound operator; `exp` is known from before."""
    found: dict[str, PairResult] = {}
    extension = str(Path(__file__).with_name("planted.py"))
    plan = CoveragePlan(
        ("abs", "cos", "exp", "sin", "sub", "where"), ("float32",), 2, timeout=12.0, extensions=(extension,)
    )
    listing = session.run(plan, {KNOWN.pair: KNOWN}, (), lambda _n, _c, result: found.setdefault(result.op, result))
    assert [pair.op for pair in listing.pairs] == sorted(plan.only)
    return found


@pytest.mark.full("operators swept by PyTorch's database")
def test_a_wrong_lowering_is_found_wrong_with_its_error(planted: dict[str, PairResult]) -> None:
    result = planted["abs"]
    assert result.outcome == "wrong"
    assert all(finding.outcome == "wrong" for finding in result.findings)
    assert max(finding.error for finding in result.findings) >= 1
    assert "eager gives" in report.pair_line(result)
    # Captured, lowered, compiled and run, but none of them agrees.
    assert result.reached[STEPS.index("run")] == sum(result.outcomes.values())
    assert result.reached[STEPS.index("compare")] == 0


def test_an_abort_is_a_crash_of_its_call_alone(planted: dict[str, PairResult]) -> None:
    result = planted["sub"]
    assert result.outcome == "crash"
    assert result.outcomes["compiled"] >= 1
    crashed = [finding for finding in result.findings if finding.outcome == "crash"]
    assert crashed
    assert all("SIGABRT" in f.reasons[0] and "scalar" in f.call for f in crashed)


def test_a_fault_in_the_compiler_is_an_error_and_an_endless_one_a_timeout(planted: dict[str, PairResult]) -> None:
    assert planted["sin"].outcome == "error"
    assert "TypeError" in report.pair_line(planted["sin"])
    assert planted["cos"].outcome == "timeout"


def test_what_comes_after_a_crash_is_checked_and_what_is_known_is_not(planted: dict[str, PairResult]) -> None:
    assert planted["where"].outcome == "compiled"
    assert planted["where"].lowerings
    assert "exp" not in planted


@pytest.mark.slow
def test_a_wrong_gradient_of_right_results_is_found() -> None:
    found: dict[str, PairResult] = {}
    extension = str(Path(__file__).with_name("planted.py"))
    plan = CoveragePlan(("argmax", "lgamma", "mul"), ("float32", "bool"), 1, extensions=(extension,), backward=True)
    session.run(plan, {}, (), lambda _n, _c, result: found.setdefault(f"{result.op} {result.dtype}", result))
    # Only operators that have gradients are checked: of bools there are none, nor of `argmax`.
    outcomes = {name: result.outcome for name, result in found.items()}
    assert outcomes == {"lgamma float32": "wrong", "mul float32": "compiled"}
    assert all(finding.reasons[0].startswith("gradient: ") for finding in found["lgamma float32"].findings)


@pytest.mark.full("operators swept by PyTorch's database")
def test_a_part_of_the_database_is_right() -> None:
    found: list[PairResult] = []
    listing = session.run(CoveragePlan(BOUNDED, samples=2), {}, (), lambda _n, _c, result: found.append(result))
    assert len({result.op for result in found}) >= len(BOUNDED)
    assert [report.pair_line(result) for result in found if result.outcome not in (*RIGHT_OUTCOMES, "skipped")] == []
    assert report.summary(found, listing.core)["dtypes"]["float32"]["compiled_here"] >= 0.9


def test_a_server_that_is_killed_is_an_error_and_takes_its_worker_with_it(tmp_path: Path) -> None:
    plan = CoveragePlan(("exp",), ("float32",), 1)
    with session._WarmProcess(plan, str(tmp_path)) as server:
        (pair,) = server.list_pairs().pairs
        assert server.check(pair).outcome == "compiled"
        pid = server._worker.pid
        workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert workers
        os.kill(pid, signal.SIGKILL)
        server._worker.wait()
        with pytest.raises(session.CoverageError):
            server.check(pair)
        deadline = time.monotonic() + 240
        while any(map(_lives, workers)):
            assert time.monotonic() < deadline, "a worker outlives its server"
            time.sleep(0.05)


def _lives(pid: str) -> bool:
    """Whether the process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("words", "problem"),
    [(("-o", "."), "cannot read .: Is a directory"), (("--report", "gone/page.md"), "cannot write to gone/page.md")],
)
def test_files_are_checked_before_the_samples(
    words: tuple[str, ...],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert coverage.main(words) == 2
    assert problem in capsys.readouterr().err


def test_a_file_adds_up_and_a_torn_line_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    assert session.read_results(path) == {}
    files.append_json_line(path, KNOWN)
    files.append_json_line(path, PairResult("add", "bool", "compiled"))
    files.append_json_line(path, msgspec.structs.replace(KNOWN, outcome="compiled"))
    path.write_bytes(path.read_bytes() + b'{"op": "mul", "dt')
    assert {pair.op: result.outcome for pair, result in session.read_results(path).items()} == {
        "exp": "compiled",
        "add": "compiled",
    }
    assert session.read_results(path, backward=True) == {}
    files.append_json_line(path, msgspec.structs.replace(KNOWN, outcome="wrong", backward=True))
    assert session.read_results(path, backward=True)[KNOWN.pair].outcome == "wrong"
    assert session.read_results(path)[KNOWN.pair].outcome == "compiled"


def test_shards_are_a_partition() -> None:
    pairs = [OpDtypePair(f"op{number}", "float32") for number in range(11)]
    parts = [select_shard(pairs, (index, 4)) for index in range(1, 5)]
    assert sorted(pair for part in parts for pair in part) == sorted(pairs)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["", "3", "0/2", "3/2", "a/b", "1/2/3"])
def test_a_shard_that_makes_no_sense(text: str) -> None:
    with pytest.raises(CoveragePlanError, match="I/N"):
        parse_shard(text)


def test_a_pair_is_as_good_as_its_worst_call() -> None:
    assert worst_outcome(["compiled", "refused"]) == "compiled"
    assert worst_outcome(["compiled", "eager", "torch-mlir"]) == "eager"
    assert worst_outcome(["crash", "wrong"]) == "crash"
    calls = [
        CallResult("a", "compiled", 5, lowerings={"add.Tensor": {"linalg": 2}}),
        CallResult("b", "refused", 0, ("why",)),
    ]
    result = make_pair_result(OpDtypePair("add", "bool"), calls, 1.0)
    assert result.outcomes == {"compiled": 1, "refused": 1}
    assert result.reached == (1, 1, 1, 1, 1)
    assert result.lowerings == {"add.Tensor": {"linalg": 2}}
    assert [finding.call for finding in result.findings] == ["b"]


def test_figures_leave_out_what_is_not_captured() -> None:
    found = [PairResult("a", "bool", outcome) for outcome in ("compiled", "torch-mlir", "eager", "refused", "skipped")]
    core = [CoreOp("add.Tensor", ("linalg",)), CoreOp("rand.default", only_eager="numbers"), CoreOp("sort.default")]
    figures = report.summary(found, core)["all"]
    assert figures["captured"] == 3
    assert figures["compiled_here"] == pytest.approx(1 / 3, abs=1e-3)
    assert figures["without_eager"] == pytest.approx(2 / 3, abs=1e-3)
    assert report.summary(found, core)["core"]["missing"] == ["sort.default"]
    written = report.markdown(found, CoverageListing([], core, {"torch": "2.x"}), CoveragePlan())
    assert "| `rand.default` | numbers |" in written
    assert "1 of 3 overloads lowered here" in written
    assert "eager: 1 pairs" in written
    assert "66.7 %" in written


def test_a_run_ends_with_the_most_frequent_reasons_and_the_changes() -> None:
    def result(op: str, outcome: Outcome, *reasons: str) -> PairResult:
        return PairResult(op, "bool", outcome, findings=(CallResult("call", outcome, 0, reasons),) if reasons else ())

    found = [
        result("add", "compiled"),
        result("fft", "eager", "no lowering for fft"),
        result("ifft", "eager", "no lowering for fft"),
        result("sort", "wrong", "differs"),
        result("svd", "refused", "not captured"),
    ]
    before = {each.pair: each for each in (result("add", "eager"), result("sort", "wrong"), result("fft", "crash"))}
    top = report.top_reasons(found)
    assert [(one["reason"], one["pairs"], one["share"]) for one in top[:2]] == [
        ("no lowering for fft", 2, 0.5),
        ("differs", 1, 0.25),
    ]
    changed = report.outcome_changes(before, found)
    assert changed == [
        {"before": "eager", "after": "compiled", "pairs": ["add bool"]},
        {"before": "crash", "after": "eager", "pairs": ["fft bool"]},
    ]
    text = report.conclusions({"reasons": top, "changed": changed})
    assert "2   50.0 %  eager: no lowering for fft (such as fft bool)" in text
    assert "1  crash -> eager: fft bool" in text
    assert "next: buddy-tui coverage --only fft" in text
    assert report.conclusions({"reasons": [], "changed": []}) == ""


def test_the_page_gives_the_reason_for_a_fallback_without_the_advice() -> None:
    for reason in (NO_CLASS.format(target="op.default"), NO_LOWERING.format(op="AnOp")):
        finding = CallResult("call", "eager", 1, (f"op.default: {reason}; torch-mlir: it has no op",))
        (text,) = report.reason_lines(PairResult("op", "bool", "eager", findings=(finding,)))
        assert "has no op class; torch-mlir: it has no op" in text or "no registry lowers AnOp; torch-mlir" in text


def test_nodes_that_a_graph_is_cut_around_are_counted_as_eager_and_the_others_are_not() -> None:
    from buddy.compiler.tools.coverage.check import CoverageRecorder

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).to(torch.float8_e8m0fnu).float() + 1

    torch._dynamo.reset()
    recorder = CoverageRecorder({"threads": 1})
    compiled = torch.compile(program, backend=recorder, fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(torch.arange(-2.0, 2)), program(torch.arange(-2.0, 2)))
    assert recorder.lowering == "eager"
    assert recorder.lowerings == {
        "relu.default": {"linalg": 1},
        "_to_copy.default": {"eager": 2},
        "add.Tensor": {"linalg": 1},
    }


def test_core_aten_counts_what_stands_in_graphs_for_an_overload() -> None:
    from buddy.compiler.tools.coverage.samples import core_ops

    known = {op.target: op for op in core_ops()}
    assert known["atan2.out"].lowered == known["atan2.default"].lowered != ()
    in_other_terms = ("_native_batch_norm_legit.default", "upsample_nearest2d.vec", "sym_numel.default")
    assert all(known[target].decomposed and not known[target].lowered for target in in_other_terms)
    assert known["rand.default"].decomposed
    assert not known["rand.default"].only_eager


REPLACED = """
import torch
torch.set_num_threads(1)
from buddy.compiler.tools.coverage.session import CoveragePlan, OpDtypePair
from buddy.compiler.tools.coverage.worker import CoverageWorker

worker = CoverageWorker(CoveragePlan(samples=1))
fork = worker._get_fork()
fork.kill()
fork.wait_for_cause()
worker._get_fork = lambda: (delattr(worker, "_get_fork"), fork)[1]  # as it may look for a moment
print(worker.check(OpDtypePair("neg", "float32")).outcome)
worker.close()
"""


def test_a_worker_that_ended_between_two_jobs_is_replaced(run_python: Callable[..., Any]) -> None:
    done = run_python("-c", REPLACED)
    assert done.stdout.split() == ["compiled"], done.stderr
