"""The polynomials against double precision: dense ranges, denormals, extremes, special values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from buddy.compiler.passes.expand_math_to_polynomials import ExpandMathToPolynomials
from tests.passes.kernels.float_errors import errors_in_ulp, every_float
from tests.support.mlir_jit import Compiled
from tests.support.mlir_text import elementwise_function

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-39, 3.4e38, -3.4e38, 1.0, -1.0], np.float32)


def apply(name: str, x: np.ndarray) -> np.ndarray:
    compiled = Compiled(elementwise_function(f"%r = math.{name} %in0 : f32", x.size), [ExpandMathToPolynomials()])
    assert f"math.{name} " not in compiled.text
    y = np.zeros_like(x)
    compiled("f", x, y)
    return y


def dense(low: float, high: float) -> np.ndarray:
    return np.linspace(low, high, 400_001, dtype=np.float32)


REFERENCES = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
}


@pytest.mark.parametrize(
    ("name", "limit", "ranges"),
    [
        ("exp", 1.0, [(-104.5, 90.0), (-1.0, 1.0), (-88.0, -86.0), (88.0, 89.0)]),
        ("exp2", 1.1, [(-151.0, 129.0), (-1.0, 1.0), (-127.0, -125.0)]),
        ("expm1", 1.5, [(-20.0, 90.0), (-1.0, 1.0), (88.0, 89.0), (-1e-3, 1e-3)]),
        ("log2", 1.8, [(1e-6, 4.0), (0.7, 1.4), (1.0, 1e6)]),
        ("log10", 2.1, [(1e-6, 4.0), (0.7, 1.4), (1.0, 1e6)]),
        ("log1p", 1.5, [(-0.9999, 4.0), (-0.5, 0.5), (1.0, 1e6), (-1e-3, 1e-3)]),
        ("log", 0.9, [(1e-6, 4.0), (0.7, 1.4), (1.0, 1e6)]),
        ("tanh", 1.4, [(-10.0, 10.0), (-0.7, 0.7)]),
        ("erf", 1.2, [(-4.5, 4.5), (-1.0, 1.0)]),
    ],
)
def test_error_stays_below_the_stated_ulps(name: str, limit: float, ranges: list[tuple[float, float]]) -> None:
    x = np.concatenate([every_float(7919), *(dense(*r) for r in ranges)])
    if name.startswith("log"):
        x = x[x > (-1 if name == "log1p" else 0)]
    with np.errstate(over="ignore", under="ignore"):
        exact = REFERENCES[name](x.astype(np.float64))
        finite = np.abs(exact) <= np.finfo(np.float32).max
        result = apply(name, x)
        worst = errors_in_ulp(result[finite], exact[finite])
        assert worst.max() <= limit, (x[finite][worst.argmax()], worst.max())
        overflow = exact[~finite].astype(np.float32)
    np.testing.assert_array_equal(result[~finite], overflow)


@pytest.mark.parametrize("name", REFERENCES)
def test_special_values(name: str) -> None:
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](SPECIAL.astype(np.float64)).astype(np.float32)
    result = apply(name, SPECIAL)
    np.testing.assert_allclose(result, exact, rtol=3e-7, atol=0)
    if name in ("tanh", "erf", "expm1", "log1p"):
        np.testing.assert_array_equal(np.signbit(result[:2]), [False, True])


def test_powers_of_two_have_exact_logarithms() -> None:
    exponents = np.arange(-149, 128, dtype=np.float32)
    np.testing.assert_array_equal(apply("log2", np.exp2(exponents.astype(np.float64)).astype(np.float32)), exponents)
    np.testing.assert_array_equal(apply("exp2", exponents), np.exp2(exponents.astype(np.float64)).astype(np.float32))


def test_half_precision_goes_through_single() -> None:
    compiled = Compiled(elementwise_function("%r = math.exp %in0 : f16", 8, "f16"), [ExpandMathToPolynomials()])
    x, y = np.linspace(-3, 3, 8).astype(np.float16), np.zeros(8, np.float16)
    compiled("f", x, y)
    np.testing.assert_array_equal(y, np.exp(x.astype(np.float64)).astype(np.float16))


@pytest.mark.parametrize(("name", "element"), [("sin", "f64"), ("exp", "f80")])
def test_what_stays_with_the_math_library_says_so(name: str, element: str) -> None:
    compiled = Compiled(
        elementwise_function(f"%r = math.{name} %in0 : {element}", 8, element), [ExpandMathToPolynomials()]
    )
    assert f"math.{name}" in compiled.text
    assert compiled.remarks == [f"math.{name} left to the math library: no polynomial for {element}"]
