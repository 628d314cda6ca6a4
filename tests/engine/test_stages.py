"""A compilation as the client sees it: stages in order, texts by line, nodes by line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from buddy.app.session.client import RequestFailed
from buddy.compiler.engine.compiler import MAX_GRAPHS
from buddy.compiler.protocol import (
    Assigned,
    Cancel,
    Compile,
    Compiled,
    FindNode,
    ListOps,
    ListPasses,
    Progress,
    Search,
    StageDone,
)
from tests.support.engine_bench import PATIENCE, Bench

# A graph between two breaks: one more than are kept.
_PART = """\
    x = x + {number}
    torch._dynamo.graph_break()
"""
MANY = f"""\
import torch


def model(x):
{"".join(_PART.format(number=number) for number in range(1, MAX_GRAPHS + 2))}    return x


example_inputs = (torch.ones(4),)
"""
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_stages_come_one_by_one_and_then_whole(bench: Bench, add: Path) -> None:
    await bench.open(add)
    compiled = await bench.ask(Compile(bench.client.new_request_id(), await bench.recipe(add)))
    assert isinstance(compiled, Compiled)
    assert tuple(frame.stage for frame in bench.seen if isinstance(frame, StageDone)) == compiled.stages
    assert [stage.index for stage in compiled.stages] == list(range(len(compiled.stages)))
    recipe = await bench.recipe(add)
    graph_passes = [step.name for step in recipe.steps if step.level == "graph" and step.enabled]
    before = ["fx", "graph", *graph_passes, "lower"]
    assert [stage.name for stage in compiled.stages[: len(before)]] == before
    assert [stage.language for stage in compiled.stages][-2:] == ["llvm", "asm"]
    assert any(isinstance(frame, Assigned) for frame in bench.seen)
    assert any(isinstance(frame, Progress) and frame.activity.startswith("pass ") for frame in bench.seen)


async def test_a_program_of_more_graphs_than_the_compiler_keeps_can_be_gone_through_again(
    bench: Bench, tmp_path: Path
) -> None:
    """The first had made room for the last, and the engine took it for known: a fault of the compiler's own."""
    source = tmp_path / "many.py"
    source.write_text(MANY)
    opened = await bench.open(source)
    assert len(opened.graphs) == MAX_GRAPHS + 1
    recipe = await bench.recipe(source)
    visits = [(0, number) for number in range(len(opened.graphs))] + [(1, 0)]
    for opt_level, graph in visits:
        wanted = msgspec.structs.replace(recipe, graph=graph, opt_level=opt_level)
        assert isinstance(await bench.ask(Compile(bench.client.new_request_id(), wanted)), Compiled)


async def test_every_stage_can_be_read_by_line_and_whole(bench: Bench, add: Path) -> None:
    await bench.open(add)
    compiled = await bench.ask(Compile(bench.client.new_request_id(), await bench.recipe(add)))
    for stage in compiled.stages:
        whole = await bench.client.fetch_text(stage.text)
        page = await bench.client.fetch_lines(stage.text, 0, 10_000)
        assert page.line_count == stage.lines
        assert "\n".join(page.lines) == whole.removesuffix("\n")
        assert len(page.nodes) == len(page.lines)


async def test_a_line_leads_to_its_node_and_back(bench: Bench, add: Path) -> None:
    captured = await bench.open(add)
    (node,) = (row.stable for row in captured.graphs[0].rows if row.opcode == "call_function")
    compiled = await bench.ask(Compile(bench.client.new_request_id(), await bench.recipe(add)))
    for stage in compiled.stages[:3]:
        found = await bench.client.request(FindNode(0, stage.text, node))
        assert found.lines, stage.name
        page = await bench.client.fetch_lines(stage.text, found.lines[0], 1)
        assert node in [page.names[number] for number in page.nodes[0]]


async def test_search_finds_lines_and_refuses_broken_patterns(bench: Bench, add: Path) -> None:
    await bench.open(add)
    compiled = await bench.ask(Compile(bench.client.new_request_id(), await bench.recipe(add)))
    lower = next(stage for stage in compiled.stages if stage.name == "lower")
    found = await bench.client.request(Search(0, lower.text, "FUNC.FUNC", ignore_case=True))
    page = await bench.client.fetch_lines(lower.text, found.lines[0], 1)
    assert "func.func" in page.lines[0]
    with pytest.raises(RequestFailed, match="unterminated"):
        await bench.client.request(Search(0, lower.text, "(", regex=True))


async def test_a_pattern_that_would_take_for_ever_stops_nothing_and_can_be_cancelled(bench: Bench, add: Path) -> None:
    await bench.open(add)
    compiled = await bench.ask(Compile(bench.client.new_request_id(), await bench.recipe(add)))
    asm = compiled.stages[-1]
    request = bench.client.new_request_id()
    bench.client.send(Search(request, asm.text, r"^(\s*\w*\s*)*#never$", regex=True))
    for _ in range(10):
        await asyncio.wait_for(bench.client.fetch_lines(asm.text, 0, 10), PATIENCE)
    bench.client.send(Cancel(request))
    assert (await bench.end_of(request)).cancelled


async def test_regular_expressions_match_line_by_line(bench: Bench, add: Path) -> None:
    await bench.open(add)
    compiled = await bench.ask(Compile(bench.client.new_request_id(), await bench.recipe(add)))
    lower = next(stage for stage in compiled.stages if stage.name == "lower")
    found = await bench.client.request(Search(0, lower.text, r"^\s*func\.func .*\{$", regex=True))
    assert len(found.lines) == 1


async def test_a_text_that_is_not_kept_is_an_error_of_that_request(bench: Bench) -> None:
    with pytest.raises(RequestFailed, match="no longer stored"):
        await bench.client.fetch_lines("0123", 0, 10)


async def test_a_failing_pass_keeps_the_stages_before_it_and_gives_the_ir_at_the_failure(
    bench: Bench, add: Path
) -> None:
    await bench.open(add)
    recipe = await bench.recipe(add)
    index = next(i for i, step in enumerate(recipe.steps) if step.name == "one-shot-bufferize")
    failed = await bench.ask(Compile(bench.client.new_request_id(), recipe.with_step(index, options=(("bogus", 1),))))
    assert failed.diagnostic.step == index
    assert "one-shot-bufferize" in failed.diagnostic.where
    done = [frame.stage for frame in bench.seen if isinstance(frame, StageDone)]
    assert all(stage.step < index for stage in done)
    for stage in (*done, *failed.stages):
        assert (await bench.client.fetch_text(stage.text)).strip()
    assert all(stage.state == "failed" and stage.index == len(done) for stage in failed.stages)


async def test_the_catalogues_are_listed(bench: Bench) -> None:
    passes = await bench.client.request(ListPasses(0))
    assert {"canonicalize", "one-shot-bufferize"} <= {item.name for item in passes.passes}
    ops = await bench.client.request(ListOps(0))
    assert "add.Tensor" in {op.target for op in ops.ops}


async def test_a_recipe_of_another_frontend_is_not_answered_with_this_ones_graph(bench: Bench, add: Path) -> None:
    await bench.open(add)
    recipe = msgspec.structs.replace(await bench.recipe(add), frontend="export")
    failed = await bench.ask(Compile(bench.client.new_request_id(), recipe))
    assert "was opened by dynamo, whose graph differs from export's" in failed.diagnostic.what
