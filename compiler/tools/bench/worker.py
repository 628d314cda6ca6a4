"""One side of a comparison in a separate process: prepares a subject, then times a block of calls for each request."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

from buddy.compiler.support.processes.channel import Channel, serves
from buddy.compiler.tools.bench.session import BlockTimed, PrepareSide, SideFailed, SidePrepared, TimeBlock

# The minimum duration of a block. With a single call of a few milliseconds, a block would mostly measure how long the
# threads take to wake up after the side's last block, and one interrupt could double its time.
_MIN_BLOCK_SECONDS = 0.03


@serves(PrepareSide | TimeBlock)
def serve(channel: Channel) -> None:
    try:
        prepared, report = _prepare(channel.receive())
    except Exception as error:
        channel.send(SideFailed(f"{type(error).__name__}: {str(error)[:500]}"))
        return
    channel.send(SidePrepared(report))
    import torch

    with torch.no_grad():
        while channel.receive() is not None:
            channel.send(BlockTimed(seconds_per_call(prepared.call)))


def seconds_per_call(call: Callable[[], Any]) -> float:
    """Times a block of calls, and returns the median of their durations in seconds."""
    times: list[float] = []
    while not times or sum(times) < _MIN_BLOCK_SECONDS:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _prepare(request: PrepareSide) -> tuple[Any, dict[str, Any]]:
    import torch

    from buddy.compiler.tools.bench.sides import load, prepare_side, results_of

    torch.set_num_threads(request.threads)
    torch.manual_seed(0)
    loaded = load(request.source, request.arguments)
    start = time.perf_counter()
    with torch.no_grad():
        expected = results_of(loaded())
        prepared = prepare_side(request.side, loaded, request.threads)
        results = results_of(prepared.call())
    return prepared, {
        "prepare_seconds": time.perf_counter() - start,
        "compile_seconds": prepared.compile_seconds,
        "aten_seconds": prepared.aten_seconds,
        "warm_seconds": prepared.warm_seconds,
        "warm_aten_seconds": prepared.warm_aten_seconds,
        "error_of": _largest_error(results, expected),
        "flops": _flops(loaded),
        "parameter_bytes": _parameter_bytes(loaded.model),
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _largest_error(results: list[Any], expected: list[Any]) -> float:
    """Returns the largest difference in any output, divided by the output's root mean square if that is above 1."""
    if len(results) != len(expected):
        raise ValueError(f"{len(results)} results, but eager has {len(expected)}")
    errors = [0.0]
    for ours, theirs in zip(results, expected, strict=True):
        if theirs.numel():
            scale = max(1.0, theirs.double().square().mean().sqrt().item())
            errors.append((ours.double() - theirs.double()).abs().max().item() / scale)
    return max(errors)


def _flops(loaded: Any) -> int:
    """Returns the floating-point operations of matrix products and convolutions, by PyTorch's own counter."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        loaded()
    return int(counter.get_total_flops())


def _parameter_bytes(model: Any) -> int:
    import torch

    if not isinstance(model, torch.nn.Module):
        return 0
    return sum(p.numel() * p.element_size() for p in model.parameters())
