"""The convolution kernels alone, compared with torch in both of its memory formats, on one thread, interleaved.

If the kernel uses Winograd's algorithm, direct convolution and larger tiles are measured too. Errors are root mean
squares with respect to double precision.

    python benchmarks/convolutions.py [name ...] [--repeats N] [--tiny]

The kernels read a padded image with channels last and packed weights, as they do inside a compiled program; torch pads
by itself. Prints one JSON object; the exit code is 1 for a wrong result.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it once, at import

import numpy as np
import torch
from support import printing
from support.timing import Call, in_turn, median_and_quartiles, summarize_ratios

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from buddy.compiler.passes.contractions_to_kernels import ContractionsToKernels
from buddy.compiler.passes.convolutions_to_kernels import ConvolutionsToKernels
from buddy.compiler.tools.bench import peak_rates
from tests.passes.convolution_calls import weights_of
from tests.passes.windows import Array, Window
from tests.support.mlir_jit import Compiled


def _square(size: int, channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> Window:
    return Window(size, size, channels, out, kernel, stride, kernel // 2, groups=groups)


CASES = {
    "resnet 224 3->64 7x7/2": _square(224, 3, 64, 7, 2),
    "resnet 56 64->64 3x3": _square(56, 64, 64, 3),
    "resnet 56 64->128 3x3/2": _square(56, 64, 128, 3, 2),
    "resnet 56 64->128 1x1/2": _square(56, 64, 128, 1, 2),
    "resnet 28 128->128 3x3": _square(28, 128, 128, 3),
    "resnet 28 128->256 3x3/2": _square(28, 128, 256, 3, 2),
    "resnet 14 256->256 3x3": _square(14, 256, 256, 3),
    "resnet 14 256->512 3x3/2": _square(14, 256, 512, 3, 2),
    "resnet 7 512->512 3x3": _square(7, 512, 512, 3),
    "resnet50 56 64->256 1x1": _square(56, 64, 256, 1),
    "resnet50 14 1024->256 1x1": _square(14, 1024, 256, 1),
    "mobilenet 224 3->16 3x3/2": _square(224, 3, 16, 3, 2),
    "mobilenet 112 depthwise 16 3x3/2": _square(112, 16, 16, 3, 2, 16),
    "mobilenet 56 depthwise 72 3x3/2": _square(56, 72, 72, 3, 2, 72),
    "mobilenet 28 depthwise 88 3x3": _square(28, 88, 88, 3, 1, 88),
    "mobilenet 28 depthwise 96 5x5/2": _square(28, 96, 96, 5, 2, 96),
    "mobilenet 14 depthwise 240 5x5": _square(14, 240, 240, 5, 1, 240),
    "mobilenet 7 depthwise 576 5x5": _square(7, 576, 576, 5, 1, 576),
    "mobilenet 28 24->88 1x1": _square(28, 24, 88, 1),
    "mobilenet 7 96->576 1x1": _square(7, 96, 576, 1),
    "resnext 28 256->256 3x3, 32 groups": _square(28, 256, 256, 3, 1, 32),
}
TINY = {
    "12 48->48 3x3": _square(12, 48, 48, 3),
    "7 5->17 3x3": _square(7, 5, 17, 3),
    "9 depthwise 21 3x3/2": _square(9, 21, 21, 3, 2, 21),
}


# The kernel that a program gets, and its alternatives.
KINDS = {"ours": "auto", "direct": "never", "winograd 4x4": "4"}


def compiled(window: Window, winograd: str) -> tuple[Call, Array, str]:
    """Returns the call of a kernel, its output array, and its remark."""
    module = Compiled(window.function("f"), [ConvolutionsToKernels(winograd=winograd), ContractionsToKernels()])
    a, b, c = window.arrays(*window.operands())
    return module.bound("f", a, *weights_of(module, "f", b), c), c, module.remarks[-1]


def prepared(window: Window) -> tuple[dict[str, Call], str, dict[str, float], float]:
    """Returns the calls of each side, the remark of our kernel, the errors of the results, and the largest of ours."""
    image, weights = window.operands()
    calls: dict[str, Call] = {}
    errors: dict[str, float] = {}
    exact, remark, largest = window.expected(image, weights), "", 0.0
    for kind, winograd in KINDS.items():
        if kind != "ours" and ": winograd" not in remark:
            continue
        calls[kind], result, text = compiled(window, winograd)
        calls[kind]()
        remark, largest = remark or text, largest or float(np.abs(result - exact).max())
        errors[kind] = rms(result - exact)
    last, of_last = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (image, weights))
    calls["torch"] = lambda: window.eager(image, weights)
    calls["torch, channels last"] = lambda: window.eager(last, of_last)
    with torch.no_grad():
        errors["torch"] = rms(window.eager(image, weights).permute(0, 2, 3, 1).numpy().reshape(exact.shape) - exact)
    return calls, remark, errors, largest


def rms(errors: Array) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def measure(window: Window, repeats: int, peak: float) -> dict[str, Any]:
    start = time.perf_counter()
    calls, remark, errors, largest = prepared(window)
    seconds = time.perf_counter() - start
    with torch.no_grad():
        times = in_turn(calls, repeats)
    rates = {side: median_and_quartiles([1e-9 * window.flops / s for s in found]) for side, found in times.items()}
    faster = max(("torch", "torch, channels last"), key=lambda side: rates[side]["median"])
    depth = window.channels // window.groups * window.kernel**2
    return {
        "gflops": rates,
        "of_peak": round(
            1e-9 * window.flops / min(times["ours"]) / peak, 3
        ),  # the peak is also the rate of the best time
        "of_torch": summarize_ratios(times[faster], times["ours"]),
        "rms": errors,
        "max_abs": largest,
        "ok": largest <= 8 * float(np.finfo(np.float32).eps) * depth**0.5,  # sums around one, at most eight times that
        "prepare_seconds": round(seconds, 3),
        "remark": remark,
    }


SIDES = (*KINDS, "torch", "torch, channels last")


def row(name: str, found: dict[str, Any]) -> list[object]:
    rates = [f"{found['gflops'][side]['median']:.1f}" if side in found["gflops"] else "–" for side in SIDES]
    of_torch = {side: error / max(found["rms"]["torch"], 1e-30) for side, error in found["rms"].items()}
    errors = ", ".join(f"{of_torch[side]:.1f}" for side in KINDS if side in of_torch)
    between = printing.between(found["of_torch"])
    return [name, *rates, f"{100 * found['of_peak']:.0f} %", between, errors, found["remark"]]


def chosen(options: argparse.Namespace) -> dict[str, Window]:
    cases = TINY if options.tiny else CASES
    return {
        name: window
        for name, window in cases.items()
        if not options.names or any(part in name for part in options.names)
    }


def main() -> int:
    parser = printing.parser(__doc__, 30, "rounds over the three")
    parser.add_argument("names", nargs="*", help="only cases whose name contains one of these")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = {**printing.machine(), "peak_gflops": round(peak_rates.measure_peak_rates(1)["gflops"], 1)}
    found = {name: measure(window, options.repeats, machine["peak_gflops"]) for name, window in chosen(options).items()}
    heading = [
        "convolution",
        *(f"{side}, GFLOP/s" if side == "ours" else side for side in SIDES),
        "of peak",
        "of the faster torch (quartiles)",
        "errors, of torch's",
        "kernel",
    ]
    printing.tell({"machine": machine, "cases": found}, heading, [row(*item) for item in found.items()])
    return 0 if all(figures["ok"] for figures in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
