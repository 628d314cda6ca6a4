"""Finds the hot instructions of compiled code: samples runs, and maps addresses to function and offset."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from buddy.compiler.protocol.profile_report import HotSpot, Sampling
from buddy.compiler.runtime.openmp import library_at
from buddy.compiler.tools.profile.sampling import Sampler, SamplingError

# Minimum sampling time in seconds, and the maximum number of runs for it.
_SECONDS = 1.0
_MOST_RUNS = 10_000
# Maximum number of reported instructions, those with most samples.
_SPOTS = 200


class CodeRange(NamedTuple):
    """The location of a function in memory."""

    name: str
    address: int
    size: int


def sample_instructions(call: Callable[[], Any], code: Sequence[CodeRange], runs: int) -> Sampling:
    """Samples `call` for at least `runs` runs, by instruction of `code`.

    The result contains the reason if sampling is not possible.
    """
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


def _told(sampler: Sampler, code: Sequence[CodeRange]) -> Sampling:
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
