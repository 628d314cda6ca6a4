"""How many lines that Inductor generates lead to nodes of the FX graph, and which fusions it considered, by model.

`direct` counts the lines that compute one node, without the loops and declarations around them. A blank line does
not count, and of the wrapper only the body of `call` does, without comments. Prints one JSON object; arguments select
samples by name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import dropwhile
from pathlib import Path
from typing import Any

import torch
from support import printing

from buddy.compiler.importers.sources import load_program
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.graph_interpreter import symbol_values
from buddy.compiler.runtime.inductor.compiling import InductorStage, compile_program
from buddy.compiler.runtime.inductor.program import fx_program
from buddy.compiler.runtime.inductor.provenance import Line

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
MODELS = ("bert", "resnet18")
# The share of lines that has to lead to nodes.
WANTED = 0.95


def measure(name: str, options: Any) -> dict[str, Any]:
    """Compiles the first graph of a sample with Inductor, and counts its lines and fusions."""
    # A sample prints its results when it runs; standard output is for the JSON object.
    with redirect_stdout(sys.stderr):
        program = load_program(str(SAMPLES / f"{name}.py"), ("--tiny",) if options.tiny else ())
    captured: CapturedGraph = program.graphs[0]
    fx = fx_program(captured.graph, symbol_values(captured.graph, captured.tensors, captured.numbers))
    stages: dict[str, InductorStage] = {}
    with torch.no_grad():
        compile_program(fx, captured.tensors, (), 1, lambda stage: stages.update({stage.name: stage}))
    fusions = [line.text for line in stages["fusions"].lines]
    return {
        "kernels": count(stages["kernels"].lines),
        "wrapper": count(body_of_call(stages["wrapper"].lines)),
        "pairs": stages["fusions"].items,
        "fused": sum(line.lstrip().startswith("fused") for line in fusions),
    }


def count(lines: Sequence[Line]) -> dict[str, Any]:
    """Counts the lines with text, those that lead to nodes, and those that compute one of these nodes."""
    counted = [line for line in lines if line.text.strip()]
    with_nodes = [line for line in counted if line.names]
    return {
        "lines": len(counted),
        "with_nodes": len(with_nodes),
        "direct": sum(not line.is_derived for line in with_nodes),
        "without": [line.text.strip() for line in counted if not line.names][:10],
    }


def body_of_call(wrapper: Sequence[Line]) -> list[Line]:
    """Returns the lines of the function that calls the kernels, to its `return`, without comments."""
    body = list(dropwhile(lambda line: "def call(" not in line.text, wrapper))[1:]
    end = next(number for number, line in enumerate(body) if line.text.strip().startswith("return "))
    return [line for line in body[: end + 1] if not line.text.strip().startswith("#")]


def main() -> None:
    parser = printing.parser(__doc__, 1, "not used: the counts do not vary")
    parser.add_argument("models", nargs="*", metavar="NAME", help=f"samples ({' '.join(MODELS)})")
    options = parser.parse_args()
    torch.set_num_threads(1)
    models = {name: measure(name, options) for name in options.models or MODELS}
    rows = []
    for name, found in models.items():
        counts = [f"{found[part]['with_nodes']} of {found[part]['lines']}" for part in ("kernels", "wrapper")]
        rows.append((name, *counts, found["kernels"]["direct"], f"{found['fused']} of {found['pairs']}"))
    heading = ("model", "lines of kernels with nodes", "lines of the wrapper", "kernels, direct", "pairs fused")
    printing.tell({"machine": printing.machine(), "wanted": WANTED, "models": models}, heading, rows)


if __name__ == "__main__":
    main()
