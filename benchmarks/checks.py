"""The cost of value checks: each model compiled with and without them, with interleaved calls.

Ratios by pairs of calls.

Checks detect indices out of range and failed assertions of a program (`options={"checks": "none"}` omits them). A ratio
is the time with checks divided by the time without. Prints one JSON object; arguments select samples by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch
from support import printing
from support.timing import in_turn, median_and_quartiles, summarize_ratios

from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.importers.sources import load_program
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.runtime.captured import CapturedGraph

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
MODELS = ("bert", "gpt2", "llama", "whisper", "vit", "resnet18", "mobilenet_v3")
WANTED = 1.02


def measure(name: str, options: Any) -> dict[str, Any]:
    """Measures the first graph of a sample, on its own inputs."""
    program = load_program(str(SAMPLES / f"{name}.py"), ("--tiny",) if options.tiny else ())
    captured: CapturedGraph = program.graphs[0]
    recipe = default_recipe()
    runs = {
        "checks": _loaded(captured, recipe),
        "none": _loaded(captured, msgspec.structs.replace(recipe, checks="none")),
    }
    with torch.no_grad():
        seconds = in_turn(
            {what: lambda run=run: run(captured.tensors, captured.numbers) for what, run in runs.items()},
            options.repeats,
        )
    return {
        "seconds": {what: median_and_quartiles(found) for what, found in seconds.items()},
        "ratio": summarize_ratios(seconds["checks"], seconds["none"]),
    }


def _loaded(captured: CapturedGraph, recipe: Any) -> LoadedProgram:
    return LoadedProgram(compile_graph(captured.graph, recipe), frozen=True)


def main() -> None:
    parser = printing.parser(__doc__, 30, "calls of each")
    parser.add_argument("models", nargs="*", metavar="NAME", help=f"samples ({' '.join(MODELS)})")
    options = parser.parse_args()
    torch.set_num_threads(1)
    models = {name: measure(name, options) for name in options.models or MODELS}
    rows = [(name, printing.between(found["ratio"])) for name, found in models.items()]
    found = {"machine": printing.machine(), "wanted": WANTED, "models": models}
    printing.tell(found, ("model", "with checks by without"), rows)


if __name__ == "__main__":
    main()
