"""Exponentials, logarithms, tanh and erf in double precision, against wider arithmetic."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from buddy.compiler.passes.expand_math_to_polynomials import ExpandMathToPolynomials
from buddy.compiler.passes.vectorize_generics import VectorizeGenerics
from tests.support.mlir_jit import Compiled
from tests.support.mlir_text import elementwise_function

pytestmark = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no arithmetic wider than double here")

REFERENCES = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "tanh": np.tanh,
    "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
}  # fmt: skip
LIMITS = {
    "exp": 1.0, "exp2": 1.1, "expm1": 1.8, "tanh": 2.6, "log": 1.0, "log2": 2.5, "log10": 2.5, "log1p": 1.6,
}  # fmt: skip


def apply(name: str, x: np.ndarray) -> np.ndarray:
    compiled = Compiled(
        elementwise_function(f"%r = math.{name} %in0 : f64", x.size, "f64"),
        [ExpandMathToPolynomials(), VectorizeGenerics()],
    )
    assert f"math.{name} " not in compiled.text
    assert "linalg." not in compiled.text, compiled.remarks
    y = np.zeros_like(x)
    compiled("f", x, y)
    return y


def arguments() -> np.ndarray:
    """Dense ranges, and every so many bit patterns of both signs, denormals among them."""
    bits = np.arange(0, 0x7FF0000000000000, 0x7FF0000000000000 // 150_000, dtype=np.uint64).view(np.float64)
    dense = np.linspace(-1, 1, 200_001)
    near = 1 + np.linspace(-1e-3, 1e-3, 20_001)
    return np.concatenate([bits, -bits, dense, dense * 40, dense * 750, dense * 1e-8, near, dense + 1.2])


@pytest.mark.parametrize("name", REFERENCES)
def test_error_stays_below_the_stated_ulps(name: str) -> None:
    x = arguments()
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](x.astype(np.longdouble))
        rounded = exact.astype(np.float64)
        result = apply(name, x)
        finite = np.isfinite(rounded)
        ulp = np.spacing(np.abs(rounded[finite])).astype(np.longdouble)
        errors = (np.abs(result[finite].astype(np.longdouble) - exact[finite]) / ulp).astype(np.float64)
    worst = errors.argmax()
    assert errors[worst] <= LIMITS[name], (x[finite][worst], errors[worst])
    np.testing.assert_array_equal(result[~finite], rounded[~finite])


@pytest.mark.parametrize("name", REFERENCES)
def test_special_values(name: str) -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1e-310, 1.7e308, -1.7e308, 1.0, -1.0])
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](x.astype(np.longdouble)).astype(np.float64)
    result = apply(name, x)
    np.testing.assert_allclose(result, exact, rtol=5e-16, atol=0)
    zeros = exact == 0
    np.testing.assert_array_equal(np.signbit(result[zeros]), np.signbit(exact[zeros]))


def test_powers_of_two_have_exact_logarithms() -> None:
    exponents = np.arange(-1074, 1024, dtype=np.float64)
    np.testing.assert_array_equal(apply("log2", np.exp2(exponents)), exponents)
    np.testing.assert_array_equal(apply("exp2", exponents), np.exp2(exponents))


def test_the_error_function() -> None:
    """Against 40 digits, which NumPy has no error function in."""
    tiny = np.array([0.0, 5e-324, 1e-310, 1e-30, 1.0, np.nextafter(1.0, 2.0), 5.9, 6.0, 7.0, 1e300, np.inf])
    x = np.concatenate([tiny, np.linspace(0, 6.5, 2001), np.linspace(0.999, 1.001, 201)])
    x = np.concatenate([x, -x])
    result = apply("erf", x)
    with mpmath.workdps(40):
        exact = [mpmath.erf(mpmath.mpf(float(value))) for value in x]
        ulps = [
            abs(mpmath.mpf(float(r)) - e) / float(np.spacing(abs(float(e)))) for r, e in zip(result, exact, strict=True)
        ]
    assert max(map(float, ulps)) <= 1.5
    np.testing.assert_array_equal(np.signbit(result), np.signbit(x))
    assert np.isnan(apply("erf", np.array([np.nan])))
