"""Special functions."""

from __future__ import annotations

from buddy.compiler.graph.operation import ElementwiseOp


class ErfinvOp(ElementwiseOp):
    targets = ("erfinv.default",)


class LgammaOp(ElementwiseOp):
    targets = ("lgamma.default",)


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


class ZetaOp(ElementwiseOp):
    targets = ("special_zeta.default", "special_zeta.other_scalar", "special_zeta.self_scalar")
