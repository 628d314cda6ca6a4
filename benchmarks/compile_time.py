"""Compile time and memory over program size: transformers of 1 to 48 layers, from ATen graph to callable.

There are two kinds: `equal` layers, which the compiler turns into one function, and `different` layers (each has
another width), where nothing can be shared. Each point is a separate process with an empty cache. Prints one JSON
object with the exponent of the growth (the slope of log seconds over log nodes from 6 layers on: 1 is linear), and
draws a plot with `--plot FILE` (`pip install matplotlib`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support import printing

LAYERS, TINY = (1, 2, 3, 6, 12, 24, 48), (1, 2)
KINDS = ("equal", "different")
WIDTH, TOKENS, HEADS = 128, 32, 4
FIRST_FITTED = 6


def build(kind: str, layers: int) -> tuple[Any, Any]:
    """Returns a stack of encoder layers and an input for it; each of the `different` ones has another hidden width."""
    import torch
    from torch import nn

    torch.manual_seed(0)

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = (2 * WIDTH + 8 * number * (kind == "different") for number in range(layers))
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(WIDTH, HEADS, width, activation="gelu", batch_first=True) for width in widths
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    torch.backends.mha.set_fastpath_enabled(False)
    return Stack().eval(), torch.randn(1, TOKENS, WIDTH)


def measure_here(kind: str, layers: int) -> dict[str, float]:
    """Seconds, nodes, and the memory growth of the process in bytes, in this process."""
    import time

    import torch

    from buddy.compiler.driver.compile_graph import compile_graph
    from buddy.compiler.frontend.capture import capture
    from buddy.compiler.protocol.presets import default_recipe
    from buddy.compiler.runtime import LoadedProgram

    torch.set_num_threads(1)
    model, x = build("equal", 1)
    with torch.no_grad():
        (warm_up,) = capture(model, (x,))
        compile_graph(warm_up.graph, default_recipe(dialect="tosa"))
        model, x = build(kind, layers)
        (captured,) = capture(model, (x,))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    program = LoadedProgram(compile_graph(captured.graph, default_recipe()), frozen=True)
    seconds = time.perf_counter() - start
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    with torch.no_grad():
        error = (program(captured.tensors)[0] - model(x)).abs().max().item()
    return {"nodes": len(captured.graph.operations), "seconds": seconds, "grown_bytes": grown * 1024, "max_abs": error}


def measure(kind: str, layers: int) -> dict[str, float]:
    """Measures in a separate process with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, __file__, "--here", kind, str(layers)],
            env={**os.environ, "BUDDY_CACHE": cache, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def exponent(points: Sequence[dict[str, float]], name: str) -> float | None:
    """Returns the least-squares slope of `name` over nodes, both as logarithms."""
    pairs = [(math.log(p["nodes"]), math.log(p[name])) for p in points if p["layers"] >= FIRST_FITTED and p[name] > 0]
    if len(pairs) < 2:
        return None
    mean_x, mean_y = (sum(pair[i] for pair in pairs) / len(pairs) for i in (0, 1))
    return sum((x - mean_x) * (y - mean_y) for x, y in pairs) / sum((x - mean_x) ** 2 for x, _ in pairs)


def plot(found: dict[str, list[dict[str, float]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    shown = (("seconds", 1.0, "seconds from ATen graph to callable"), ("grown_bytes", 2**-20, "memory, MiB"))
    for axes, (name, scale, label) in zip(panels, shown, strict=True):
        for kind, points in found.items():
            axes.plot([p["nodes"] for p in points], [p[name] * scale for p in points], "o-", label=f"{kind} layers")
        axes.set_xlabel("nodes")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="few layers, to see that the benchmark works")
    parser.add_argument(
        "--repeats", type=int, default=1, metavar="N", help="processes for each point, the fastest counts (1)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the growth into FILE")
    parser.add_argument("--here", nargs=2, metavar=("KIND", "LAYERS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure_here(options.here[0], int(options.here[1]))))
        return 0
    machine, found = printing.machine(), dict[str, list[dict[str, float]]]()
    for kind in KINDS:
        for layers in TINY if options.tiny else LAYERS:
            tries = [measure(kind, layers) for _ in range(options.repeats)]
            found.setdefault(kind, []).append({"layers": layers, **min(tries, key=lambda point: point["seconds"])})
    growth = {
        kind: {name: exponent(points, name) for name in ("seconds", "grown_bytes")} for kind, points in found.items()
    }
    rows = [
        (kind, int(p["layers"]), int(p["nodes"]), f"{p['seconds']:.2f} s", f"{p['grown_bytes'] / 2**20:.0f} MiB")
        for kind, points in found.items()
        for p in points
    ]
    if options.plot:
        plot(found, options.plot)
    printing.tell(
        {"machine": machine, "growth": growth, **found}, ["layers are", "layers", "nodes", "compiled", "memory"], rows
    )
    return 0 if all(p["max_abs"] < 1e-4 for points in found.values() for p in points) else 1


if __name__ == "__main__":
    sys.exit(main())
