"""Measures the peak memory that torch allocates in a call, from the events of torch's CPU allocator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch.profiler import ProfilerActivity, profile

T = TypeVar("T")


def with_peak(action: Callable[[], T]) -> tuple[T, int]:
    """Returns the result of `action`, and the peak of the bytes it allocated.

    Memory that a library allocates itself (MKL, oneDNN) is not counted.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = action()
    recorder = recorded.profiler
    events = recorder.kineto_results.events() if recorder is not None else []
    changes = [event for event in events if event.name() == "[memory]"]
    held = peak = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        held += change.nbytes()
        peak = max(peak, held)
    return result, peak
