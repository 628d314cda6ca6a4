"""Which instructions of compiled code take the time: runs sampled, addresses told by function and offset."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from buddy.compiler.protocol.profile_report import HotSpot, Sampling
from buddy.compiler.runtime.openmp import library_at
from buddy.compiler.tools.profile.sampling import Sampler, SamplingError

# How long runs are sampled at least, in seconds, and how many runs at most for that.
_SECONDS = 1.0
_MOST_RUNS = 10_000
# Instructions told of, those with most samples.
_SPOTS = 200


class Code(NamedTuple):
    """Where a function lies in memory."""

    name: str
    address: int
    size: int


def sampled(call: Callable[[], Any], code: Sequence[Code], runs: int) -> Sampling:
    """What of the time of `call` each instruction of `code` takes, over at least so many runs; why not, where it cannot
    be sampled."""
    try:
        sampler = Sampler()
    except SamplingError as error:
        return Sampling(problem=str(error))
    try:
        with sampler.running():
            _repeat(call, runs)
    finally:
        sampler.close()
    return _told(sampler, code)


def _repeat(call: Callable[[], Any], runs: int) -> None:
    end, done = time.monotonic() + _SECONDS, 0
    while done < runs or (time.monotonic() < end and done < _MOST_RUNS):
        call()
        done += 1


def _told(sampler: Sampler, code: Sequence[Code]) -> Sampling:
    ordered = sorted(code, key=lambda function: function.address)
    starts = [function.address for function in ordered]
    inside: Counter[tuple[str, int]] = Counter()
    elsewhere: Counter[str] = Counter()
    for address, count in sampler.addresses.items():
        place = bisect_right(starts, address) - 1
        function = ordered[place] if place >= 0 else None
        if function is not None and address < function.address + function.size:
            inside[function.name, address - function.address] += count
        else:
            elsewhere[library_at(address)] += count
    spots = tuple(HotSpot(name, offset, count) for (name, offset), count in inside.most_common(_SPOTS))
    total = sampler.addresses.total()
    return Sampling(total, inside.total(), sampler.hertz, spots, tuple(elsewhere.most_common()), lost=sampler.lost)
