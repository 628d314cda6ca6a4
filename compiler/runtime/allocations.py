"""How much memory a call has torch allocate at its peak, as torch's own CPU allocator tells its profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch.profiler import ProfilerActivity, profile

T = TypeVar("T")


def with_peak(action: Callable[[], T]) -> tuple[T, int]:
    """What `action` gives, and the most bytes it held at one time on top of what there was before.

    What a library allocates by itself (MKL, oneDNN) does not show.
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
