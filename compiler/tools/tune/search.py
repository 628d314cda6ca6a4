"""Chooses the next point of a space to try. Independent of recipes and clocks: smaller scores are better.

One variation after another is varied with the others fixed at the best known point (coordinate descent, in a random
order each round). When a round finds nothing better, points that differ from the best in two or three variations are
drawn at random, which escapes a local minimum: Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization",
2012, on the advantage of random points over a grid.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence

from buddy.compiler.protocol.tuning_space import Point

# Number of draws without a new point after which the space counts as exhausted.
_VAIN = 200


class SearchStrategy:
    """Yields points to try, `start` and the `likely` ones first, and receives their scores.

    Deterministic for the same seed and scores.
    """

    def __init__(self, sizes: Sequence[int], start: Point, seed: int = 0, likely: Sequence[Point] = ()) -> None:
        self._sizes, self._random = tuple(sizes), random.Random(seed)
        self._tried: set[Point] = set()
        self._ahead: deque[Point] = deque([start, *likely])
        self._round: list[int] = []
        self._gained = True
        self.best, self.least = start, math.inf

    def ask(self) -> Point | None:
        """The next point, `None` if there is none left to try."""
        while True:
            while self._ahead:
                point = self._ahead.popleft()
                if point not in self._tried:
                    self._tried.add(point)
                    return point
            if len(self._tried) >= math.prod(self._sizes) or not self._refill():
                return None

    def tell(self, point: Point, score: float) -> bool:
        """Records the score of a point, infinity if it failed; returns whether it is the best so far."""
        if score >= self.least:
            return False
        self.best, self.least, self._gained = point, score, True
        return True

    def again(self, point: Point) -> None:
        """Schedules a point again that was not measured for external reasons."""
        self._tried.discard(point)
        self._ahead.appendleft(point)

    def _refill(self) -> bool:
        if not self._round and self._gained:
            self._round, self._gained = self._random.sample(range(len(self._sizes)), len(self._sizes)), False
        if self._round:
            axis = self._round.pop()
            self._ahead.extend(_with(self.best, {axis: value}) for value in range(self._sizes[axis]))
            return True
        return self._draw()

    def _draw(self) -> bool:
        count = len(self._sizes)
        for vain in range(_VAIN):
            # Once all neighbours of the best point have been tried, any point is accepted.
            several = self._random.choice((2, 3)) if vain < _VAIN // 2 else count
            axes = self._random.sample(range(count), min(count, several))
            point = _with(self.best, {axis: self._random.randrange(self._sizes[axis]) for axis in axes})
            if point not in self._tried:
                self._ahead.append(point)
                return True
        return False


def _with(point: Point, changes: dict[int, int]) -> Point:
    return tuple(changes.get(axis, value) for axis, value in enumerate(point))
