"""Scripts that misbehave: one clear message each, and the next one opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from buddy.compiler.protocol import Cancel, Captured, Failed, Open, Printout, Ran, Run
from tests.support.engine_bench import Bench
from tests.support.engine_processes import everything_below, lives

pytestmark = pytest.mark.asyncio(loop_scope="module")

BAD = {
    "raises": ("x = 1\nraise ValueError('the weights are missing')\n", "the weights are missing"),
    "exits": ("import sys\nsys.exit(3)\n", "3"),
    "ends its process": ("import os\nos._exit(7)\n", "exit code 7"),
    "crashes": ("import ctypes\nctypes.string_at(0)\n", "SIGSEGV"),
    "asks": ("name = input('name? ')\n", "input"),
    "holds no model": ("x = 1\n", "model"),
    "is no Python": ("def def\n", "syntax"),
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_script_that(bench: Bench, tmp_path: Path, kind: str) -> None:
    text, expected = BAD[kind]
    path = tmp_path / "bad.py"
    path.write_text(text)
    failed = await bench.open(path)
    assert isinstance(failed, Failed)
    assert not failed.cancelled
    assert expected in f"{failed.diagnostic} {failed.diagnostic.detail}"
    assert "bad.py" in str(failed.diagnostic)
    assert "buddy/compiler" not in failed.diagnostic.what


async def test_after_a_failure_the_next_script_opens(bench: Bench, tmp_path: Path, add: Path) -> None:
    assert isinstance(await bench.open(tmp_path / "nothing.py"), Failed)
    assert isinstance(await bench.open(add), Captured)


async def test_a_missing_file_is_named(bench: Bench, tmp_path: Path) -> None:
    failed = await bench.open(tmp_path / "nothing.py")
    assert "nothing.py" in failed.diagnostic.what


async def test_a_script_that_loops_is_cancelled_with_all_it_started(bench: Bench, tmp_path: Path, add: Path) -> None:
    path = tmp_path / "loop.py"
    started = 'print(f\'process {subprocess.Popen(["sleep", "300"]).pid} runs\')'
    path.write_text(f"import subprocess\n{started}\nwhile True: pass\n")
    request = bench.client.new_request_id()
    bench.client.send(Open(request, str(path)))
    printed = await bench.until(lambda frame: isinstance(frame, Printout) and "runs" in frame.text)
    # By its number: for a moment after it has started, a process has no command line.
    child = int(printed.text.split()[1])
    assert child in everything_below(bench.pid)
    bench.client.send(Cancel(request))
    failed = await bench.end_of(request)
    assert failed.cancelled
    assert not lives(child)
    assert isinstance(await bench.open(add), Captured)


async def test_a_script_that_forks_itself_gives_its_graphs_once(bench: Bench, add: Path) -> None:
    add.write_text("import os\nos.fork()\n" + add.read_text())
    assert isinstance(await bench.open(add), Captured)
    ran = await bench.ask(Run(bench.client.new_request_id(), await bench.recipe(add), repeats=2))
    assert isinstance(ran, Ran)
    assert sum(isinstance(frame, Captured) for frame in bench.seen) == 1


async def test_a_script_that_floods_its_printout_does_not_stop_the_engine(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "flood.py"
    path.write_text("import os\nwhile True: os.write(1, bytes(range(256)) * 400)\n")
    request = bench.client.new_request_id()
    bench.client.send(Open(request, str(path)))
    await bench.until(lambda frame: isinstance(frame, Printout))
    for _ in range(10):
        await bench.recipe(path)
    bench.client.send(Cancel(0))
    assert (await bench.end_of(request)).cancelled


async def test_what_a_script_prints_comes_before_its_graphs(bench: Bench, add: Path) -> None:
    captured = await bench.open(add)
    printed = "".join(frame.text for frame in bench.seen if isinstance(frame, Printout))
    assert "the script ran" in printed
    assert bench.seen[-1] is captured
    assert len(captured.graphs) == 1


async def test_a_script_is_run_afresh_each_time_it_is_opened(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text("value = 1\n")
    path = tmp_path / "whole.py"
    path.write_text(
        "import torch, part\nprint('part', part.value)\nmodel = torch.sin\nexample_inputs = torch.ones(3)\n"
    )
    await bench.open(path)
    (tmp_path / "part.py").write_text("value = 22222\n")
    await bench.open(path)
    printed = "".join(frame.text for frame in bench.seen if isinstance(frame, Printout))
    assert "part 1" in printed
    assert "part 22222" in printed
