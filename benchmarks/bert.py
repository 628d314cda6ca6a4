"""BERT-base, 1 x 128 tokens, f32, one thread, through the engine: time to the first result, then compared with
eager.

The first result is measured on a warm engine with an empty object cache, and again on another engine with the objects
of the first. Each of `--runs` runs starts a new runner that links the code, packs the weights and times `--repeats`
interleaved pairs of a compiled and an eager call; a run's ratio is that of its medians. Prints one JSON object; the
exit code is 1 for a wrong output.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from support import printing
from support.engine import TimedEngine, empty_object_cache, run, warm_engine
from support.timing import median_and_quartiles, summarize_ratios

from buddy.compiler.protocol import Compiled, RunReport
from buddy.compiler.protocol.recipe import Recipe

WANTED = {"max_abs": 1e-4, "ratio": 1.0, "first_result_seconds": 15.0, "nodes_eager": 0}


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    with empty_object_cache():
        async with warm_engine() as engine:
            first, recipe = await first_result(engine, options.tiny)
            reports = [(await engine.run(recipe, options.repeats))[-1][1].report for _ in range(options.runs)]
            assert engine.client.welcome is not None
            packages = engine.client.welcome.packages
        async with warm_engine() as engine:
            again, _ = await first_result(engine, options.tiny)
    return {
        "source": "samples/bert.py" + " --tiny" * options.tiny,
        "packages": packages,
        "seconds_from_a_warm_engine": first,
        "seconds_with_objects_cached": again,
        **of_reports(reports),
    }


async def first_result(engine: TimedEngine, tiny: bool) -> tuple[dict[str, float], Recipe]:
    """Seconds from opening the script to its graph, its last stage and its first comparison with eager."""
    captured, _, recipe = await engine.open_bert(tiny)
    answers = await engine.run(recipe, 1)
    compiled = next(seconds for seconds, frame in answers if isinstance(frame, Compiled))
    ends = {"captured": captured, "compiled": captured + compiled, "first_result": captured + answers[-1][0]}
    return {name: round(seconds, 2) for name, seconds in ends.items()}, recipe


def of_reports(reports: list[RunReport]) -> dict[str, Any]:
    """Returns a summary of the runs: the largest error of each output, and the spread of the runs' medians."""
    ours, theirs = [r.compiled.median for r in reports], [r.eager.median for r in reports]
    outputs = [
        {
            "name": output.name,
            "shape": list(output.shape),
            "dtype": output.dtype,
            "max_abs": max(report.outputs[index].max_abs for report in reports),
            "ok": all(report.outputs[index].verdict == "ok" for report in reports),
        }
        for index, output in enumerate(reports[0].outputs)
    ]
    return {
        "nodes": {"compiled": reports[0].nodes_compiled, "eager": reports[0].nodes_eager},
        "outputs": outputs,
        "inputs_unchanged": all(report.inputs_unchanged for report in reports),
        "pairs_per_run": reports[0].compiled.runs,
        "threads": reports[0].compiled.threads,
        "compiled_seconds": median_and_quartiles(ours),
        "eager_seconds": median_and_quartiles(theirs),
        "ratio": summarize_ratios(ours, theirs),
    }


def met(found: dict[str, Any]) -> dict[str, bool]:
    """Returns which of the targets were reached."""
    reached = {
        "max_abs": max(output["max_abs"] for output in found["outputs"]),
        "ratio": found["ratio"]["median"],
        "first_result_seconds": found["seconds_from_a_warm_engine"]["first_result"],
        "nodes_eager": found["nodes"]["eager"],
    }
    return {name: reached[name] <= limit for name, limit in WANTED.items()}


def rows(found: dict[str, Any]) -> list[tuple[object, ...]]:
    nodes = found["nodes"]
    cold, cached = (
        " s, ".join(f"{seconds:.1f}" for seconds in found[key].values()) + " s"
        for key in ("seconds_from_a_warm_engine", "seconds_with_objects_cached")
    )
    return [
        ("nodes compiled, in eager", f"{nodes['compiled']}, {nodes['eager']}"),
        ("captured, compiled, first result after", cold),
        ("the same with objects cached", cached),
        *((f"max abs error of {o['name']}", f"{o['max_abs']:.1e}") for o in found["outputs"]),
        ("compiled", printing.between(found["compiled_seconds"], " ms", 1e3)),
        ("eager", printing.between(found["eager_seconds"], " ms", 1e3)),
        ("compiled / eager", printing.between(found["ratio"])),
    ]


def main() -> int:
    parser = printing.parser(__doc__, 5, "interleaved pairs of a compiled and an eager call in each run")
    parser.add_argument("--runs", type=int, default=10, metavar="N", help="runs, each in a fresh runner (10)")
    options = parser.parse_args()
    machine = printing.machine()
    found = run(measure(options))
    printing.tell(
        {"machine": machine, **found, "wanted": WANTED, "met": met(found)}, ["BERT", "median (quartiles)"], rows(found)
    )
    return 0 if found["inputs_unchanged"] and all(output["ok"] for output in found["outputs"]) else 1


if __name__ == "__main__":
    sys.exit(main())
