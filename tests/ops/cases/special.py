"""Special functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.ops.cases.base import Group, aten, normal

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "erfc": torch.erfc,
    "erfcx": lambda x: torch.special.erfcx(x.abs()),
    "lgamma": torch.lgamma,
    "digamma": torch.digamma,
    "trigamma": lambda x: torch.polygamma(1, x),
    "polygamma 2": lambda x: torch.polygamma(2, x),
    "zeta": lambda x: torch.special.zeta(x.abs() + 1.5, x),
    "i0": torch.i0,
    "i0e": torch.special.i0e,
    "i1": torch.special.i1,
    "i1e": torch.special.i1e,
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
    "k0": torch.special.modified_bessel_k0,
    "k1": torch.special.modified_bessel_k1,
    "scaled k0": torch.special.scaled_modified_bessel_k0,
    "scaled k1": torch.special.scaled_modified_bessel_k1,
    "spherical j0": torch.special.spherical_bessel_j0,
    "airy_ai": torch.special.airy_ai,
    "log_ndtr": torch.special.log_ndtr,
}
OF_SHARES: dict[str, Callable[..., Any]] = {
    "erfinv": lambda x: torch.erfinv(2 * x - 1),
    "ndtri": torch.special.ndtri,
    "logit": torch.logit,
    "entr": torch.special.entr,
}
_FAMILIES = (
    "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
)  # fmt: skip
_SHIFTED = tuple(f"shifted_{name}" for name in _FAMILIES[:4])
POLYNOMIALS: dict[str, Callable[..., Any]] = {name: getattr(torch.special, name) for name in (*_FAMILIES, *_SHIFTED)}
# Each argument with each degree.
_ARGUMENTS, _DEGREES = (
    grid.ravel()
    for grid in torch.meshgrid(
        torch.tensor([-1.5, -1.0, -0.7, 0.0, 0.3, 0.9, 1.0, 2.0]), torch.arange(-1.0, 13.0, 2.0), indexing="ij"
    )
)
_SHAPES, _PLACES = (
    grid.ravel()
    for grid in torch.meshgrid(
        torch.tensor([0.0, 1e-3, 0.5, 1.0, 3.7, 40.0, 900.0, torch.inf, -1.0]),
        torch.tensor([0.0, 1e-4, 0.3, 1.0, 1.2, 3.0, 39.0, 55.0, 870.0, 950.0, 1e5, torch.inf, torch.nan, -2.0]),
        indexing="ij",
    )
)
GAMMAS: dict[str, Callable[..., Any]] = {"igamma": torch.special.gammainc, "igammac": torch.special.gammaincc}
_FAR = torch.tensor([20.0, 45.0, -17.3])
_SHARES = torch.cat([torch.linspace(0.02, 0.98, 9), torch.tensor([0.0, 1.0, 1e-30, 2.0])])
_AIRY_PLACES = torch.tensor(
    [-25, -9, -2, -0.0, 1e-310, 1.9, 2, 3, 30, 103.8, 104, torch.inf, -torch.inf, torch.nan], dtype=torch.float64
)
# Eager's Bessel functions of the first and second kind are as exact as ours in single precision only; its Airy function
# is off by 6e-6 just below -2.09, as measured against 40 digits.
_EXACT_IN_SINGLE = ("j0", "j1", "y0", "y1", "airy_ai")
OF_DOUBLES = {name: f for name, f in FUNCTIONS.items() if name not in _EXACT_IN_SINGLE}
# In single precision eager loses digits of the square of a negative argument.
OF_DOUBLES["erfcx"] = lambda x: torch.special.erfcx(x.clamp_min(-9))

GROUPS: dict[str, Group] = {
    "special functions": Group((torch.cat([normal(30) * 4, _FAR]),), FUNCTIONS),
    "special functions of float64": Group((torch.cat([normal(30) * 4, _FAR]).double(),), OF_DOUBLES),
    "special functions of float16": Group(
        (normal(9).half(),),
        {"erfc": torch.erfc, "lgamma": torch.lgamma, "i0": torch.i0, "float64": lambda x: x.double()},
    ),
    "Airy's function of float64 where eager is exact": Group((_AIRY_PLACES,), {"airy_ai": torch.special.airy_ai}),
    "functions of shares": Group((_SHARES,), OF_SHARES),
    "functions of shares of float64": Group((_SHARES.double(),), OF_SHARES),
    "orthogonal polynomials": Group((_ARGUMENTS, _DEGREES), POLYNOMIALS),
    "orthogonal polynomials of float64": Group((_ARGUMENTS.double(), (_DEGREES + 1).double()), POLYNOMIALS),
    "incomplete gamma functions": Group((_SHAPES, _PLACES), GAMMAS),
    "incomplete gamma functions of float64": Group((_SHAPES.double(), _PLACES.double()), GAMMAS),
    "zeta of a number": Group(
        (normal(9).abs() + 1.5,),
        {
            "first": lambda x: aten.special_zeta.self_scalar(2.5, x),
            "first, of infinity": lambda x: aten.special_zeta.self_scalar(2.5, x / 0),
            "second": lambda x: aten.special_zeta.other_scalar(x, 0.5),
            "of many terms": lambda x: aten.special_zeta.self_scalar(2, x.abs().floor() - 2000000.5),
            "of negative integers": lambda x: aten.special_zeta.self_scalar(2, x.abs().floor() * -3000000),
        },
    ),
}
