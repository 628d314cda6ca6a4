"""Runs one side of a comparison in a separate process: prepares a subject, then times a block of calls per request."""

from __future__ import annotations

import copy
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.support.processes.channel import Channel, serves
from buddy.compiler.tools.bench.plan import Clock
from buddy.compiler.tools.bench.session import BlockTimed, PrepareSide, SideFailed, SidePrepared, TimeBlock

# The minimum duration of a block. With a single call of a few milliseconds, a block would mostly measure how long the
# threads take to wake up after the side's last block, and one interrupt could double its time.
_MIN_BLOCK_SECONDS = 0.03
_MAX_REASON_CHARACTERS = 300


@serves(PrepareSide | TimeBlock)
def serve(channel: Channel) -> None:
    """Prepares the subject of the first request, then times a block for each further request."""
    import torch

    try:
        request = channel.receive()
        with torch.set_grad_enabled(request.task == "training"):
            call, report = _prepare_subject(request)
    except Exception as error:
        channel.send(SideFailed(_describe_error(error)))
        return
    channel.send(SidePrepared(report))
    with torch.set_grad_enabled(request.task == "training"):
        while channel.receive() is not None:
            channel.send(BlockTimed(seconds_per_call(call, request.clock)))


def _describe_error(error: Exception) -> str:
    """Returns an error in one line, with its type unless the project raised it."""
    if isinstance(error, BuddyError):
        return str(error)
    # The first line of an error of Dynamo is that of its cause; the others explain how to see more of it.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:_MAX_REASON_CHARACTERS]


def seconds_per_call(call: Callable[[], Any], clock: Clock = "wall") -> float:
    """Times a block of calls, and returns the median of their durations in seconds, or of their CPU times."""
    now = time.process_time if clock == "cpu" else time.perf_counter
    times: list[float] = []
    while not times or sum(times) < _MIN_BLOCK_SECONDS:
        start = now()
        call()
        times.append(now() - start)
    return statistics.median(times)


def _prepare_subject(request: PrepareSide) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Compiles the subject by a side, and compares its results with eager.

    Returns its call, and the report of `SidePrepared`: times in seconds, errors, and numbers of the subject.
    """
    import torch

    from buddy.compiler.tools.bench.errors import (
        WEIGHT_PRECISIONS,
        gradient_spreads,
        largest_error,
        relative_error,
        results_with_weights,
        step_error,
    )
    from buddy.compiler.tools.bench.sides import prepare_side
    from buddy.compiler.tools.bench.subjects import LoadedModel, load_subject, result_tensors

    torch.set_num_threads(request.threads)
    torch.manual_seed(0)
    loaded = load_subject(request.source, request.arguments, request.task)
    start = time.perf_counter()
    # A side may convert the model in place, or write to its results.
    expected = [tensor.detach().clone() for tensor in result_tensors(loaded.results())]
    flops, parameter_bytes = _count_flops(loaded), loaded.parameter_bytes
    names, spreads = list[str](), list[float]()
    if request.task == "training":
        names = loaded.result_names()
        spreads = gradient_spreads(lambda: result_tensors(loaded.results()), loaded.trained_floats(), expected)
    rounds_weights = request.precision in WEIGHT_PRECISIONS and isinstance(loaded.model, torch.nn.Module)
    original = copy.deepcopy(loaded) if rounds_weights else None
    prepared = prepare_side(request.side, loaded, request.precision, request.threads)
    call = prepared.call
    results = result_tensors(call.results() if isinstance(call, LoadedModel) else call())
    if len(results) != len(expected):
        raise ValueError(f"{len(results)} results, but eager has {len(expected)}")
    error_fields: dict[str, Any] = {"relative_error": relative_error(results, expected)}
    if original is not None:
        reference = results_with_weights(original, prepared.matrices)
        error_fields["error_of_weights"] = relative_error(results, reference)
        del original
    if request.task == "training":
        step = step_error(names, results, expected, spreads)
        error_fields = {"relative_error": step.error, "spread": step.spread, "problem": step.problem}
    return call, {
        "prepare_seconds": time.perf_counter() - start,
        "compile_seconds": prepared.compile_seconds,
        "aten_seconds": prepared.aten_seconds,
        "warm_seconds": prepared.warm_seconds,
        "warm_aten_seconds": prepared.warm_aten_seconds,
        "largest_error": largest_error(results, expected),
        **error_fields,
        "note": prepared.note,
        "flops": flops,
        "parameter_bytes": parameter_bytes,
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _count_flops(loaded: Any) -> int:
    """Returns the floating-point operations of matrix products and convolutions, by PyTorch's own counter."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter:
        loaded.results()
    return int(counter.get_total_flops())
