"""Peak memory of a training step in the steady state, for the models of `training.toml`, compared with others.

A figure is the maximum held by torch's allocator during the third step: results, saved tensors, gradients, scratch
memory, the state of the optimizer, and what a side keeps from step to step; without weights and inputs. Memory that a
library allocates itself (MKL, oneDNN) is not counted. The numbers are the same in every run. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from msgspec import json as msgspec_json
from msgspec import structs
from support import printing
from support.processes import result_of

from buddy.compiler.runtime.measure import MemoryTrace
from buddy.compiler.tools.bench.plan import BenchSubject, read_suite
from buddy.compiler.tools.bench.subjects import load_subject

SUITE = Path(__file__).resolve().parent / "training.toml"
WANTED = {"ratio to inductor": 1.0}
SIDES = ("buddy", "eager", "inductor")
# The first step compiles and makes the optimizer's state; the second one fills what is kept from step to step.
WARM_STEPS = 2


def measure(subject: BenchSubject, side: str) -> dict[str, int]:
    """Returns in bytes the peak of a step, and what is held when it starts, in this process."""
    torch.set_num_threads(1)
    step = load_subject(subject.source, subject.arguments, subject.task)
    if side != "eager":
        step = replace(step, model=torch.compile(step.model, backend=side))
    with MemoryTrace() as trace:
        for _ in range(WARM_STEPS):
            step()
        step.optimizer.zero_grad()
        trace.mark()
        step()
    return {"peak": trace.peak, "held": trace.held_at_mark}


def small(subject: BenchSubject) -> BenchSubject:
    return structs.replace(subject, arguments=("--tiny", *subject.arguments))


def row(name: str, found: dict[str, Any]) -> list[object]:
    peaks = [f"{found[side]['peak'] / 1e6:.2f}" for side in SIDES]
    return [name, *peaks, f"{found['buddy']['held'] / 1e6:.2f}", found["ratio"]]


def main() -> int:
    parser = printing.parser(__doc__, 1, "not used: the results do not vary")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names of the suite (all of them)")
    parser.add_argument("--one", default="", metavar="SUBJECT", help="measure one subject, given as JSON, and end")
    parser.add_argument("--side", default="buddy", choices=SIDES, help="the side of `--one`")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(msgspec_json.decode(options.one, type=BenchSubject), options.side)))
        return 0
    subjects = read_suite(SUITE)
    if options.tiny:
        subjects = tuple(small(subject) for subject in subjects)
    found: dict[str, dict[str, Any]] = {}
    for subject in subjects:
        if not options.models or subject.name in options.models:
            words = ["--one", msgspec_json.encode(subject).decode(), "--side"]
            figures: dict[str, Any] = {side: result_of(__file__, *words, side) for side in SIDES}
            figures["ratio"] = round(figures["buddy"]["peak"] / figures["inductor"]["peak"], 3)
            found[subject.name] = figures
    met = {name: figures["ratio"] <= WANTED["ratio to inductor"] for name, figures in found.items()}
    heading = ["model", "compiled, MB", "eager", "inductor", "kept between steps", "ratio to inductor"]
    result = {"models": found, "wanted": WANTED, "met": met}
    printing.tell(result, heading, [row(name, figures) for name, figures in found.items()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
