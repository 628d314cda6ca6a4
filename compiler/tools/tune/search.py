"""Which point of a space to try next. Knows neither recipes nor clocks, only that less is better.

One variation after another is gone through with the others as they are in the best point known (coordinate descent, in
an order drawn anew each time round). Once a round brings nothing, points that differ from the best in two or three
variations are drawn at random, which leaves the hollow of a descent: Bergstra and Bengio, "Random Search for
Hyper-Parameter Optimization", 2012, on why random points and not a grid.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence

from buddy.compiler.protocol.tuning_space import Point

# Draws that find only points that were tried already, after which the space counts as used up.
_VAIN = 200


class Search:
    """Gives points to try, `start` and those that are `likely` good first, and is told what came of them; the same seed
    and scores give the same points."""

    def __init__(self, sizes: Sequence[int], start: Point, seed: int = 0, likely: Sequence[Point] = ()) -> None:
        self._sizes, self._random = tuple(sizes), random.Random(seed)
        self._tried: set[Point] = set()
        self._ahead: deque[Point] = deque([start, *likely])
        self._round: list[int] = []
        self._gained = True
        self.best, self.least = start, math.inf

    def ask(self) -> Point | None:
        """The next point, `None` when there is nothing left that is worth trying."""
        while True:
            while self._ahead:
                point = self._ahead.popleft()
                if point not in self._tried:
                    self._tried.add(point)
                    return point
            if len(self._tried) >= math.prod(self._sizes) or not self._refill():
                return None

    def tell(self, point: Point, score: float) -> bool:
        """What came of a point, infinity where it failed; whether it is the best so far."""
        if score >= self.least:
            return False
        self.best, self.least, self._gained = point, score, True
        return True

    def again(self, point: Point) -> None:
        """Nothing came of a point, for no fault of its own: it is given once more."""
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
            # Once all around the best point has been tried, any point will do.
            several = self._random.choice((2, 3)) if vain < _VAIN // 2 else count
            axes = self._random.sample(range(count), min(count, several))
            point = _with(self.best, {axis: self._random.randrange(self._sizes[axis]) for axis in axes})
            if point not in self._tried:
                self._ahead.append(point)
                return True
        return False


def _with(point: Point, changes: dict[int, int]) -> Point:
    return tuple(changes.get(axis, value) for axis, value in enumerate(point))
