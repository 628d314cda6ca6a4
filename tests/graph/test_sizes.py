"""Sizes that only a call tells: canonical forms, texts, values, and what they refuse to answer."""

from __future__ import annotations

import itertools

import pytest

from buddy.compiler.graph.sizes import (
    BadSizeError,
    Dim,
    UnknownSizeError,
    index_from_front,
    is_nonnegative,
    largest,
    parse_size,
    smallest,
    symbol,
    symbols_in,
    value_of,
)

a, b = symbol("s0"), symbol("s1")
SIZES: dict[str, Dim] = {
    "s0*s1": b * a,
    "2*s0*s1 - 1": a * 2 * b - 1,
    "((s0*s1)//4)": (a * b) // 4,
    "-s0 + 3": 3 - a,
    "(s0%2)": a % 2,
    "max(0, s0 - 5)": largest(0, a - 5),
    "min(s0, s1)": smallest(a, b),
    "((2*s0 + 1)//s1) + s0": (a * 2 + 1) // b + a,
}


@pytest.mark.parametrize("text", SIZES)
def test_a_size_is_spelled_as_it_is_parsed(text: str) -> None:
    assert str(SIZES[text]) == text
    assert parse_size(text) == SIZES[text]


@pytest.mark.parametrize("text", SIZES)
def test_values_are_those_of_python(text: str) -> None:
    for s0, s1 in itertools.product((1, 2, 7, 12), (1, 3, 8)):
        assert value_of(SIZES[text], {"s0": s0, "s1": s1}) == eval(text, {"s0": s0, "s1": s1, "max": max, "min": min})


def test_equal_expressions_are_equal_and_numbers_are_ints() -> None:
    assert (a + b) * (a - b) == a * a - b * b
    assert hash(a + b) == hash(b + a)
    assert (a * 6) // (a * 2) == 3
    assert a - a == 0
    assert a * b // b == a
    assert largest(a + 2, a) == a + 2
    assert largest(a, 0) == a
    assert smallest(a, a + b) == a
    assert 0 not in (a, b)
    assert a != 7


@pytest.mark.parametrize("question", [bool, int, float, range, lambda s: s < 2, lambda s: min(s, 3), lambda s: s / 2])
def test_what_needs_the_value_raises(question: object) -> None:
    with pytest.raises(UnknownSizeError, match="s0"):
        question(a)  # type: ignore[operator]


def test_a_position_from_the_back_is_counted_from_the_front() -> None:
    assert index_from_front(-1, a) == a - 1
    assert index_from_front(a * 2, a * 3) == a * 2
    for position, size in ((a - 5, b), (symbol("i2"), 4), (smallest(symbol("i2"), a), b)):
        for s0, i2 in itertools.product((1, 4, 5, 8), (-4, -1, 0, 3)):
            known = {"s0": s0, "s1": 8, "i2": i2}
            given, length = value_of(position, known), value_of(size, known)
            assert value_of(index_from_front(position, size), known) == (given + length if given < 0 else given)


def test_a_number_that_may_be_negative_is_no_count() -> None:
    i = symbol("i0")
    assert is_nonnegative(a * 2 + b // 3)
    assert is_nonnegative(largest(i, 0))
    assert not any(map(is_nonnegative, (i, a + i, a * i, a - 1, (a - 5) // 2, i % b, smallest(a, i), largest(i, -1))))


def test_symbols_are_found_at_any_depth() -> None:
    assert set(symbols_in([a * 2, {"x": (b // 3, "s9")}, 4])) == {"s0", "s1"}


@pytest.mark.parametrize("text", ["s0 +", "s0 ** 2", "f(s0)", "s0.x", "max(s0)", "s0 @ s1"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BadSizeError, match="is not a size"):
        parse_size(text)
