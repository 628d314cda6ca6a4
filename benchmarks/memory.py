"""Peak memory of activations during a call, compiled compared with eager, for the models of a suite.

Both are the maximum held by torch's allocator, including results, without weights and inputs; packed weights are listed
separately. The arena is planned at compile time, so the numbers are the same in every run. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from msgspec import json as msgspec_json
from msgspec import structs
from support import printing
from support.processes import result_of

from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.importers.sources import load_program
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime.executable import LoadedProgram
from buddy.compiler.runtime.measure import measure_peak
from buddy.compiler.tools.bench.plan import BenchSubject, read_suite

SUITE = Path(__file__).resolve().parent / "models.toml"
WANTED = {"ratio": 1.1}
# Programs without a small form, left out of a small run.
LARGE = ("resnet50", "mlp")


def measure(subject: BenchSubject) -> dict[str, Any]:
    """Returns the peak memory in bytes of a subject's first graph, in this process."""
    torch.set_num_threads(1)
    captured = load_program(subject.source, subject.arguments).graphs[0]
    artifact = compile_graph(captured.graph, default_recipe())
    program = LoadedProgram(artifact, frozen=True)
    with torch.no_grad():
        _, first = measure_peak(lambda: program(captured.tensors, captured.numbers))
        _, eager = measure_peak(lambda: captured.eager(captured.tensors))
    ours = max(0, first - program.packed_bytes)
    return {
        "compiled": ours,
        "arena": artifact.arena,
        "eager": eager,
        "ratio": round(ours / eager, 3) if eager else None,
        "packed": program.packed_bytes,
    }


def small(subject: BenchSubject) -> BenchSubject:
    return structs.replace(subject, arguments=("--tiny", *(a for a in subject.arguments if a == "--decode")))


def row(name: str, found: dict[str, Any]) -> list[object]:
    return [name, *(f"{found[key] / 1e6:.3f}" for key in ("compiled", "arena", "eager", "packed")), found["ratio"]]


def main() -> int:
    parser = printing.parser(__doc__, 1, "not used: the results do not vary")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names of the suite (all of them)")
    parser.add_argument("--one", default="", metavar="SUBJECT", help="measure one subject, given as JSON, and end")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(msgspec_json.decode(options.one, type=BenchSubject))))
        return 0
    subjects = read_suite(SUITE)
    if options.tiny:
        subjects = tuple(small(subject) for subject in subjects if subject.name not in LARGE)
    wanted = options.models or [subject.name for subject in subjects]
    found = {
        subject.name: result_of(__file__, "--one", msgspec_json.encode(subject).decode())
        for subject in subjects
        if subject.name in wanted
    }
    met = {name: figures["ratio"] is None or figures["ratio"] <= WANTED["ratio"] for name, figures in found.items()}
    heading = ["model", "compiled, MB", "arena", "eager", "packed weights", "ratio"]
    result = {"models": found, "wanted": WANTED, "met": met}
    printing.tell(result, heading, [row(name, figures) for name, figures in found.items()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
