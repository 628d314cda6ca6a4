"""Op classes of special functions: gamma, Bessel, Airy and zeta functions, and orthogonal polynomials."""

from __future__ import annotations

from buddy.compiler.graph.node import ElementwiseOp


class ErfinvOp(ElementwiseOp):
    targets = ("erfinv.default",)


class LgammaOp(ElementwiseOp):
    targets = ("lgamma.default",)


class IgammaOp(ElementwiseOp):
    targets = ("igamma.default",)


class IgammacOp(ElementwiseOp):
    targets = ("igammac.default",)


class DigammaOp(ElementwiseOp):
    targets = ("digamma.default",)


class PolygammaOp(ElementwiseOp):
    targets = ("polygamma.default",)


class BesselI0Op(ElementwiseOp):
    targets = ("i0.default", "special_modified_bessel_i0.default")


class BesselI0eOp(ElementwiseOp):
    targets = ("special_i0e.default",)


class BesselI1Op(ElementwiseOp):
    targets = ("special_i1.default", "special_modified_bessel_i1.default")


class BesselI1eOp(ElementwiseOp):
    targets = ("special_i1e.default",)


class NdtriOp(ElementwiseOp):
    targets = ("special_ndtri.default",)


class ErfcxOp(ElementwiseOp):
    targets = ("special_erfcx.default",)


class BesselJ0Op(ElementwiseOp):
    targets = ("special_bessel_j0.default",)


class BesselJ1Op(ElementwiseOp):
    targets = ("special_bessel_j1.default",)


class BesselY0Op(ElementwiseOp):
    targets = ("special_bessel_y0.default",)


class BesselY1Op(ElementwiseOp):
    targets = ("special_bessel_y1.default",)


class BesselK0Op(ElementwiseOp):
    targets = ("special_modified_bessel_k0.default",)


class BesselK1Op(ElementwiseOp):
    targets = ("special_modified_bessel_k1.default",)


class ScaledBesselK0Op(ElementwiseOp):
    targets = ("special_scaled_modified_bessel_k0.default",)


class ScaledBesselK1Op(ElementwiseOp):
    targets = ("special_scaled_modified_bessel_k1.default",)


class SphericalBesselJ0Op(ElementwiseOp):
    targets = ("special_spherical_bessel_j0.default",)


class AiryAiOp(ElementwiseOp):
    targets = ("special_airy_ai.default",)


class ZetaOp(ElementwiseOp):
    targets = ("special_zeta.default", "special_zeta.other_scalar", "special_zeta.self_scalar")


class HermiteHOp(ElementwiseOp):
    targets = (
        "special_hermite_polynomial_h.default",
        "special_hermite_polynomial_h.x_scalar",
        "special_hermite_polynomial_h.n_scalar",
    )


class HermiteHeOp(ElementwiseOp):
    targets = (
        "special_hermite_polynomial_he.default",
        "special_hermite_polynomial_he.x_scalar",
        "special_hermite_polynomial_he.n_scalar",
    )


class LaguerreLOp(ElementwiseOp):
    targets = (
        "special_laguerre_polynomial_l.default",
        "special_laguerre_polynomial_l.x_scalar",
        "special_laguerre_polynomial_l.n_scalar",
    )


class LegendrePOp(ElementwiseOp):
    targets = (
        "special_legendre_polynomial_p.default",
        "special_legendre_polynomial_p.x_scalar",
        "special_legendre_polynomial_p.n_scalar",
    )


class ChebyshevTOp(ElementwiseOp):
    targets = (
        "special_chebyshev_polynomial_t.default",
        "special_chebyshev_polynomial_t.x_scalar",
        "special_chebyshev_polynomial_t.n_scalar",
    )


class ShiftedChebyshevTOp(ElementwiseOp):
    targets = (
        "special_shifted_chebyshev_polynomial_t.default",
        "special_shifted_chebyshev_polynomial_t.x_scalar",
        "special_shifted_chebyshev_polynomial_t.n_scalar",
    )


class ChebyshevUOp(ElementwiseOp):
    targets = (
        "special_chebyshev_polynomial_u.default",
        "special_chebyshev_polynomial_u.x_scalar",
        "special_chebyshev_polynomial_u.n_scalar",
    )


class ShiftedChebyshevUOp(ElementwiseOp):
    targets = (
        "special_shifted_chebyshev_polynomial_u.default",
        "special_shifted_chebyshev_polynomial_u.x_scalar",
        "special_shifted_chebyshev_polynomial_u.n_scalar",
    )


class ChebyshevVOp(ElementwiseOp):
    targets = (
        "special_chebyshev_polynomial_v.default",
        "special_chebyshev_polynomial_v.x_scalar",
        "special_chebyshev_polynomial_v.n_scalar",
    )


class ShiftedChebyshevVOp(ElementwiseOp):
    targets = (
        "special_shifted_chebyshev_polynomial_v.default",
        "special_shifted_chebyshev_polynomial_v.x_scalar",
        "special_shifted_chebyshev_polynomial_v.n_scalar",
    )


class ChebyshevWOp(ElementwiseOp):
    targets = (
        "special_chebyshev_polynomial_w.default",
        "special_chebyshev_polynomial_w.x_scalar",
        "special_chebyshev_polynomial_w.n_scalar",
    )


class ShiftedChebyshevWOp(ElementwiseOp):
    targets = (
        "special_shifted_chebyshev_polynomial_w.default",
        "special_shifted_chebyshev_polynomial_w.x_scalar",
        "special_shifted_chebyshev_polynomial_w.n_scalar",
    )
