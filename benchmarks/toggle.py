"""The latency of a recipe edit on BERT-base: seconds to the first stage that changed, and to the last stage.

A late pass, an early pass and an op are disabled in a compiled program, through the engine, like in the workbench. The
first changed stage counts once a screen of its lines has been fetched. Every repeat has a new engine and object cache,
because an engine that has compiled a recipe before returns its stages at once. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from support import printing
from support.engine import TimedEngine, empty_object_cache, run, warm_engine
from support.timing import median_and_quartiles

from buddy.compiler.protocol import Compiled, GraphInfo, StageDone
from buddy.compiler.protocol.recipe import EAGER, Recipe

LATE, EARLY, OP = "cse", "fuse-elementwise", "gelu"
SCREEN = 50
WANTED = {"late pass": 2.0, "early pass": 5.0, "op": 5.0}
Texts = dict[int, str]


def edits(recipe: Recipe, graph: GraphInfo) -> dict[str, Recipe]:
    """Returns the recipe with each edit, by the name of the edit."""
    names = [step.name for step in recipe.steps]
    late = len(names) - 1 - names[::-1].index(LATE)
    node = next(row.stable for row in graph.rows if row.target.startswith(("aten." + OP, OP)))
    return {
        "late pass": recipe.toggled(late),
        "early pass": recipe.toggled(names.index(EARLY)),
        "op": recipe.with_choice(node, EAGER),
    }


async def compiled(engine: TimedEngine, recipe: Recipe) -> Texts:
    """Returns the texts of all stages of `recipe`, by index."""
    frames = [frame async for _, frame in engine.compile(recipe)]
    return {frame.stage.index: frame.stage.text for frame in frames if isinstance(frame, StageDone)}


async def timed(engine: TimedEngine, recipe: Recipe, before: Texts) -> dict[str, Any]:
    """Seconds until the first stage that differs from `before` can be shown, and until all stages are finished."""
    start, found = time.perf_counter(), dict[str, Any]()
    async for _, frame in engine.compile(recipe):
        if not found and isinstance(frame, StageDone) and before.get(frame.stage.index) != frame.stage.text:
            await engine.client.fetch_lines(frame.stage.text, 0, SCREEN)
            found = {"first": frame.stage.name, "shown": time.perf_counter() - start}
        if isinstance(frame, Compiled):
            found |= {"reused": frame.reused, "stages": len(frame.stages)}
    return {**found, "whole": time.perf_counter() - start}


async def measure_once(tiny: bool) -> dict[str, dict[str, Any]]:
    with empty_object_cache():
        async with warm_engine() as engine:
            return await measure_with(engine, tiny)


async def measure_with(engine: TimedEngine, tiny: bool) -> dict[str, dict[str, Any]]:
    _, graph, recipe = await engine.open_bert(tiny)
    start = time.perf_counter()
    before = await compiled(engine, recipe)
    first = {"whole": time.perf_counter() - start}
    found = {name: await timed(engine, edited, before) for name, edited in edits(recipe, graph).items()}
    return {"first compilation": first, **found}


def summary(runs: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Times as spreads over the runs; other results are the same in all runs."""
    return {
        name: {
            key: median_and_quartiles([run[name][key] for run in runs]) if key in ("shown", "whole") else value
            for key, value in runs[0][name].items()
        }
        for name in runs[0]
    }


def row(name: str, found: dict[str, Any]) -> list[object]:
    whole = printing.between(found["whole"], " s")
    if "shown" not in found:
        return [name, "", "", whole, ""]
    shown, reused = printing.between(found["shown"], " s"), f"{found['reused']} of {found['stages']}"
    return [name, found["first"], shown, whole, reused]


async def measure(options: argparse.Namespace) -> list[dict[str, dict[str, Any]]]:
    return [await measure_once(options.tiny) for _ in range(options.repeats)]


def main() -> int:
    options = printing.parser(__doc__, 3, "times with a fresh engine").parse_args()
    machine = printing.machine()
    found = summary(run(measure(options)))
    met = {name: found[name]["shown"]["median"] <= limit for name, limit in WANTED.items()}
    source = "samples/bert.py" + " --tiny" * options.tiny
    result = {"source": source, "machine": machine, "seconds": found, "wanted": WANTED, "met": met}
    heading = ["edit", "first changed stage", "shown after", "whole after", "stages reused"]
    printing.tell(result, heading, [row(name, figures) for name, figures in found.items()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
