"""When a search ends, by what its recipes take."""

from __future__ import annotations

import asyncio
from typing import Any

from buddy.compiler.presets import default_recipe
from buddy.compiler.protocol import Tune
from buddy.compiler.tuning.hunt import Hunt
from buddy.compiler.tuning.messages import Attempt, AttemptDone, Duel, DuelDone
from buddy.compiler.tuning.space import space_of


class Slow:
    """Each recipe takes `seconds`, a duel of two twice that; every recipe is a little faster than the one before."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.tried = seconds, 0

    async def ask(self, question: Attempt | Duel) -> Any:
        await asyncio.sleep(self.seconds * (2 if isinstance(question, Duel) else 1))
        self.tried += 1
        return DuelDone(1.5, 1.4, 1.6) if isinstance(question, Duel) else AttemptDone(1 / self.tried, 1.0, 1.0, 0.1)


def hunted(hand: Slow, seconds: float, ends_in_time: bool) -> Hunt:
    recipe = default_recipe()
    search = Hunt(Tune(0, recipe, seconds=seconds), space_of(recipe), lambda _: None, ends_in_time=ends_in_time)

    async def search_and_end() -> None:
        await search.ended(await search.with_hands([hand]))

    asyncio.run(search_and_end())
    return search


def test_a_search_that_ends_in_time_leaves_some_for_the_duel() -> None:
    search = hunted(Slow(0.1), 1.0, ends_in_time=True)
    # A fifth is for runs; sleeps are a little longer than they say.
    assert 3 <= search.count <= 8
    assert search.elapsed < 1.2


def test_other_searches_begin_recipes_until_their_time_is_up() -> None:
    search = hunted(Slow(0.1), 0.5, ends_in_time=False)
    assert search.count >= 3
    assert search.elapsed > 0.6


def test_two_recipes_are_tried_whatever_they_take() -> None:
    assert hunted(Slow(0.1), 0.01, ends_in_time=True).count == 2
