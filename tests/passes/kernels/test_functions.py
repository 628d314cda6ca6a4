"""Sines, tangents, hyperbolic functions, their inverses and powers against double precision, for all arguments."""

from __future__ import annotations

import numpy as np
import pytest

from buddy.compiler.passes.expand_math_to_polynomials import ExpandMathToPolynomials
from buddy.compiler.passes.vectorize_generics import VectorizeGenerics
from tests.passes.kernels.float_errors import errors_in_ulp, every_float
from tests.support.mlir_jit import Compiled
from tests.support.mlir_text import elementwise_function

SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-39, 3.4e38, -3.4e38, 1.0, -1.0, 0.5, -2.0, 3.0, -3.0],
    np.float32,
)
REFERENCES = {
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip
LIMITS = {"sin": 1.5, "cos": 1.5, "tan": 3.5, "asinh": 0.7, "acosh": 0.7, "atanh": 0.7}  # in ULP; others 0.6


def apply(name: str, *operands: np.ndarray) -> np.ndarray:
    scalars = ", ".join(f"%in{i}" for i in range(len(operands)))
    text = elementwise_function(f"%r = math.{name} {scalars} : f32", operands[0].size, inputs=len(operands))
    compiled = Compiled(text, [ExpandMathToPolynomials(), VectorizeGenerics()])
    assert f"math.{name} " not in compiled.text
    assert "linalg." not in compiled.text, compiled.remarks
    result = np.zeros_like(operands[0])
    compiled("f", *operands, result)
    return result


def near_multiples_of_a_right_angle() -> np.ndarray:
    """The single-precision numbers next to k π/2, where most digits cancel, for k up to 2^60."""
    k = np.concatenate([np.arange(1, 20_000), 2.0 ** np.arange(15, 61), 3 * 2.0 ** np.arange(15, 61)])
    exact = (k * (np.pi / 2)).astype(np.float32)
    return np.concatenate([exact, np.nextafter(exact, np.float32(0)), np.nextafter(exact, np.float32(np.inf))])


@pytest.mark.parametrize("name", REFERENCES)
def test_error_stays_below_the_stated_ulps(name: str) -> None:
    dense = np.linspace(-10, 10, 400_001, dtype=np.float32)
    x = np.concatenate([every_float(6007), dense, dense / 10, np.linspace(-90, 90, 100_001, dtype=np.float32)])
    if name in ("sin", "cos", "tan"):
        x = np.concatenate([x, near_multiples_of_a_right_angle()])
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](x.astype(np.float64))
        rounded = exact.astype(np.float32)
    result = apply(name, x)
    finite = np.isfinite(rounded)
    errors = errors_in_ulp(result[finite], exact[finite])
    worst = errors.argmax()
    assert errors[worst] <= LIMITS.get(name, 0.6), (x[finite][worst], errors[worst])
    np.testing.assert_array_equal(result[~finite], rounded[~finite])


@pytest.mark.parametrize("name", REFERENCES)
def test_special_values(name: str) -> None:
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](SPECIAL.astype(np.float64)).astype(np.float32)
    result = apply(name, SPECIAL)
    np.testing.assert_allclose(result, exact, rtol=3e-7, atol=0)
    zeros = exact == 0
    np.testing.assert_array_equal(np.signbit(result[zeros]), np.signbit(exact[zeros]))


def pairs() -> tuple[np.ndarray, np.ndarray]:
    x, y = (grid.ravel() for grid in np.meshgrid(SPECIAL, SPECIAL))
    random = np.random.default_rng(0)
    base = np.exp(random.uniform(-40, 40, 200_000)).astype(np.float32)
    exponent = random.uniform(-6, 6, 200_000).astype(np.float32)
    near = (1 + random.uniform(-1e-3, 1e-3, 200_000)).astype(np.float32)
    whole = random.integers(-9, 10, 200_000).astype(np.float32)
    signed = random.uniform(-5, 5, 200_000).astype(np.float32)
    return (
        np.concatenate([x, base, near, signed]),
        np.concatenate([y, exponent, exponent * 1e4, whole]).astype(np.float32),
    )


@pytest.mark.parametrize(("name", "reference"), [("powf", np.power), ("atan2", np.arctan2)])
def test_functions_of_two_numbers(name: str, reference: np.ufunc) -> None:
    x, y = pairs()
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64), y.astype(np.float64))
        rounded = exact.astype(np.float32)
    result = apply(name, x, y)
    finite = np.isfinite(rounded)
    errors = errors_in_ulp(result[finite], exact[finite])
    worst = errors.argmax()
    assert errors[worst] <= 0.6, (x[finite][worst], y[finite][worst], errors[worst])
    np.testing.assert_array_equal(result[~finite], rounded[~finite])
    zeros = rounded == 0
    np.testing.assert_array_equal(np.signbit(result[zeros]), np.signbit(rounded[zeros]))
