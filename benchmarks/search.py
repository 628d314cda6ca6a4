"""Search over every snapshot of BERT-base at once, through the engine; prints one JSON object.

    python benchmarks/search.py [--tiny] [--rounds 9]

The budget is for plain text. Regular expressions are matched in a separate process, whose start is included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from support.engine import TimedEngine, run, warm_engine

from buddy.compiler.protocol import SearchEach

BUDGET_MS = 300
# (pattern, is a regular expression, ignores case)
SEARCHES = (
    ("vector.contract", False, False),
    ("memref<1x128", False, False),
    ("linalg.generic", False, True),
    (r"llvm\.(load|store) .*f32", True, False),
)


async def measure(options: argparse.Namespace) -> dict[str, object]:
    async with warm_engine() as engine:
        _, _, recipe = await engine.open_bert(options.tiny)
        _, compiled = [answer async for answer in engine.compile(recipe)][-1]
        names = tuple(stage.text for stage in compiled.stages)
        found = {search[0]: await times(engine, names, search, options.rounds) for search in SEARCHES}
    return {"stages": len(names), "texts": len(set(names)), "searches": found, "budget_ms": BUDGET_MS}


async def times(engine: TimedEngine, names: tuple[str, ...], search: tuple[str, bool, bool], rounds: int) -> object:
    """Returns the first time, which also indexes lines, and the median of the others, in ms; lines found."""
    taken, answer = [], None
    for _ in range(rounds):
        start = time.perf_counter()
        request = SearchEach(engine.client.new_request_id(), names, *search)
        answer = await engine.client.request(request)
        taken.append((time.perf_counter() - start) * 1e3)
    lines = sum(len(hits.lines) for hits in answer.hits) if answer else 0
    return {"first_ms": round(taken[0]), "median_ms": round(statistics.median(taken[1:])), "lines": lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a small BERT")
    parser.add_argument("--rounds", type=int, default=9)
    print(json.dumps(run(measure(parser.parse_args())), indent=2))


if __name__ == "__main__":
    main()
