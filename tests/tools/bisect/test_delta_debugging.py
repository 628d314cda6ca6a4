"""Searches for the few that matter, among numbers."""

from __future__ import annotations

import pytest

from buddy.compiler.support.delta_debugging import smallest_failing, turning_point
from buddy.compiler.tools.bisect.slowness import sign_test_interval


@pytest.mark.parametrize("wanted", [{3}, {0, 15}, {2, 3, 9}, set(range(16))])
def test_what_fails_together_is_found(wanted: set[int]) -> None:
    tried: list[int] = []

    def fails(items: object) -> bool:
        tried.append(1)
        return wanted <= set(items)  # type: ignore[call-overload]

    assert set(smallest_failing(list(range(16)), fails)) == wanted
    assert len(tried) < 16 * 16


def test_one_of_many_is_found_in_few_trials() -> None:
    tried: list[int] = []

    def fails(items: object) -> bool:
        tried.append(1)
        return 77 in items  # type: ignore[operator]

    assert smallest_failing(list(range(128)), fails) == [77]
    assert len(tried) <= 14


@pytest.mark.parametrize("first_bad", range(1, 10))
def test_where_good_turns_to_bad(first_bad: int) -> None:
    low, high = turning_point(10, lambda count: "good" if count < first_bad else "bad")
    assert (low, high) == (first_bad - 1, first_bad)


def test_what_cannot_be_told_is_stepped_over() -> None:
    verdicts = {1: "good", 2: "neither", 3: "neither", 4: "bad"}
    assert turning_point(8, lambda count: verdicts.get(count, "bad")) == (1, 4)  # type: ignore[arg-type,return-value]


def test_the_interval_of_a_median_is_that_of_the_sign_test() -> None:
    low, high = sign_test_interval([float(n) for n in range(100)])
    assert (low, high) == (40.0, 59.0)
    assert sign_test_interval([1.0, 9.0, 2.0]) == (1.0, 9.0)
