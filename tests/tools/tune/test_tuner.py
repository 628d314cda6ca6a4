"""When a search ends, by what its recipes take."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from buddy.compiler.protocol import Tune
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.searches import space_of
from buddy.compiler.tools.tune import tuner
from buddy.compiler.tools.tune.processes import CompareRecipes, RecipesCompared, RecipeTried, TryRecipe
from buddy.compiler.tools.tune.tuner import Tuner


class Clock:
    """Time that passes as recipes are tried, whatever else the machine does."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    passing = Clock()
    monkeypatch.setattr(tuner, "time", passing)
    return passing


class Slow:
    """Each recipe takes `seconds`, a duel of two twice that; every recipe is a little faster than the one before."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds, self.tried = clock, seconds, 0

    async def ask(self, question: TryRecipe | CompareRecipes) -> Any:
        self.clock.now += self.seconds * (2 if isinstance(question, CompareRecipes) else 1)
        self.tried += 1
        return (
            RecipesCompared(1.5, 1.4, 1.6)
            if isinstance(question, CompareRecipes)
            else RecipeTried(1 / self.tried, 1.0, 1.0, 0.1)
        )


def hunted(hand: Slow, seconds: float, ends_in_time: bool) -> Tuner:
    recipe = default_recipe()
    search = Tuner(Tune(0, recipe, seconds=seconds), space_of(recipe), lambda _: None, ends_in_time=ends_in_time)
    search.start_time = hand.clock.now

    async def search_and_end() -> None:
        await search.finish(await search.run_workers([hand]))

    asyncio.run(search_and_end())
    return search


def test_a_search_that_ends_in_time_leaves_some_for_the_duel(clock: Clock) -> None:
    search = hunted(Slow(clock, 0.1), 1.0, ends_in_time=True)
    # A fifth is for runs.
    assert 3 <= search.count <= 8
    assert search.elapsed < 1.0


def test_other_searches_begin_recipes_until_their_time_is_up(clock: Clock) -> None:
    search = hunted(Slow(clock, 0.1), 0.5, ends_in_time=False)
    assert search.count >= 5
    assert search.elapsed > 0.6


def test_two_recipes_are_tried_whatever_they_take(clock: Clock) -> None:
    assert hunted(Slow(clock, 0.1), 0.01, ends_in_time=True).count == 2
