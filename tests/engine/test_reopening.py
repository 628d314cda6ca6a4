"""A program of an earlier session is shown before its script runs again, and never taken for the current one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buddy.compiler.protocol import (
    Cancel,
    Captured,
    CompareNodes,
    Compile,
    Compiled,
    Failed,
    FetchText,
    NodesCompared,
    Open,
    Progress,
    Ran,
    Reopened,
    Run,
    StageDone,
    Text,
    WorkerState,
)
from buddy.compiler.protocol.recipe import PassStep, PluginFile
from buddy.compiler.support import disk_cache
from tests.support.engine_bench import Bench, started

Session = Callable[[], AbstractAsyncContextManager[Bench]]
SCRIPT = """\
import pathlib
import torch
import helper

width = int(pathlib.Path({data!r}).read_text())


def model(x):
    return helper.scale(x) + 1


example_inputs = (torch.ones(4, width),)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The file from which the script reads the width of its input."""
    path = tmp_path / "width.txt"
    path.write_text("5")
    return path


@pytest.fixture
def script(tmp_path: Path, data: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(SCRIPT.format(data=str(data)))
    helper = tmp_path / "helper.py"
    helper.write_text("def scale(x):\n    return x * 2\n")
    for file in (path, helper):
        # Written well before the script starts: a file that is written at that moment is not saved.
        os.utime(file, (1e9, 1e9))
    return path


async def opened(bench: Bench, script: Path, *arguments: str, **options: Any) -> tuple[Reopened | None, Any]:
    """What an earlier session has saved of the program, if anything, and the answer to `Open`."""
    bench.seen.clear()
    request = bench.client.new_request_id()
    bench.client.send(Open(request, str(script), arguments, reopens=True, **options))
    answer = await bench.until(lambda frame: isinstance(frame, Captured | Failed) and frame.request == request)
    return next((frame for frame in bench.seen if isinstance(frame, Reopened)), None), answer


@asynccontextmanager
async def earlier_session(script: Path, *arguments: str, **options: Any) -> AsyncIterator[Captured]:
    """A session that has opened and compiled the program, and has ended."""
    async with started() as bench:
        _, captured = await opened(bench, script, *arguments, **options)
        assert isinstance(captured, Captured)
        compiled = await bench.ask(Compile(bench.client.new_request_id(), await bench.recipe(script, *arguments)))
        assert isinstance(compiled, Compiled)
    yield captured


async def begin(bench: Bench, script: Path) -> int:
    """Opens the program, and returns the number of the request when the earlier session's graphs have arrived."""
    request = bench.client.new_request_id()
    bench.client.send(Open(request, str(script), reopens=True))
    await bench.until(lambda frame: isinstance(frame, Reopened))
    return request


async def test_graph_and_ir_come_before_torch_is_imported(script: Path) -> None:
    async with earlier_session(script) as captured, started() as bench:
        request = await begin(bench, script)
        reopened = bench.seen[-1]
        assert reopened.graphs == captured.graphs
        assert reopened.files == captured.files
        compiled = await bench.ask(Compile(bench.client.new_request_id(), await bench.recipe(script)))
        assert compiled.reused == len(compiled.stages) > 10
        for name in {stage.text for stage in compiled.stages}:
            assert isinstance(await bench.client.request(FetchText(0, name)), Text)
        what = [frame.activity for frame in bench.seen if isinstance(frame, Progress)]
        assert "running the script" not in what
        now = await bench.end_of(request)
        assert now.graphs == captured.graphs
        ran = await bench.ask(Run(bench.client.new_request_id(), await bench.recipe(script), repeats=2))
        assert ran.report.outputs[0].verdict == "ok"


async def test_a_run_without_stages_is_saved_and_is_never_taken_for_a_compilation_with_them(script: Path) -> None:
    async def run(bench: Bench) -> tuple[Any, Compiled]:
        request = bench.client.new_request_id()
        ran = await bench.ask(Run(request, await bench.recipe(script), repeats=2, stages=False))
        return ran, next(frame for frame in bench.seen if isinstance(frame, Compiled) and frame.request == request)

    async with started() as bench:
        await opened(bench, script)
        ran, first = await run(bench)
        assert ran.report.outputs[0].verdict == "ok"
        assert [stage.name for stage in first.stages] == ["fx"]
        assert first.reused == 0
    async with started() as bench:
        await opened(bench, script)
        ran, again = await run(bench)
        assert ran.report.outputs[0].verdict == "ok"
        assert again.reused == len(again.stages) == 1
        compiled = await bench.ask(Compile(bench.client.new_request_id(), await bench.recipe(script)))
        assert len(compiled.stages) > 10
        assert compiled.reused < len(compiled.stages)
        for name in {stage.text for stage in compiled.stages}:
            assert isinstance(await bench.client.request(FetchText(0, name)), Text)


async def test_a_run_without_stages_uses_a_compilation_with_them(script: Path) -> None:
    async with earlier_session(script), started() as bench:
        await opened(bench, script)
        ran = await bench.ask(Run(bench.client.new_request_id(), await bench.recipe(script), repeats=2, stages=False))
        assert ran.report.outputs[0].verdict == "ok"
        compiled = next(frame for frame in bench.seen if isinstance(frame, Compiled))
        assert compiled.reused == len(compiled.stages) > 10


async def test_a_run_without_stages_that_cannot_be_compiled_has_those_before_the_failure(script: Path) -> None:
    async with started() as bench:
        await opened(bench, script)
        recipe = await bench.recipe(script)
        broken = msgspec.structs.replace(recipe, steps=(*recipe.steps[:-4], PassStep("no-such-pass")))
        failed = await bench.ask(Run(bench.client.new_request_id(), broken, repeats=2, stages=False))
        with_stages = await bench.ask(Run(bench.client.new_request_id(), broken, repeats=2))
        assert isinstance(failed, Failed)
        assert failed.diagnostic == with_stages.diagnostic
        assert len([frame for frame in bench.seen if isinstance(frame, StageDone)]) > 20


async def test_a_graph_that_has_changed_replaces_the_earlier_one(script: Path, data: Path) -> None:
    """The script reads a file, which no cache can know."""
    async with earlier_session(script) as captured, started() as bench:
        data.write_text("7")
        reopened, now = await opened(bench, script)
        assert reopened is not None
        assert reopened.graphs == captured.graphs
        assert now.graphs[0].rows[0].shape == "4x7" != captured.graphs[0].rows[0].shape
        ran = await bench.ask(Run(bench.client.new_request_id(), await bench.recipe(script), repeats=2))
        assert ran.report.outputs[0].shape == (4, 7)
        assert ran.report.outputs[0].verdict == "ok"


async def test_a_run_waits_for_the_script_and_runs_its_graph(script: Path, data: Path) -> None:
    async with earlier_session(script), started() as bench:
        data.write_text("7")
        await begin(bench, script)
        ran = await bench.ask(Run(bench.client.new_request_id(), await bench.recipe(script), repeats=2))
        assert isinstance(ran, Ran)
        assert ran.report.outputs[0].shape == (4, 7)
        assert ran.report.outputs[0].verdict == "ok"


async def test_without_its_data_the_script_fails_and_nothing_runs(script: Path, data: Path) -> None:
    async with earlier_session(script), started() as bench:
        data.unlink()
        reopened, failed = await opened(bench, script)
        assert reopened is not None
        assert "width.txt" in str(failed.diagnostic)
        ran = await bench.ask(Run(bench.client.new_request_id(), await bench.recipe(script), repeats=2))
        assert "width.txt" in str(ran.diagnostic)


@pytest.mark.parametrize(("width", "expected"), [("5", Ran), ("7", Failed)])
async def test_a_run_after_cancelling_loads_the_program_and_compares_its_graph(
    script: Path, data: Path, width: str, expected: type
) -> None:
    async with earlier_session(script), started() as bench:
        data.write_text(width)
        request = await begin(bench, script)
        bench.client.send(Cancel(request))
        assert (await bench.end_of(request)).cancelled
        ran = await bench.ask(Run(bench.client.new_request_id(), await bench.recipe(script), repeats=2))
        assert isinstance(ran, expected)
        if isinstance(ran, Failed):
            assert "now has other graphs than when it was opened" in ran.diagnostic.what


def _edit_script(script: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    script.write_text(script.read_text().replace("+ 1", "+ 2"))


def _edit_import(script: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    (script.parent / "helper.py").write_text("def scale(x):\n    return x * 3\n")


def _set_variable(_script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIDTH_OF_SCRIPT", "1")


def _damage(script: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    (saved,) = (script.parent / "cache" / "opened").iterdir()
    saved.write_bytes(saved.read_bytes()[:-20])


@pytest.mark.parametrize("change", [_edit_script, _edit_import, _set_variable, _damage])
async def test_a_program_that_has_changed_is_not_shown(
    script: Path, change: Callable[[Path, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with earlier_session(script):
        change(script, monkeypatch)
    async with started() as bench:
        reopened, now = await opened(bench, script)
        assert reopened is None
        assert isinstance(now, Captured)


async def test_arguments_and_shapes_are_part_of_the_program(script: Path) -> None:
    async with earlier_session(script), started() as bench:
        assert (await opened(bench, script, "--other"))[0] is None
        assert (await opened(bench, script, shapes=("x=4x9",)))[0] is None


async def test_nothing_is_saved_for_a_client_that_does_not_reopen(script: Path, place: Path) -> None:
    async with started() as bench:
        await bench.open(script)
        await bench.ask(Compile(bench.client.new_request_id(), await bench.recipe(script)))
    assert not (place / "opened").exists()
    assert not (place / "compilations").exists()


async def test_a_program_with_code_from_outside_is_not_saved(script: Path, place: Path, tmp_path: Path) -> None:
    """Changes of plug-ins, and of what a script registers, are not detected."""
    plugin = tmp_path / "plugin.py"
    plugin.write_text("")
    registering = "from buddy.compiler.graph.plugins import decomposition\n\n"
    registering += "@decomposition('demo.nothing.default')\ndef rule(x):\n    return x\n\n"
    async with started() as bench:
        await opened(bench, script, plugins=(PluginFile(str(plugin)),))
        script.write_text(registering + script.read_text())
        os.utime(script, (1e9, 1e9))
        _, captured = await opened(bench, script)
        assert isinstance(captured, Captured)
    assert not (place / "opened").exists()


async def test_each_recipe_has_its_own_compilation(script: Path) -> None:
    async with earlier_session(script), started() as bench:
        await begin(bench, script)
        recipe = await bench.recipe(script)
        steps = [msgspec.structs.replace(step, enabled=False) for step in recipe.steps[:1]]
        edited = msgspec.structs.replace(recipe, steps=(*steps, *recipe.steps[1:]), dialect="tosa")
        compiled = await bench.ask(Compile(bench.client.new_request_id(), edited))
        assert compiled.reused < len(compiled.stages)


# ---- graphs that are not captured again -----------------------------------------------------------------------------

MODULE = """\
import pathlib
import torch


class Model(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.linear, self.factor = torch.nn.Linear(3, 3), factor

    def forward(self, x):
        return self.linear(x) * self.factor


model = Model(float(pathlib.Path({data!r}).read_text()))
example_inputs = (torch.ones(4, 3),)
"""


@pytest.fixture
def module(tmp_path: Path, data: Path) -> Path:
    path = tmp_path / "module.py"
    path.write_text(MODULE.format(data=str(data)))
    os.utime(path, (1e9, 1e9))
    return path


async def run_of(bench: Bench, script: Path) -> Ran:
    ran = await bench.ask(Run(bench.client.new_request_id(), await bench.recipe(script), repeats=1))
    assert isinstance(ran, Ran)
    return ran


async def test_a_run_uses_the_graph_of_an_earlier_session_without_a_compiler(module: Path) -> None:
    async with earlier_session(module) as captured, started() as bench:
        before, now = await opened(bench, module, reuses=True)
        assert before is not None
        assert now.graphs == captured.graphs
        assert any("not captured again" in note for note in now.notes)
        assert (await run_of(bench, module)).report.outputs[0].verdict == "ok"
        assert not any(isinstance(frame, WorkerState) and frame.worker == "compiler" for frame in bench.seen)


async def test_a_request_that_needs_the_capture_captures(module: Path) -> None:
    async with earlier_session(module), started() as bench:
        await opened(bench, module, reuses=True)
        recipe = await bench.recipe(module)
        compared = await bench.ask(CompareNodes(bench.client.new_request_id(), recipe))
        assert isinstance(compared, NodesCompared)
        assert sum(isinstance(frame, Progress) and frame.activity == "running the script" for frame in bench.seen) == 2


async def test_a_model_that_computes_something_else_is_captured(module: Path, data: Path) -> None:
    async with earlier_session(module) as captured:
        data.write_text("7")
        async with started() as bench:
            before, now = await opened(bench, module, reuses=True)
            assert before is not None
            assert now.graphs != captured.graphs
            assert not any("not captured again" in note for note in now.notes)
            assert (await run_of(bench, module)).report.outputs[0].verdict == "ok"
