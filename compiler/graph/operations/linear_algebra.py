"""Matrix factorisations, linear systems, eigenvalues and singular values. Matrices are [..., rows, columns]."""

from __future__ import annotations

from buddy.compiler.graph.operation import Op


class CheckErrorsOp(Op):
    """Raises the error of the routine that its second argument names, for the first matrix whose `info` is not 0."""

    has_effect = True
    targets = ("_linalg_check_errors.default",)


class LuFactorOp(Op):
    targets = ("linalg_lu_factor_ex.default",)


class LuUnpackOp(Op):
    targets = ("lu_unpack.default",)


class LuSolveOp(Op):
    targets = ("linalg_lu_solve.default",)


class CholeskyOp(Op):
    targets = ("linalg_cholesky_ex.default", "cholesky.default")


class CholeskySolveOp(Op):
    targets = ("cholesky_solve.default",)


class CholeskyInverseOp(Op):
    targets = ("cholesky_inverse.default",)


class TriangularSolveOp(Op):
    targets = ("linalg_solve_triangular.default",)


class HouseholderFactorOp(Op):
    """Reflectors below the diagonal of R, and their factors: LAPACK's `geqrf`."""

    targets = ("geqrf.default",)


class ReflectOp(Op):
    """A product with the reflectors of `HouseholderFactorOp`."""

    targets = ("ormqr.default",)


class LdlFactorOp(Op):
    targets = ("linalg_ldl_factor_ex.default",)


class LdlSolveOp(Op):
    targets = ("linalg_ldl_solve.default",)


class SingularValuesOp(Op):
    targets = ("_linalg_svd.default",)


class SymmetricEigenvaluesOp(Op):
    targets = ("_linalg_eigh.default",)


class PseudoInverseOp(Op):
    targets = ("linalg_pinv.atol_rtol_tensor",)


class MatrixExponentialOp(Op):
    targets = ("linalg_matrix_exp.default",)
