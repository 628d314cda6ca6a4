"""The cost of comparing every node with eager: seconds relative to runs of the program and of eager, and peak
memory.

Rounds of a run, of eager and of the comparison are interleaved in one process, with packed weights and linked code:
`seconds` are medians, and `bound` is three runs and one of eager. Peak memory is that of a process that loads the
program and runs eager, and of another that loads it, compiles the instrumented program and compares every node,
including libraries and weights; `before` is the memory of the second one before the comparison, after compilation.
Prints one JSON object; arguments select samples by name.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from support import printing
from support.timing import seconds_of

from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.driver.observation import compile_observed
from buddy.compiler.importers.sources import load_program
from buddy.compiler.protocol.numerics import ObservedProgram
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.measure import run_eager
from buddy.compiler.runtime.node_comparison import compare_nodes
from buddy.compiler.tools.bench.report import median_and_quartiles

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
MODELS = ("bert", "gpt2")
WANTED = {"runs": 3.0, "memory": 2.0}


def measure(name: str, options: Any) -> dict[str, Any]:
    """Measures each part in a separate process."""
    timed, eager, compared = (apart(part, name, options) for part in PARTS)
    seconds = timed["seconds"]
    bound = WANTED["runs"] * seconds["run"]["median"] + seconds["eager"]["median"]
    memory = {"eager": eager["peak"], "compared": compared["peak"], "before": compared["before"]}
    return {
        **timed,
        "bound": round(bound, 4),
        "share": round(seconds["compared"]["median"] / bound, 3),
        "memory": {**memory, "ratio": round(compared["peak"] / eager["peak"], 3)},
    }


def apart(part: str, name: str, options: Any) -> dict[str, Any]:
    words = [sys.executable, __file__, "--part", part, "--repeats", str(options.repeats), name]
    said = subprocess.run([*words, *["--tiny"] * options.tiny], stdout=subprocess.PIPE, text=True, check=True).stdout
    # Imports of a script may print other lines.
    found: dict[str, Any] = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    return found


def _timed(captured: CapturedGraph, repeats: int) -> dict[str, Any]:
    program = _observed(captured)
    plain = LoadedProgram(compile_graph(captured.graph, default_recipe()), frozen=True)
    seconds: dict[str, list[float]] = {"run": [], "eager": [], "compared": []}
    with torch.no_grad():
        plain(captured.tensors, captured.numbers)
        for _ in range(repeats):
            seconds["run"].append(seconds_of(lambda: plain(captured.tensors, captured.numbers)))
            seconds["eager"].append(seconds_of(lambda: run_eager(captured)))
            report = compare_nodes(captured, program)
            seconds["compared"].append(report.seconds)
    return {
        "nodes": len(report.nodes),
        "wrong": report.first,
        "alone": sum(found.own_error is not None for found in report.nodes),
        "programs": len(program.node_programs),
        "compile_seconds": round(program.seconds, 2),
        "seconds": {what: median_and_quartiles(found) for what, found in seconds.items()},
    }


def _eager(captured: CapturedGraph, repeats: int) -> dict[str, Any]:
    with torch.no_grad():
        run_eager(captured)
    return {"peak": most_bytes()}


def _compared(captured: CapturedGraph, repeats: int) -> dict[str, Any]:
    program = _observed(captured)
    before = most_bytes()
    compare_nodes(captured, program)
    return {"before": before, "peak": most_bytes()}


PARTS: dict[str, Callable[[CapturedGraph, int], dict[str, Any]]] = {
    "timed": _timed,
    "eager": _eager,
    "compared": _compared,
}


def _observed(captured: CapturedGraph) -> ObservedProgram:
    start = time.perf_counter()
    found = compile_observed(captured.graph, default_recipe(), captured.user_lowerings())
    print(f"compiled in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return found


def most_bytes() -> int:
    """Returns the peak memory of this process, by Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10


def row(name: str, found: dict[str, Any]) -> list[object]:
    seconds = [f"{found['seconds'][what]['median']:.3f}" for what in ("run", "eager", "compared")]
    memory = [f"{found['memory'][what] / 1e6:.0f}" for what in ("eager", "compared")]
    return [name, found["nodes"], *seconds, found["share"], *memory, found["memory"]["ratio"]]


def main() -> int:
    parser = printing.parser(__doc__, 5, "rounds of a run, eager and the comparison")
    parser.add_argument("models", nargs="*", metavar="SAMPLE", help=f"names of samples ({', '.join(MODELS)})")
    parser.add_argument("--part", choices=PARTS, help="measure one part of one sample in this process, and end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part:
        arguments = ("--tiny",) if options.tiny else ()
        captured = load_program(str(SAMPLES / f"{options.models[0]}.py"), arguments).graphs[0]
        print(json.dumps(PARTS[options.part](captured, options.repeats)))
        return 0
    machine = printing.machine()
    found = {name: measure(name, options) for name in options.models or MODELS}
    met = {
        name: {"seconds": figures["share"] <= 1.0, "memory": figures["memory"]["ratio"] <= WANTED["memory"]}
        for name, figures in found.items()
    }
    heading = ["program", "nodes", "run, s", "eager", "compared", "of bound", "eager, MB", "compared", "ratio"]
    result = {"machine": machine, "models": found, "wanted": WANTED, "met": met}
    printing.tell(result, heading, [row(name, figures) for name, figures in found.items()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
