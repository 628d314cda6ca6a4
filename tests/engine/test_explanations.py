"""Scripts that are recorded by the engine: those that end, raise, crash, exit, run for ever, or compile nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from buddy.compiler.protocol import (
    Cancel,
    DynamoExplained,
    DynamoProgress,
    DynamoReport,
    ExplainDynamo,
    Failed,
    Printout,
    Progress,
)
from tests.support.engine_bench import Bench
from tests.support.engine_processes import children, command

pytestmark = pytest.mark.asyncio(loop_scope="module")
DATA = Path(__file__).parents[1] / "tools" / "explain" / "data"
COMPILED = """\
import sys
import torch
f = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
f(torch.ones(2, 4))
f(torch.ones(2, 8))
print("argument", *sys.argv[1:], __name__)
"""


@pytest.fixture
def script(tmp_path: Path) -> Any:
    def write(text: str) -> str:
        path = tmp_path / "net.py"
        path.write_text(text)
        return str(path)

    return write


async def explained(bench: Bench, **fields: Any) -> Any:
    request = bench.client.new_request_id()
    bench.client.send(ExplainDynamo(request, **fields))
    return await bench.until(lambda f: getattr(f, "request", 0) == request and isinstance(f, DynamoExplained | Failed))


def changes(report: DynamoReport) -> list[tuple[str, str]]:
    return [(compiled.failures[0].before, compiled.failures[0].after) for compiled in report.recompilations]


async def test_a_script_runs_as_python_runs_it(bench: Bench, script: Any) -> None:
    report = (await explained(bench, source=script(COMPILED), arguments=("a", "b"))).report
    assert changes(report) == [("[2, 4]", "[2, 8]")]
    assert report.problem is None
    printed = "".join(frame.text for frame in bench.seen if isinstance(frame, Printout))
    assert "argument a b __main__" in printed
    assert any(isinstance(frame, Progress) and "running" in frame.activity for frame in bench.seen)


@pytest.mark.parametrize(
    ("end", "what", "where"),
    [
        ("raise KeyError('k')", "net.py raised KeyError: 'k'", "net.py:7"),
        ("sys.exit(3)", "net.py exited with status 3", "net.py:7"),
        ("import os; os._exit(5)", "ended with exit code 5", "net.py"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL", "net.py"),
        ("f(", "invalid syntax|was never closed", "net.py:7"),
    ],
    ids=["raises", "exits", "ends", "killed", "invalid"],
)
async def test_the_end_of_a_script_is_reported(bench: Bench, script: Any, end: str, what: str, where: str) -> None:
    report = (await explained(bench, source=script(COMPILED + end))).report
    assert report.problem is not None
    assert any(part in report.problem.what for part in what.split("|"))
    assert report.problem.where.endswith(where)
    assert report.problem.todo
    assert changes(report) == ([] if end == "f(" else [("[2, 4]", "[2, 8]")])


LOOPING = (
    COMPILED + "import time\nn = 8\nwhile True:\n    n += 1\n    time.sleep(0.01)\n    f(torch.ones(2, min(n, 12)))\n"
)


async def test_a_script_that_never_ends_can_be_cancelled(bench: Bench, script: Any) -> None:
    request = bench.client.new_request_id()
    bench.client.send(ExplainDynamo(request, script(LOOPING)))
    progress = await bench.until(lambda frame: isinstance(frame, DynamoProgress) and frame.report.recompilations)
    assert changes(progress.report)[0] == ("[2, 4]", "[2, 8]")
    bench.client.send(Cancel(request))
    failed = await bench.until(lambda frame: isinstance(frame, Failed) and frame.request == request)
    assert failed.cancelled
    deadline = asyncio.get_running_loop().time() + 60
    while any("explain.recorder" in command(child) for child in children(bench.pid)):
        left = [(child, command(child)) for child in children(bench.pid)]
        assert asyncio.get_running_loop().time() < deadline, left
        await asyncio.sleep(0.05)


async def test_a_script_is_stopped_at_the_time_limit(bench: Bench, script: Any) -> None:
    report = (await explained(bench, source=script(LOOPING), timeout=20.0)).report
    assert report.problem is not None
    assert "was stopped after 20 s" in report.problem.what
    assert changes(report)[0] == ("[2, 4]", "[2, 8]")


async def test_a_script_that_compiles_nothing_has_an_empty_report(bench: Bench, script: Any) -> None:
    report = (await explained(bench, source=script("import torch\nprint(torch.ones(2) + 1)\n"))).report
    assert (report.compiles, report.breaks, report.problem) == ((), (), None)


async def test_sources_that_are_no_scripts_are_named(bench: Bench, tmp_path: Path) -> None:
    report = (await explained(bench, source=str(tmp_path / "none.py"))).report
    assert report.problem is not None
    assert "none.py" in report.problem.what
    (tmp_path / "a.mlir").write_text("module {}\n")
    report = (await explained(bench, source=str(tmp_path / "a.mlir"))).report
    assert report.problem is not None
    assert "is not a script" in report.problem.what


async def test_a_module_runs_like_python_m(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "explained_module.py").write_text(COMPILED)
    report = (await explained(bench, source="explained_module:f", directory=str(tmp_path))).report
    assert report.problem is None
    assert changes(report) == [("[2, 4]", "[2, 8]")]


async def test_a_trace_is_read(bench: Bench, tmp_path: Path) -> None:
    report = (await explained(bench, trace="trace", directory=str(DATA))).report
    assert ("'a'", "'b'") in changes(report)
    failed = await explained(bench, trace=str(tmp_path))
    assert isinstance(failed, Failed)
    assert "TORCH_TRACE=DIR" in failed.diagnostic.todo
