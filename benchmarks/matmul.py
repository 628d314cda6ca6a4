"""Plain f32 matrix products, captured, compiled and linked, compared with NumPy and torch.mm on one thread.

The calls are interleaved; each ratio is another side's time divided by ours, pair by pair, so that 1 means equal rates
and more than 1 that ours is faster. `threads` is processor time divided by elapsed time, which shows whether a side
used one thread. Prints one JSON object; the exit code is 1 for a wrong product.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

# OpenBLAS reads this once, when NumPy is imported.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from support import printing
from support.timing import Call, in_turn, median_and_quartiles, summarize_ratios

from buddy.compiler.driver.compilation import Compiler
from buddy.compiler.frontend.capture import capture
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime import LoadedProgram

SIZES, TINY = (256, 512, 1024, 2048), (32, 64)
WANTED = {"2048": {"of_numpy": 0.85}}


def compiled(a: torch.Tensor, b: torch.Tensor) -> tuple[LoadedProgram, float]:
    """Returns `torch.mm(a, b)`, compiled by the whole pipeline, and the seconds from graph to object."""
    (captured,) = capture(torch.mm, (a, b))
    compilation = Compiler(captured.graph).compile(default_recipe())
    return LoadedProgram(compilation.artifact, frozen=True), compilation.seconds


def measure(size: int, repeats: int) -> dict[str, Any]:
    torch.manual_seed(size)
    a, b = torch.randn(size, size), torch.randn(size, size)
    program, seconds = compiled(a, b)
    array_a, array_b = a.numpy(), b.numpy()
    calls: dict[str, Call] = {
        "ours": lambda: program([a, b]),
        "numpy": lambda: array_a @ array_b,
        "torch": lambda: torch.mm(a, b),
    }
    threads = {name: round(_threads(call), 2) for name, call in calls.items()}
    times = in_turn(calls, repeats)
    return {
        "compile_seconds": round(seconds, 3),
        "max_abs": float(np.abs(program([a, b])[0].numpy() - array_a.astype(np.float64) @ array_b).max()),
        "max_abs_torch": float(np.abs(torch.mm(a, b).numpy() - array_a.astype(np.float64) @ array_b).max()),
        "gflops": {
            name: median_and_quartiles([2e-9 * size**3 / second for second in found]) for name, found in times.items()
        },
        "of_numpy": summarize_ratios(times["numpy"], times["ours"]),
        "of_torch": summarize_ratios(times["torch"], times["ours"]),
        "threads": threads,
    }


def _threads(call: Call) -> float:
    """Returns processor time divided by elapsed time, over a tenth of a second of calls."""
    call()
    start, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < 0.1:
        call()
    return (time.process_time() - used) / (time.perf_counter() - start)


def row(name: str, found: dict[str, Any]) -> list[object]:
    rates = [f"{found['gflops'][side]['median']:.1f}" for side in ("ours", "numpy", "torch")]
    compared = [printing.between(found[key]) for key in ("of_numpy", "of_torch")]
    return [name, *rates, *compared, f"{found['max_abs']:.1e}"]


def main() -> int:
    parser = printing.parser(__doc__, 30, "rounds over the three")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = printing.machine()
    found = {str(size): measure(size, options.repeats) for size in (TINY if options.tiny else SIZES)}
    met = {size: found[size]["of_numpy"]["median"] >= w["of_numpy"] for size, w in WANTED.items() if size in found}
    blas = np.show_config("dicts")["Build Dependencies"]["blas"]
    versions = {"torch": torch.__version__, "numpy": np.__version__, "blas": f"{blas['name']} {blas['version']}"}
    heading = ["matmul", "GFLOP/s", "NumPy", "torch", "of NumPy (quartiles)", "of torch (quartiles)", "max abs error"]
    printing.tell(
        {"machine": machine, "packages": versions, "sizes": found, "wanted": WANTED, "met": met},
        heading,
        [row(size, figures) for size, figures in found.items()],
    )
    return 0 if all(figures["max_abs"] <= max(1e-4, 4 * figures["max_abs_torch"]) for figures in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
