"""GELU and its like in one go: against double precision, beside what eager reaches, special values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from buddy.compiler.passes.expand_math_to_polynomials import ExpandMathToPolynomials
from buddy.compiler.passes.vectorize_generics import VectorizeGenerics
from tests.passes.kernels.float_errors import errors_in_ulp
from tests.support.mlir_jit import Compiled
from tests.support.mlir_text import elementwise_function

GELU = """
          %half = arith.constant 0.5 : f32
          %root = arith.constant 0.707106769 : f32
          %one = arith.constant 1.0 : f32
          %0 = arith.mulf %in0, %half : f32
          %1 = arith.mulf %in0, %root : f32
          %2 = math.erf %1 : f32
          %3 = arith.addf %2, %one : f32
          %r = arith.mulf %0, %3 : f32
"""
TANH = """
          %one = arith.constant 1.0 : f32
          %0 = math.tanh %in0 : f32
          %r = arith.addf %one, %0 : f32
"""
SIGMOID = """
          %one = arith.constant 1.0 : f32
          %0 = arith.negf %in0 : f32
          %1 = math.exp %0 : f32
          %2 = arith.addf %1, %one : f32
          %r = arith.divf %one, %2 : f32
"""
ERF = np.vectorize(math.erf, otypes=[np.float64])
ERFC = np.vectorize(math.erfc, otypes=[np.float64])


def apply(body: str, x: np.ndarray) -> tuple[np.ndarray, Compiled]:
    compiled = Compiled(elementwise_function(body, x.size), [ExpandMathToPolynomials(), VectorizeGenerics()])
    assert "linalg." not in compiled.text, compiled.remarks
    y = np.zeros_like(x)
    compiled("f", x, y)
    return y, compiled


def dense() -> np.ndarray:
    bits = np.arange(0, 0x7F800000, 9973, dtype=np.uint32).view(np.float32)
    return np.concatenate([np.linspace(-14, 14, 800_001, dtype=np.float32), bits, -bits])


def test_gelu_is_closer_than_eager() -> None:
    torch = pytest.importorskip("torch")
    x = dense()
    y, compiled = apply(GELU, x)
    assert compiled.remarks[0] == "math.erf, as part of GELU, became a polynomial"
    assert "math.erf" not in compiled.text
    wide = x.astype(np.float64)
    exact = wide * 0.5 * ERFC(-wide / math.sqrt(2))
    eager = torch.nn.functional.gelu(torch.from_numpy(x)).numpy()
    assert errors_in_ulp(y, exact)[x > 0].max() <= 1.5
    scale = np.maximum(np.abs(wide), 1e-30)
    ours, theirs = np.abs(y - exact) / scale, np.abs(eager - exact) / scale
    assert ours.max() <= 2e-7
    below = x < -0.5
    assert ours[below].max() <= theirs[below].max()


def test_one_plus_tanh() -> None:
    x = dense()
    y, compiled = apply(TANH, x)
    assert compiled.remarks[0] == "math.tanh, as part of 1 + tanh, became a polynomial"
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        exact = 2 / (1 + np.exp(-2 * wide))
    normal = exact > 2e-38
    assert errors_in_ulp(y, exact)[normal].max() <= 3
    assert np.abs(y - exact)[~normal].max() <= 2e-38


def test_sigmoid() -> None:
    x = dense()
    y, compiled = apply(SIGMOID, x)
    assert compiled.remarks[0] == "math.exp, as part of 1 + exp, became a polynomial"
    with np.errstate(over="ignore"):
        exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    normal = exact > 2e-38
    assert errors_in_ulp(y, exact)[normal].max() <= 2.5
    assert np.abs(y - exact)[~normal].max() <= 2e-38


@pytest.mark.parametrize("body", [GELU, TANH, SIGMOID])
def test_special_values(body: str) -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38], np.float32)
    y, _ = apply(body, x)
    with np.errstate(all="ignore"):
        exact = {
            GELU: lambda v: v * 0.5 * (1 + ERF(v / math.sqrt(2))),
            TANH: lambda v: 1 + np.tanh(v),
            SIGMOID: lambda v: 1 / (1 + np.exp(-v)),
        }[body](x.astype(np.float64))
    # Tails end at about 2^-124 and not at zero, here times an |x| of at most 11.
    np.testing.assert_allclose(y, exact.astype(np.float32), rtol=3e-7, atol=1e-33)
    np.testing.assert_array_equal(np.signbit(y[:2]), np.signbit(exact[:2]))


def test_an_erf_of_something_else_is_the_whole_function() -> None:
    x = np.linspace(-3, 3, 97, dtype=np.float32)
    y, compiled = apply(GELU.replace("0.707106769", "0.7"), x)
    assert compiled.remarks[0] == "math.erf became a polynomial"
    exact = x * 0.5 * (1 + ERF(np.float64(np.float32(0.7)) * x))
    np.testing.assert_allclose(y, exact, atol=3e-7)
