"""The search over points: it finds the least, repeats nothing, and ends when the space does."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import pytest

from buddy.compiler.protocol.searches import Point
from buddy.compiler.tools.tune.tuner import SearchStrategy

SIZES = (6, 5, 4, 2)


def searched(score: Callable[[Point], float], seed: int = 0, most: int = 10_000) -> tuple[SearchStrategy, list[Point]]:
    search, asked = SearchStrategy(SIZES, (0, 0, 0, 0), seed), []
    while len(asked) < most and (point := search.ask()) is not None:
        asked.append(point)
        search.record(point, score(point))
    return search, asked


def bowl(point: Point) -> float:
    """Least at one point, and worse with each step from it."""
    return 1 + sum((place - wanted) ** 2 for place, wanted in zip(point, (4, 1, 3, 1), strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_a_bowl_is_searched_along_its_axes(seed: int) -> None:
    search, _ = searched(bowl, seed, most=sum(SIZES))
    assert (search.best, search.best_score) == ((4, 1, 3, 1), 1)


@pytest.mark.parametrize("seed", range(5))
def test_a_hollow_beside_the_best_point_is_left(seed: int) -> None:
    """Only two changes at once lead out of the hollow, so each axis alone brings nothing."""

    def score(point: Point) -> float:
        return {(0, 0, 0, 0): 2.0, (3, 4, 0, 0): 1.0}.get(point, 3.0)

    search, asked = searched(score, seed)
    assert search.best == (3, 4, 0, 0)
    assert len(asked) == len(set(asked))


def test_the_whole_space_is_tried_once_and_then_it_ends() -> None:
    _, asked = searched(lambda _: 1.0)
    assert asked[0] == (0, 0, 0, 0)
    assert len(asked) == len(set(asked))
    assert len(asked) > 0.9 * math.prod(SIZES)
    assert set(asked) <= set(product(*map(range, SIZES)))


def test_the_same_seed_asks_the_same_points() -> None:
    assert searched(bowl, 3, 60)[1] == searched(bowl, 3, 60)[1]
    assert searched(lambda _: 1.0, 3, 60)[1] != searched(lambda _: 1.0, 4, 60)[1]


def test_a_point_that_nothing_came_of_is_given_again() -> None:
    search = SearchStrategy(SIZES, (0, 0, 0, 0))
    first = search.ask()
    assert first is not None
    search.retry(first)
    assert search.ask() == first


def test_points_that_fail_are_never_the_best() -> None:
    search, _ = searched(lambda point: math.inf if point[0] == 4 else bowl(point))
    assert search.best[0] != 4
    assert math.isfinite(search.best_score)


def test_what_is_likely_good_comes_behind_the_start_and_once() -> None:
    search = SearchStrategy([3, 3], (0, 0), preferred=[(2, 1), (0, 0)])
    assert [search.ask(), search.ask()] == [(0, 0), (2, 1)]
    search.record((0, 0), 2.0)
    search.record((2, 1), 1.0)
    assert search.ask() not in [(0, 0), (2, 1)]
