"""Decomposes linear algebra to a few factorizations that are compiled. Batches of matrices are [..., rows, columns]."""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops import effects

from buddy.compiler.runtime import torch_ops  # noqa: F401  (defines the ops)

aten = torch.ops.aten


def keep_checks_of_errors() -> None:
    """Makes AOTAutograd keep the op `_linalg_check_errors`, which raises eager's error for a singular matrix.

    The op has no result, and PyTorch 2.11 does not register it as one with an effect. So AOTAutograd would remove it as
    dead code, and the call would return infinities. Later versions register it.
    """
    if effects._get_effect(aten._linalg_check_errors.default) is None:
        effects._register_effectful_op(aten._linalg_check_errors.default, effects._EffectType.ORDERED)


def det(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns the determinants of `a`, and its LU factors and pivots for the gradient."""
    factors, pivots, _ = aten.linalg_lu_factor_ex(_order_like_eager(a))
    return factors.diagonal(dim1=-2, dim2=-1).prod(-1) * _parity(pivots), factors, pivots


def slogdet(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns the sign and the logarithm of the absolute value of each determinant, and the LU factors and pivots."""
    factors, pivots, _ = aten.linalg_lu_factor_ex(_order_like_eager(a))
    diagonal = factors.diagonal(dim1=-2, dim2=-1)
    return diagonal.sgn().prod(-1) * _parity(pivots), diagonal.abs().log().sum(-1), factors, pivots


def _order_like_eager(a: torch.Tensor) -> torch.Tensor:
    """Returns the matrix that eager factorizes: the transpose of a contiguous real matrix.

    LAPACK reads row-major memory as the transpose, which saves eager a copy and affects rounding and `info`. Eager
    copies complex matrices, since their gradients need factors of the matrix itself.
    """
    return a.mT if a.is_contiguous() and not a.is_complex() else a


def _parity(pivots: torch.Tensor) -> torch.Tensor:
    """Returns -1 for an odd number of row swaps, else 1."""
    swaps = pivots != torch.arange(1, pivots.size(-1) + 1, dtype=pivots.dtype, device=pivots.device)
    return 1 - 2 * (swaps.sum(-1) % 2)


def lu(a: torch.Tensor, *, pivot: bool = True) -> tuple[torch.Tensor, ...]:
    """Returns P, L and U [..., rows, columns] with `a` = P L U."""
    factors, pivots, _ = aten.linalg_lu_factor_ex(a, pivot=pivot)
    return aten.lu_unpack(factors, pivots)


def solve_ex(
    a: torch.Tensor, b: torch.Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[torch.Tensor, ...]:
    """Solves `a x = b`, or `x a = b` unless `left`; as in NumPy, `b` may hold one vector for each matrix.

    Returns x, the LU factors and pivots of `a`, and LAPACK's `info` of each matrix. The factors are those of `a` for
    every memory layout, because the gradient solves with them again.
    """
    if check_errors:
        return NotImplemented
    factors, pivots, info = aten.linalg_lu_factor_ex(a)
    if b.dim() == 1 or b.shape == a.shape[:-1]:
        x = aten.linalg_lu_solve(factors, pivots, b.unsqueeze(-1), left=left).squeeze(-1)
    else:
        x = aten.linalg_lu_solve(factors, pivots, b, left=left)
    return x, factors, pivots, info


def inv_ex(a: torch.Tensor, *, check_errors: bool = False) -> tuple[torch.Tensor, ...]:
    """Returns the inverses of `a`, and LAPACK's `info` of each matrix."""
    identity = torch.eye(a.size(-1), dtype=a.dtype, device=a.device).expand(a.shape)
    inverse, _, _, info = aten._linalg_solve_ex(a, identity, check_errors=check_errors)
    return inverse, info


def qr(a: torch.Tensor, mode: str = "reduced") -> tuple[torch.Tensor, ...]:
    """Returns Q and R of `a` in the `mode` "reduced" or "complete"; Q is empty for "r"."""
    if any(isinstance(size, torch.SymInt) for size in a.shape):
        return NotImplemented  # torch has no shape function of `geqrf` and would run it
    rows, columns = a.shape[-2:]
    inner_size = rows if mode == "complete" else min(rows, columns)  # the columns of Q, and the rows of R
    packed, taus = aten.geqrf(a)
    r = _to_column_major(packed[..., :inner_size, :].triu())
    if mode == "r":
        return a.new_empty(0), r
    return _first_columns(packed, taus, inner_size), r


def householder_product(packed: torch.Tensor, taus: torch.Tensor) -> torch.Tensor:
    """Returns the first columns of the product of the Householder reflectors in `packed`, with scales `taus`."""
    return _first_columns(packed, taus, packed.size(-1))


def _first_columns(packed: torch.Tensor, taus: torch.Tensor, columns: int) -> torch.Tensor:
    """Returns the first `columns` columns of the product of the Householder reflectors."""
    identity = torch.eye(packed.size(-2), columns, dtype=packed.dtype, device=packed.device)
    return aten.ormqr(packed[..., : taus.size(-1)], taus, identity.expand(*packed.shape[:-2], -1, -1))


def _to_column_major(a: torch.Tensor) -> torch.Tensor:
    """Returns the same matrices in column-major order."""
    return a.mT.contiguous().mT


def triangular_solve(
    b: torch.Tensor, a: torch.Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[torch.Tensor, ...]:
    """Returns the solution x of `a x = b` for a triangular `a`, and a copy of `a`, both column-major.

    With `transpose`, the equation has the transpose of `a`. With `unitriangular`, the diagonal of `a` counts as ones.
    """
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    triangle = a.mT if transpose else a
    x = aten.linalg_solve_triangular(triangle, b, upper=upper != transpose, unitriangular=unitriangular)
    return _to_column_major(x), _to_column_major(a.expand(*batch, -1, -1).clone())


def recorded_singular_values(a: torch.Tensor, *, driver: str | None = None) -> torch.Tensor:
    """Returns the singular values of `a` by the op `buddy::singular_values`, whose gradient is one op on `a`.

    PyTorch's own gradient reads singular vectors, which the forward graph would compute in eager and save. Calls that
    record no gradients stay unchanged.
    """
    is_static = all(type(size) is int and size for size in a.shape)
    if driver is not None or not is_static or not (torch.is_grad_enabled() and a.requires_grad):
        return NotImplemented
    return torch.ops.buddy.singular_values(a)


def singular_values(a: torch.Tensor) -> torch.Tensor:
    """Returns the singular values of `a`, in descending order."""
    return aten._linalg_svd(a, False, False)[1]


# For `eager_dispatch.dispatch_like_eager`.
DISPATCHER_RULES: dict[Any, Any] = {aten.linalg_svdvals.default: (recorded_singular_values,)}
DECOMPOSITIONS: dict[Any, Any] = {
    torch.ops.buddy.singular_values.default: singular_values,
    aten._linalg_det.default: det,
    aten._linalg_slogdet.default: slogdet,
    aten.linalg_lu.default: lu,
    aten._linalg_solve_ex.default: solve_ex,
    aten.linalg_inv_ex.default: inv_ex,
    aten.linalg_qr.default: qr,
    aten.linalg_householder_product.default: householder_product,
    aten.triangular_solve.default: triangular_solve,
}
