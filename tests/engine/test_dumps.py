"""Dumps of other compilers in a real engine: stages, texts, searches and differences, without any worker."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buddy.compiler.engine import dumps as engine_dumps
from buddy.compiler.engine.dumps import DumpHandler
from buddy.compiler.importers.dumps import logs
from buddy.compiler.mlir.mlir_tool import TOOL_VARIABLE
from buddy.compiler.protocol import (
    Captured,
    Compare,
    Compile,
    Compiled,
    Failed,
    FetchLines,
    FindNode,
    ListOps,
    ListPasses,
    ListSymbols,
    ListTypes,
    Open,
    Ops,
    Passes,
    Profile,
    Progress,
    Reopened,
    Run,
    Search,
    SearchEach,
    StageDone,
    WorkerState,
)
from buddy.compiler.protocol.presets import adapt_to_phase
from buddy.compiler.protocol.recipe import DUMP, Recipe
from buddy.compiler.protocol.text.store import TextStore
from buddy.compiler.support.processes.jobs import Job, JobFailed
from tests.support.dumps import mlir_opt, unpack, write_log
from tests.support.engine_bench import Bench

pytestmark = pytest.mark.asyncio(loop_scope="module")


def recipe_of(source: Path, graph: int = 0) -> Recipe:
    return adapt_to_phase(Recipe(source=str(source), graph=graph), DUMP)


async def opened(bench: Bench, path: Path) -> Captured:
    captured = await bench.open(path)
    assert isinstance(captured, Captured), captured
    return captured


async def compiled(bench: Bench, path: Path, graph: int = 0) -> Compiled:
    frame = await bench.ask(Compile(bench.client.new_request_id(), recipe_of(path, graph)))
    assert isinstance(frame, Compiled), frame
    return frame


async def open_dump(handler: DumpHandler, path: Path) -> None:
    opening = Open(1, str(path))
    found = handler.detect_format(opening)
    assert found is not None
    await handler.open(opening, found, Job(1))


async def test_the_stages_of_a_log_are_those_of_a_program(bench: Bench, tmp_path: Path) -> None:
    path = unpack("mlir", tmp_path) / "after_all.log"
    captured = await opened(bench, path)
    names = [graph.name for graph in captured.graphs]
    assert names[0] == "all"
    assert all(graph.entry_phase == DUMP and graph.is_dump for graph in captured.graphs)
    every = await compiled(bench, path)
    assert tuple(frame.stage for frame in bench.seen if isinstance(frame, StageDone)) == every.stages
    module = await compiled(bench, path, names.index("module"))
    assert [stage.name for stage in module.stages] == ["inline", "one-shot-bufferize", "convert-scf-to-cf"]
    bufferize = module.stages[1]
    lines = await bench.client.request(FetchLines(0, bufferize.text, 0, 500))
    assert lines.line_count == bufferize.lines == len(lines.lines)
    found = await bench.client.request(Search(0, bufferize.text, "memref.alloc()"))
    assert len(found.lines) == dict(bufferize.deltas)["memref.alloc"]
    symbols = await bench.client.request(ListSymbols(0, bufferize.text, "mlir"))
    assert [symbol.name for symbol in symbols.symbols] == ["scale", "twice"]
    types = await bench.client.request(ListTypes(0, bufferize.text))
    assert any("strided" in entry.text for entry in types.types)


async def test_a_source_line_leads_to_the_lines_of_each_stage(bench: Bench, tmp_path: Path) -> None:
    path = unpack("mlir", tmp_path) / "after_all.log"
    captured = await opened(bench, path)
    row = next(row for row in captured.graphs[0].rows if row.location == "in.mlir:4")
    for stage in (await compiled(bench, path)).stages:
        lines = (await bench.client.fetch_text(stage.text)).split("\n")
        # Of a location that several lines have, the printer makes an alias.
        aliases = [line.split()[0] for line in lines if line.startswith("#loc") and '"in.mlir":4:' in line]
        uses = [f"loc({alias})" for alias in aliases] + ['"in.mlir":4:']
        expected = [
            number
            for number, line in enumerate(lines)
            if not line.startswith("#loc") and any(use in line for use in uses)
        ]
        answer = await bench.client.request(FindNode(0, stage.text, row.stable))
        assert [line for line in expected if line not in answer.lines] == []
        assert bool(answer.lines) == bool(expected), stage.name


async def test_all_stages_are_searched_and_two_are_compared(bench: Bench, tmp_path: Path) -> None:
    path = unpack("iree", tmp_path) / "phases"
    await opened(bench, path)
    stages = (await compiled(bench, path)).stages
    texts = tuple(stage.text for stage in stages)
    for pattern, regex in (("stream.cmd", False), (r"stream\.cmd\.\w+", True)):
        found = await bench.client.request(SearchEach(0, texts, pattern, regex))
        names = [next(stage.name for stage in stages if stage.text == hit.text) for hit in found.hits]
        assert names == ["stream", "executable-sources", "executable-configurations", "executable-targets"]
    compared = await bench.client.request(Compare(0, texts[5], texts[6], "structural"))
    assert compared.hunks


async def test_no_worker_is_started_and_no_pass_is_listed(bench: Bench, tmp_path: Path) -> None:
    path = unpack("triton", tmp_path) / "kernels"
    before = [frame for frame in bench.seen if isinstance(frame, WorkerState)]
    await opened(bench, path)
    passes = await bench.ask(ListPasses(bench.client.new_request_id()))
    ops = await bench.ask(ListOps(bench.client.new_request_id()))
    assert isinstance(passes, Passes)
    assert isinstance(ops, Ops)
    assert not passes.passes
    assert not ops.ops
    assert [frame for frame in bench.seen if isinstance(frame, WorkerState)] == before


@pytest.mark.parametrize("request_type", [Run, Profile])
async def test_what_needs_a_pipeline_is_rejected(request_type: Any, bench: Bench, tmp_path: Path) -> None:
    path = unpack("triton", tmp_path) / "kernels"
    await opened(bench, path)
    failed = await bench.ask(request_type(bench.client.new_request_id(), recipe_of(path)))
    assert isinstance(failed, Failed)
    assert "no pipeline" in failed.diagnostic.what


async def test_a_dump_without_ir_is_an_error_with_its_format(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("// -----// IR Dump After CSE (cse) //----- //\n\n")
    failed = await bench.open(path)
    assert isinstance(failed, Failed)
    assert "a log of IR after or before each pass, but no IR was found in it" in failed.diagnostic.what


async def test_a_stage_whose_file_was_truncated_says_so(bench: Bench, tmp_path: Path) -> None:
    path = unpack("mlir", tmp_path) / "after_all.log"
    # Another text than in other tests: the engine may still have theirs in memory.
    path.write_bytes(path.read_bytes() + b"// read by no other test\n")
    await opened(bench, path)
    stage = (await compiled(bench, path)).stages[-1]
    path.write_text("")
    failed = await bench.ask(FetchLines(bench.client.new_request_id(), stage.text, 0, 10))
    assert isinstance(failed, Failed)
    assert "shorter" in failed.diagnostic.what
    assert failed.diagnostic.todo == "open the dump again"


async def test_a_followed_log_sends_its_graphs_again_when_it_has_grown(bench: Bench, tmp_path: Path) -> None:
    content = (unpack("mlir", tmp_path) / "after_all.log").read_bytes()
    path = tmp_path / "growing.log"
    path.touch()
    request = bench.client.new_request_id()
    bench.client.send(Open(request, str(path), follows=True))
    await bench.until(lambda frame: getattr(frame, "activity", "").startswith("waiting for IR"))
    counts = []
    for cut in (len(content) // 3, len(content)):
        path.write_bytes(content[:cut])
        await bench.until(lambda frame: isinstance(frame, Captured) and frame.request == request)
        counts.append(len((await compiled(bench, path)).stages))
    assert 0 < counts[0] < counts[1]
    full = tmp_path / "full.log"
    full.write_bytes(content)
    await opened(bench, full)
    assert counts[1] == len((await compiled(bench, full)).stages)


async def test_a_followed_log_that_is_rewritten_is_read_from_its_start(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "again.log"
    path.write_bytes((unpack("mlir", tmp_path) / "after_all.log").read_bytes())
    request = bench.client.new_request_id()
    bench.client.send(Open(request, str(path), follows=True))
    await bench.until(lambda frame: isinstance(frame, Captured) and frame.request == request)
    old = (await compiled(bench, path)).stages
    path.write_bytes(b"// -----// IR Dump After CSE (cse) //----- //\nmodule {\n}\n\n" + path.read_bytes())
    await bench.until(lambda frame: isinstance(frame, Captured) and frame.request == request)
    new = (await compiled(bench, path)).stages
    assert [stage.name for stage in new] == ["cse", *(stage.name for stage in old)]
    for stage in new:
        assert (await bench.client.fetch_text(stage.text)).strip()


async def test_the_first_stages_are_sent_before_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, so that the file is read in small pieces."""
    path = unpack("mlir", tmp_path) / "after_all.log"
    monkeypatch.setattr(engine_dumps, "_EARLY_SECONDS", 0.0)
    monkeypatch.setattr(engine_dumps, "_UPDATE_SECONDS", 0.001)
    monkeypatch.setattr(logs, "CHUNK_BYTES", 500)
    sent: list[Any] = []
    requests: list[asyncio.Task[None]] = []
    opening = Open(1, str(path))

    def send(frame: Any) -> None:
        sent.append(frame)
        if isinstance(frame, Reopened):
            requests.append(asyncio.ensure_future(handler.compile(Compile(2, recipe_of(path)), Job(2))))

    handler = DumpHandler(send, TextStore())
    found = handler.detect_format(opening)
    assert found is not None
    await handler.open(opening, found, Job(1))
    await asyncio.gather(*requests)
    kinds = [type(frame) for frame in sent]
    assert kinds.index(Reopened) < kinds.index(StageDone) < kinds.index(Captured)
    assert kinds.count(Reopened) == 1
    (whole,) = [frame for frame in sent if isinstance(frame, Compiled)]
    assert tuple(frame.stage for frame in sent if isinstance(frame, StageDone)) == whole.stages
    assert len({stage.index for stage in whole.stages}) == len(whole.stages) > 10


async def test_a_cancelled_scan_ends_the_requests_that_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = unpack("mlir", tmp_path) / "after_all.log"
    monkeypatch.setattr(engine_dumps, "_EARLY_SECONDS", 0.0)
    monkeypatch.setattr(logs, "CHUNK_BYTES", 100)
    sent: list[Any] = []
    handler = DumpHandler(sent.append, TextStore())
    opening = Open(1, str(path))
    found = handler.detect_format(opening)
    assert found is not None
    task = asyncio.ensure_future(handler.open(opening, found, Job(1)))
    while not any(isinstance(frame, Reopened) for frame in sent):
        await asyncio.sleep(0)
    waiting = asyncio.ensure_future(handler.compile(Compile(2, recipe_of(path)), Job(2)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait_for(waiting, 10)
    assert isinstance(sent[-1], Compiled)


async def test_the_texts_of_a_dump_are_limited_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unpack("iree", tmp_path) / "phases"
    monkeypatch.setattr(engine_dumps, "_TEXT_BYTES", 10_000)
    sent: list[Any] = []
    store = TextStore()
    handler = DumpHandler(sent.append, store)
    await open_dump(handler, path)
    await handler.compile(Compile(2, recipe_of(path)), Job(2))
    stages = sent[-1].stages
    for stage in (*stages, *stages):
        text = store.get(stage.text)
        assert text is not None
        assert text.line_count == stage.lines
    assert store.size < 10_000 + max(len(store.content(stage.text) or "") for stage in stages) * 2
    assert store.get("dump-unknown") is None
    path.joinpath("scale.1.input.mlir").unlink()
    store.limit = 0
    store.pin("nothing", ())
    with pytest.raises(JobFailed, match="cannot be read"):
        store.get(stages[0].text)


async def test_a_recipe_of_a_dump_has_no_passes() -> None:
    recipe = recipe_of(Path("a.log"))
    assert recipe.is_dump
    assert not recipe.steps
    assert not msgspec.structs.replace(recipe, preset="default").is_dump


async def test_steps_are_left_out_and_the_later_ones_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOOL_VARIABLE, mlir_opt())
    path = write_log(tmp_path / "a.log")
    sent: list[Any] = []
    store = TextStore()
    handler = DumpHandler(sent.append, store)
    await open_dump(handler, path)
    recipe = recipe_of(path)
    await handler.compile(Compile(2, recipe), Job(2))
    recorded = sent[-1].stages
    step = next(stage.step for stage in recorded if stage.name == "loop-invariant-code-motion")
    toggled = recipe.toggled(step)
    assert toggled.skipped_steps == (step,)
    assert toggled.toggled(step) == recipe
    sent.clear()
    await handler.compile(Compile(3, toggled), Job(3))
    assert sum(isinstance(frame, StageDone) for frame in sent) == len(sent[-1].stages) == len(recorded)
    assert any("running 4 steps again" in frame.activity for frame in sent if isinstance(frame, Progress))
    assert sent[-1].notes == ("4 steps run again by torch-mlir-opt",)
    skipped = [stage for stage in sent[-1].stages if stage.state == "skipped"]
    assert {(stage.name, stage.step) for stage in skipped} == {("loop-invariant-code-motion", step)}
    again = [stage for stage in sent[-1].stages if stage.again]
    assert again[0].name == "stablehlo-legalize-to-linalg"
    for stage in sent[-1].stages:
        text = store.get(stage.text)
        assert text is not None
        assert text.line_count == stage.lines
    # A graph of one function has its own part of the re-run.
    await handler.compile(Compile(4, msgspec.structs.replace(toggled, graph=3)), Job(4))
    assert {stage.anchor for stage in sent[-1].stages} == {"@square"}
    assert [stage.state for stage in sent[-1].stages].count("skipped") == 1
    (folder,) = Path(tempfile.gettempdir()).glob(f"buddy-rerun-{os.getpid()}-*")
    handler.close()
    assert not folder.exists()


async def test_a_re_run_that_fails_sends_the_stages_up_to_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOOL_VARIABLE, mlir_opt())
    path = write_log(tmp_path / "a.log")
    sent: list[Any] = []
    handler = DumpHandler(sent.append, TextStore())
    await open_dump(handler, path)
    await handler.compile(Compile(2, recipe_of(path)), Job(2))
    step = next(stage.step for stage in sent[-1].stages if stage.name == "stablehlo-legalize-to-linalg")
    with pytest.raises(JobFailed, match="torch-verify-linalg-on-tensors-backend-contract failed: ") as caught:
        await handler.compile(Compile(3, recipe_of(path).toggled(step)), Job(3))
    assert caught.value.stages[-1].state == "failed"
    assert caught.value.stages[-2].name == "canonicalize"
    handler.close()
