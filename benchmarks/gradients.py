"""Forward and backward of single layers, compiled by this project, by Inductor, and in eager, interleaved.

    python benchmarks/gradients.py [name ...] [--repeats N] [--threads N] [--clock {wall,cpu}] [--tiny]

A round calls the layer in training mode and then the backward of its output, with gradients of the input, the weights
and the bias; both parts are timed, with `--clock cpu` without their waits for a core. A ratio is the time of the faster
of eager and Inductor divided by ours. Prints one JSON object; the exit code is 1 if a gradient is not within the
tolerance of `torch.testing` of eager's.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from support import printing
from support.timing import median_and_quartiles, summarize_ratios
from torch import nn

Layer = Callable[[], tuple[nn.Module, tuple[int, ...]]]  # the module, and the shape of its input


def _linear(rows: int, inputs: int, outputs: int) -> Layer:
    return lambda: (nn.Linear(inputs, outputs), (rows, inputs))


def _conv(
    batch: int,
    size: int,
    channels: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    norm: bool = False,
) -> Layer:
    def layer() -> tuple[nn.Module, tuple[int, ...]]:
        conv = nn.Conv2d(channels, outputs, kernel, stride, kernel // 2, groups=groups, bias=not norm)
        module = nn.Sequential(conv, nn.BatchNorm2d(outputs)) if norm else conv
        return module, (batch, channels, size, size)

    return layer


CASES: dict[str, Layer] = {
    **{
        f"linear {rows}x{inputs}->{outputs}": _linear(rows, inputs, outputs)
        for rows, inputs, outputs in (
            (64, 256, 512), (64, 512, 10), (128, 512, 512), (128, 768, 768), (256, 768, 768), (256, 768, 3072),
            (256, 3072, 768), (512, 1024, 1024), (197, 192, 576), (197, 192, 768), (197, 768, 192), (100, 300, 500),
            (1024, 128, 128), (32, 2048, 1000), (256, 768, 50257 // 8),
        )
    },
    **{
        f"conv {batch}x{size} {channels}->{outputs} {kernel}x{kernel}/{stride}" + f", {groups} groups" * (groups > 1):
        _conv(batch, size, channels, outputs, kernel, stride, groups)
        for batch, size, channels, outputs, kernel, stride, groups in (
            (4, 56, 64, 64, 3, 1, 1), (4, 28, 128, 128, 3, 1, 1), (4, 14, 256, 256, 3, 1, 1), (4, 7, 512, 512, 3, 1, 1),
            (4, 56, 64, 128, 3, 2, 1), (4, 28, 128, 256, 3, 2, 1), (4, 56, 64, 128, 1, 2, 1), (4, 56, 64, 256, 1, 1, 1),
            (4, 14, 1024, 256, 1, 1, 1), (4, 112, 3, 64, 7, 2, 1), (1, 64, 16, 16, 3, 1, 1), (4, 56, 72, 72, 3, 1, 72),
            (4, 28, 96, 96, 5, 2, 96), (4, 28, 256, 256, 3, 1, 32),
        )
    },
    "conv 4x56 64->64 3x3, batch norm": _conv(4, 56, 64, 64, 3, norm=True),
}  # fmt: skip
TINY: dict[str, Layer] = {
    "linear 8x16->24": _linear(8, 16, 24),
    "conv 2x9 5->7 3x3, batch norm": _conv(2, 9, 5, 7, 3, norm=True),
}
SIDES: dict[str, Any] = {"ours": "buddy", "inductor": "inductor", "eager": None}


class Step:
    """Forward and backward of one layer on one side, and its gradients."""

    def __init__(self, layer: Layer, side: str) -> None:
        torch.manual_seed(0)
        self.module, shape = layer()
        self.input = torch.randn(shape, requires_grad=True)
        torch._dynamo.reset()
        chosen = SIDES[side]
        self.call = self.module if chosen is None else torch.compile(self.module, backend=chosen, dynamic=False)
        self.gradient = torch.randn(self.call(self.input).shape)

    def seconds(self, clock: str) -> tuple[float, float]:
        """Runs one step; returns the seconds of its forward and of its backward, of duration or of CPU time."""
        now = time.process_time if clock == "cpu" else time.perf_counter
        self.module.zero_grad(set_to_none=True)
        self.input.grad = None
        start = now()
        output = self.call(self.input)
        middle = now()
        output.backward(self.gradient)
        return middle - start, now() - middle

    def gradients(self) -> dict[str, torch.Tensor]:
        named = {name: parameter.grad for name, parameter in self.module.named_parameters()}
        return {name: grad for name, grad in {"input": self.input.grad, **named}.items() if grad is not None}


def measure(layer: Layer, options: argparse.Namespace) -> dict[str, Any]:
    steps = {side: Step(layer, side) for side in SIDES}
    for step in steps.values():
        step.seconds(options.clock)
    seconds: dict[str, dict[str, list[float]]] = {
        part: {side: [] for side in SIDES} for part in ("forward", "backward")
    }
    names = list(SIDES)
    for number in range(options.repeats):
        turn = number % len(names)
        for side in names[turn:] + names[:turn]:
            for part, found in zip(seconds, steps[side].seconds(options.clock), strict=True):
                seconds[part][side].append(found)
    result: dict[str, Any] = {"different": _different(steps["ours"], steps["eager"])}
    for part, by_side in seconds.items():
        medians = {side: median_and_quartiles(found) for side, found in by_side.items()}
        fastest = min(("inductor", "eager"), key=lambda side: medians[side]["median"])
        result[part] = {
            "seconds": medians,
            "fastest": fastest,
            "ratio": summarize_ratios(by_side[fastest], by_side["ours"]),
        }
    return result


def _different(ours: Step, eager: Step) -> list[str]:
    """Returns the gradients that differ from eager's by more than float32's tolerance in `torch.testing`.

    A sum of many products may be off by that tolerance of its largest element, so it is relative to that.
    """
    found, expected = ours.gradients(), eager.gradients()
    scale = {name: float(value.abs().max()) for name, value in expected.items()}
    return [
        name for name, value in expected.items()
        if not torch.allclose(found[name], value, rtol=1.3e-6, atol=1e-5 * max(1.0, scale[name]))
    ]  # fmt: skip


def main() -> None:
    parser = printing.parser(__doc__, 30, "rounds")
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases that contain one of these (all)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of each side (1)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="durations, or CPU time on one thread")
    options = parser.parse_args()
    if options.clock == "cpu" and options.threads != 1:
        parser.error("--clock cpu adds up the times of all threads: use it with --threads 1")
    torch.set_num_threads(options.threads)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    cases = {
        name: layer
        for name, layer in (TINY if options.tiny else CASES).items()
        if not options.names or any(part in name for part in options.names)
    }
    results: dict[str, Any] = {}
    for name, layer in cases.items():
        results[name] = measure(layer, options)
        print(f"{name}: backward {printing.between(results[name]['backward']['ratio'])}", file=sys.stderr)
    rows = [
        [name, *(
            text for part in ("forward", "backward") for text in (
                *(f"{1e3 * found[part]['seconds'][side]['median']:.3g}" for side in SIDES),
                printing.between(found[part]["ratio"]),
            )
        ), ", ".join(found["different"]) or "–"]
        for name, found in results.items()
    ]  # fmt: skip
    means = {
        part: math.exp(sum(math.log(found[part]["ratio"]["median"]) for found in results.values()) / len(results))
        for part in ("forward", "backward")
    }
    heading = ["layer", *(f"{part} {side} ms" for part in ("forward", "backward") for side in (*SIDES, "ratio"))]
    heading = [title.removesuffix(" ms") if "ratio" in title else title for title in heading]
    found = {
        "machine": printing.machine(),
        "threads": options.threads,
        "clock": options.clock,
        "geometric_mean": means,
        "layers": results,
    }
    printing.tell(found, [*heading, "different"], rows)
    print(f"geometric mean: forward {means['forward']:.3g}, backward {means['backward']:.3g}", file=sys.stderr)
    sys.exit(any(found["different"] for found in results.values()))


if __name__ == "__main__":
    main()
