"""Roundings to 8 bits by an addition: every tie and limit, numbers far outside, infinities and NaN, beside NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from buddy.compiler.passes.expand_math_to_polynomials import ExpandMathToPolynomials
from buddy.compiler.passes.vectorize_generics import VectorizeGenerics
from tests.support.mlir_jit import Compiled
from tests.support.mlir_text import entry_function, generic, memref

REMARK = "math.roundeven of 8-bit integers became an addition"


def quantisation(n: int, zero: int, low: int, high: int, before: str = "", last: str = "trunci %5 : i32 to i8") -> str:
    """y = x rounded, plus zero, limited to low ... high, in 8 bits; `before` computes %v, by default the input."""
    body = f"""{before or "%v = arith.addf %in0, %none : f32"}
          %1 = math.roundeven %v : f32
          %2 = arith.addf %1, %zero : f32
          %3 = arith.maximumf %2, %low : f32
          %4 = arith.minimumf %3, %high : f32
          %5 = arith.fptosi %4 : f32 to i32
          %r = arith.{last}"""
    floats, result = memref(n), memref(n, element=last.split()[-1])
    return entry_function(
        f"%x: {floats}, %y: {result}",
        f"""%none = arith.constant -0.0 : f32
      %nothing = arith.constant 0.0 : f32
      %half = arith.constant 0.5 : f32
      %minus = arith.constant -0.5 : f32
      %zero = arith.constant {float(zero)} : f32
      %low = arith.constant {float(low)} : f32
      %high = arith.constant {float(high)} : f32
      {generic("i", [("%x", floats, "i")], [("%y", result, "i")], body)}""",
    )


def numbers() -> np.ndarray:
    halves = np.arange(-1200, 1201, dtype=np.float32) / 2
    near = np.concatenate([np.nextafter(halves, np.float32(side)) for side in (-np.inf, np.inf)])
    far = [0.0, -0.0, 1e-45, 8388607.5, 8388609.0, 12582912.0, 2147483648.0, 4e9, 1e30, np.inf]
    return np.concatenate([halves, near, np.array([*far, *(-x for x in far), np.nan], np.float32)]).astype(np.float32)


def expected(x: np.ndarray, zero: int, low: int, high: int) -> np.ndarray:
    limited = np.clip(np.round(x.astype(np.float64)) + zero, low, high)
    return np.where(np.isnan(x), 0, limited).astype(np.int64).astype(np.uint8)


def run(text: str, x: np.ndarray) -> tuple[np.ndarray, Compiled]:
    compiled = Compiled(text, [ExpandMathToPolynomials(), VectorizeGenerics()])
    y = np.full(x.size, 77, np.uint8)
    compiled("f", x, y)
    return y, compiled


@pytest.mark.parametrize("zero", [0, 1, 128, 129, 255, -3])
@pytest.mark.parametrize(("low", "high"), [(0, 255), (-128, 127), (5, 250)])
def test_every_byte(zero: int, low: int, high: int) -> None:
    x = numbers()
    y, compiled = run(quantisation(x.size, zero, low, high), x)
    assert REMARK in compiled.remarks
    assert "roundeven" not in compiled.text
    np.testing.assert_array_equal(y, expected(x, zero, low, high))


@pytest.mark.parametrize(
    ("maximum", "factor", "zero", "dropped"),
    [
        ("%in0, %nothing", "%0, %half", 0, True),
        ("%nothing, %in0", "%half, %0", 0, True),
        ("%in0, %nothing", "%0, %minus", 0, False),  # a negative factor turns the order
        ("%in0, %half", "%0, %half", 0, False),  # above the limit
        ("%in0, %nothing", "%0, %half", 7, False),  # the limit is -7
    ],
)
def test_a_maximum_that_only_changes_numbers_below_the_limit_is_dropped(
    maximum: str, factor: str, zero: int, dropped: bool
) -> None:
    x = numbers()
    before = f"%0 = arith.maximumf {maximum} : f32\n          %v = arith.mulf {factor} : f32"
    y, compiled = run(quantisation(x.size, zero, 0, 255, before), x)
    assert REMARK in compiled.remarks
    assert ("arith.maximumf" not in compiled.text) is dropped
    bound, scale = (0.5 if "half" in maximum else 0.0), (-0.5 if "minus" in factor else 0.5)
    np.testing.assert_array_equal(y, expected(np.maximum(x, np.float32(bound)) * np.float32(scale), zero, 0, 255))


@pytest.mark.parametrize(
    ("zero", "low", "high", "last"),
    [
        (0, 0, 255, "trunci %5 : i32 to i16"),
        (0, 255, 0, "trunci %5 : i32 to i8"),  # the minimum of both limits, for all numbers
        (3_000_000, 0, 255, "trunci %5 : i32 to i8"),
    ],
)
def test_other_roundings_are_left(zero: int, low: int, high: int, last: str) -> None:
    compiled = Compiled(quantisation(8, zero, low, high, last=last), [ExpandMathToPolynomials()])
    assert REMARK not in compiled.remarks
    assert "math.roundeven" in compiled.text


def test_a_rounding_with_another_use_is_left() -> None:
    text = quantisation(8, 0, 0, 255).replace("%r = arith.trunci %5", "%6 = arith.fptosi %1 : f32 to i32\n"
    "          %7 = arith.addi %5, %6 : i32\n          %r = arith.trunci %7")  # fmt: skip
    compiled = Compiled(text, [ExpandMathToPolynomials()])
    assert REMARK not in compiled.remarks
