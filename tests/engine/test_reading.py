"""Reading stages through the engine: many at once, symbols, regions, whole lines, generic form, documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from buddy.app.session.client import RequestFailed
from buddy.compiler.protocol import (
    Compile,
    DescribeOp,
    FetchCharacters,
    FindRegion,
    ListSymbols,
    Reprint,
    SearchEach,
    Stage,
)
from tests.support.engine_bench import Bench

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def compiled(bench: Bench, source: Path) -> tuple[Stage, ...]:
    await bench.open(source)
    done = await bench.ask(Compile(bench.client.new_request_id(), await bench.recipe(source)))
    return done.stages


async def ask(bench: Bench, frame: type, *fields: Any) -> Any:
    return await bench.client.request(frame(0, *fields))


@pytest.mark.parametrize("regex", [False, True])
async def test_all_stages_are_searched_in_one_request(bench: Bench, add: Path, regex: bool) -> None:
    stages = await compiled(bench, add)
    pattern = "arith[.]addf" if regex else "arith.addf"
    names = tuple(stage.text for stage in stages)
    found = await ask(bench, SearchEach, (*names, "gone"), pattern, regex)
    held = {}
    for name in dict.fromkeys(names):
        lines = (await bench.client.fetch_text(name)).split("\n")
        if hits := [number for number, line in enumerate(lines) if "arith.addf" in line]:
            held[name] = (tuple(hits), tuple(lines[number].strip() for number in hits))
    assert held
    assert {hit.text: (hit.lines, hit.excerpts) for hit in found.hits} == held
    assert [hit.text for hit in found.hits] == list(held), "in the order of the stages"


async def test_symbols_and_regions(bench: Bench, add: Path) -> None:
    stage = next(stage for stage in await compiled(bench, add) if stage.name == "lower")
    symbols = (await ask(bench, ListSymbols, stage.text, stage.language)).symbols
    assert "forward" in [symbol.name for symbol in symbols]
    forward = next(symbol for symbol in symbols if symbol.name == "forward")
    inside = await ask(bench, FindRegion, stage.text, forward.first + 1)
    assert (inside.first, inside.last) == (forward.first, forward.last)
    assert (await ask(bench, FindRegion, stage.text, 10_000)).first == -1


async def test_characters_of_a_line_come_in_parts(bench: Bench, add: Path) -> None:
    stage = next(stage for stage in await compiled(bench, add) if stage.name == "lower")
    line = (await bench.client.fetch_text(stage.text)).split("\n")[1]
    part = await ask(bench, FetchCharacters, stage.text, 1, 3, 5)
    assert (part.content, part.line_length) == (line[3:8], len(line))
    beyond = await ask(bench, FetchCharacters, stage.text, 10_000)
    assert (beyond.content, beyond.line_length) == ("", 0)


async def test_the_generic_form_keeps_the_nodes_of_lines(bench: Bench, add: Path) -> None:
    stages = await compiled(bench, add)
    stage = next(stage for stage in stages if stage.name == "one-shot-bufferize")
    made = await ask(bench, Reprint, stage.text)
    page = await bench.client.fetch_lines(made.form, 0, 1000)
    assert page.line_count == made.lines
    assert any('"func.func"' in line for line in page.lines)
    place = next(number for number, line in enumerate(page.lines) if '"arith.add' in line)
    custom = await bench.client.fetch_lines(stage.text, 0, 1000)
    same = next(number for number, line in enumerate(custom.lines) if "arith.add" in line)
    assert [page.names[k] for k in page.nodes[place]] == [custom.names[k] for k in custom.nodes[same]]
    again = await ask(bench, Reprint, stage.text)
    assert again.form == made.form
    with pytest.raises(RequestFailed, match="no generic form"):
        await ask(bench, Reprint, stages[-1].text)


async def test_ops_are_described_by_their_dialects(bench: Bench) -> None:
    assert "integers" in (await ask(bench, DescribeOp, "arith.addi")).text
    assert "loop" in (await ask(bench, DescribeOp, "scf.for")).text
    assert (await ask(bench, DescribeOp, "no_such.op")).text == ""
    assert (await ask(bench, DescribeOp, "../evil")).text == ""
