"""Seconds until a planted fault is named, and until the search ends, in BERT-base (plants: tests/tools/bisect).

A plant is a plug-in: a pass that flips a sign, crashes, never ends, leaves IR that does not verify, or makes loops
scalar; a lowering with another epsilon. Time runs from the request to the engine, for an open program: `named` is when
the progress names the culprit, without which the whole program is right; `seconds` is when the search ends, with the
smallest set of nodes and the reduced module. The object cache is empty. Arguments select plants by name. Prints one
JSON object; the exit code is 1 if a plant is not found, or another culprit is named.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from support import printing
from support.engine import BERT, TimedEngine, empty_object_cache, run, warm_engine

from buddy.compiler.protocol import Bisect, Bisected, BisectionResult, Captured, Criterion, Open, Progress
from buddy.compiler.protocol.presets import default_recipe

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.tools.bisect.planted import PLANTS, Plant

WANTED = {"seconds": 60.0, "found": 1.0}
# The time limit for a step of a trial in seconds: only the plant that never ends reaches it.
EACH = Criterion().step_seconds
# The text of the progress once the culprit is known.
NAMED = " at fault; "


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    chosen = [plant for plant in PLANTS if not options.plants or plant.file in options.plants]
    found = {plant.file: await _searched(plant, options) for plant in chosen}
    return {"source": "samples/bert.py" + " --tiny" * options.tiny, "plants": found}


async def _searched(plant: Plant, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the result for one plant, in a new engine with an empty cache."""
    with empty_object_cache():
        async with warm_engine() as engine:
            recipe = await _opened(engine, plant, options.tiny)
            start = time.perf_counter()
            request = Bisect(engine.client.new_request_id(), recipe, Criterion(plant.kind, step_seconds=options.each))
            named, answer = 0.0, None
            async for _, answer in engine.follow(request, Bisected):
                if isinstance(answer, Progress):
                    passed = time.perf_counter() - start
                    named = named or passed * (NAMED in answer.activity)
                    if options.trials:
                        print(f"{passed:7.1f} {answer.activity}", file=sys.stderr)
            seconds = time.perf_counter() - start
    finding: BisectionResult = answer.finding
    return {
        "named": round(named or seconds, 1),
        "seconds": round(seconds, 1),
        "found": plant.is_found_by(finding),
        "confirmed": finding.confirmed,
        "trials": finding.trials,
        "told": finding.summary,
        "nodes": list(finding.nodes),
        "in_eager": len(finding.in_eager),
    }


async def _opened(engine: TimedEngine, plant: Plant, tiny: bool) -> Any:
    arguments = ("--tiny",) if tiny else ()
    recipe = plant.planted(default_recipe(BERT, arguments))
    request = Open(engine.client.new_request_id(), BERT, arguments, plugins=recipe.plugins)
    captured = [frame async for _, frame in engine.follow(request, Captured)][-1]
    return msgspec.structs.replace(recipe, plugins=captured.plugins)


def rows(found: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (
            name,
            f"{figures['named']:.1f}",
            f"{figures['seconds']:.1f}",
            figures["trials"],
            "yes" if figures["found"] else "NO",
            figures["told"],
        )
        for name, figures in found["plants"].items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plants", nargs="*", metavar="PLANT", help="names of plants (all)")
    parser.add_argument("--tiny", action="store_true", help="two narrow layers, to see that the benchmark works")
    parser.add_argument("--trials", action="store_true", help="say when each trial begins")
    text = f"stop a trial once a step of it takes longer ({EACH:g})"
    parser.add_argument("--each", type=float, default=EACH, metavar="SECONDS", help=text)
    options = parser.parse_args()
    machine, found = printing.machine(), run(measure(options))
    every = found["plants"].values()
    met = {
        "found": all(figures["found"] for figures in every),
        "seconds": all(figures["named"] <= WANTED["seconds"] for figures in every),
    }
    heading = ["plant", "named", "seconds", "trials", "found", "answer"]
    printing.tell({"machine": machine, **found, "wanted": WANTED, "met": met}, heading, rows(found))
    return 0 if met["found"] else 1


if __name__ == "__main__":
    sys.exit(main())
