"""Medians, spreads and ratios of interleaved timings."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence

RESAMPLES = 2000


def spread(values: Sequence[float], digits: int = 4) -> dict[str, float]:
    """Median, quartiles and number of the values, rounded to `digits` significant digits."""
    several = values if len(values) > 1 else list(values) * 2
    low, median, high = statistics.quantiles(several, n=4, method="inclusive")
    figures = {"median": median, "low": low, "high": high}
    return {**{name: float(f"{value:.{digits}g}") for name, value in figures.items()}, "runs": len(values)}


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """The spread of `above / below`, taken pair by pair."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def interval(values: Sequence[float], share: float = 0.95) -> tuple[float, float]:
    """Confidence interval of the median of `values` with probability `share`: a percentile bootstrap (Efron 1979)
    with a fixed seed.
    """
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    cut = int((1 - share) / 2 * RESAMPLES)
    return medians[cut], medians[-1 - cut]


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive values; NaN if there are none."""
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan
