"""Factorisations, systems of equations and spectra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.ops.cases.base import Group, normal

linalg = torch.linalg


def definite(a: torch.Tensor) -> torch.Tensor:
    return a @ a.mH + torch.eye(a.size(-1), dtype=a.dtype)


def hollow(a: torch.Tensor) -> torch.Tensor:
    """A symmetric one with zeros on the diagonal, so that pivots are blocks of two rows."""
    return a.tril(-1) + a.tril(-1).mT


def hermitian(a: torch.Tensor) -> torch.Tensor:
    return a + a.mH


def hollow_hermitian(a: torch.Tensor) -> torch.Tensor:
    return a.tril(-1) + a.tril(-1).mH


def triangle(a: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """One that solves without losing digits."""
    part = a.triu(1) if upper else a.tril(-1)
    return part + 4 * torch.eye(a.size(-1), dtype=a.dtype)


SYSTEMS: dict[str, Callable[..., Any]] = {
    "solve": lambda a, b: linalg.solve(a, b),
    "solve from the right": lambda a, b: linalg.solve(a, b.mT, left=False),
    "solve for a vector": lambda a, b: linalg.solve(a, b[..., 0]),
    "one matrix, several sides": lambda a, b: linalg.solve(a[0], b),
    "inv": lambda a, b: linalg.inv(a),
    "det": lambda a, b: linalg.det(a),
    "logdet": lambda a, b: linalg.slogdet(a)[1],
    "sign of det": lambda a, b: linalg.slogdet(a)[0],
    "pivots": lambda a, b: linalg.lu_factor(a)[1],
    "factors": lambda a, b: linalg.lu_factor(a)[0],
    "permutation": lambda a, b: linalg.lu(b)[0],
    "low": lambda a, b: linalg.lu(b)[1],
    "high": lambda a, b: linalg.lu(b.mT)[2],
    "lu_solve": lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), b, adjoint=True),
    "triangle": lambda a, b: linalg.solve_triangular(triangle(a), b, upper=False),
    "triangle from the right": lambda a, b: linalg.solve_triangular(triangle(a, True), b.mT, upper=True, left=False),
    "unit triangle": lambda a, b: linalg.solve_triangular(a.triu() / 4, b, upper=True, unitriangular=True),
    "triangular_solve": lambda a, b: torch.triangular_solve(b, triangle(a, True), transpose=True)[0],
    "cholesky": lambda a, b: linalg.cholesky(definite(a)),
    "upper cholesky": lambda a, b: linalg.cholesky(definite(a), upper=True),
    "cholesky_solve": lambda a, b: torch.cholesky_solve(b, linalg.cholesky(definite(a))),
    "cholesky_inverse": lambda a, b: torch.cholesky_inverse(triangle(a)),
    "where cholesky fails": lambda a, b: linalg.cholesky_ex(a + a.mT)[1],
    "what it leaves": lambda a, b: linalg.cholesky_ex(a + a.mT)[0],
    "powers": lambda a, b: linalg.matrix_power(a, -2),
}
INDEFINITE: dict[str, Callable[..., Any]] = {
    "ldl_factor": lambda a, b: linalg.ldl_factor(a + a.mT)[0],
    "its pivots": lambda a, b: linalg.ldl_factor(a + a.mT)[1],
    "blocks of two": lambda a, b: linalg.ldl_factor(hollow(a))[0],
    "their pivots": lambda a, b: linalg.ldl_factor(hollow(a))[1],
    "ldl_solve": lambda a, b: linalg.ldl_solve(*linalg.ldl_factor(a + a.mT), b),
    "over blocks of two": lambda a, b: linalg.ldl_solve(*linalg.ldl_factor(hollow(a)), b),
}
REFLECTORS: dict[str, Callable[..., Any]] = {
    "geqrf": lambda a, b: torch.geqrf(b)[0],
    "its factors": lambda a, b: torch.geqrf(b)[1],
    "q": lambda a, b: linalg.qr(b)[0],
    "r": lambda a, b: linalg.qr(b.mT)[1],
    "whole q": lambda a, b: linalg.qr(b, mode="complete")[0],
    "r alone": lambda a, b: linalg.qr(b, mode="r")[1],
    "householder_product": lambda a, b: linalg.householder_product(a, b[..., 0].sigmoid()),
    "ormqr": lambda a, b: torch.ormqr(a, b[..., 0].sigmoid(), b, transpose=True),
    "ormqr from the right": lambda a, b: torch.ormqr(a, b[..., 0].sigmoid(), b.mT.contiguous(), left=False),
}
SPECTRA: dict[str, Callable[..., Any]] = {
    "svdvals": lambda a, b: linalg.svdvals(b),
    "their gradient": lambda a, b: torch.ops.buddy.singular_values_gradient(b, linalg.svdvals(b)),
    "those of wide matrices": lambda a, b: linalg.svdvals(b.mT),
    "cond": lambda a, b: linalg.cond(b),
    "rank": lambda a, b: linalg.matrix_rank(b @ b.mT),
    "eigvalsh": lambda a, b: linalg.eigvalsh(a),
    "those of the upper triangle": lambda a, b: linalg.eigvalsh(a, UPLO="U"),
    "pinv": lambda a, b: linalg.pinv(b),
    "pinv of wide matrices": lambda a, b: linalg.pinv(b.mT),
    "pinv of symmetric matrices": lambda a, b: linalg.pinv(b @ b.mT, hermitian=True),
    "pinv but for a part": lambda a, b: linalg.pinv(b, atol=b[:, 0, 0].abs()),
    "matrix_exp": lambda a, b: linalg.matrix_exp(a),
    "matrix_exp of small ones": lambda a, b: linalg.matrix_exp(a / 16),
}
COMPLEX: dict[str, Callable[..., Any]] = {
    "upper cholesky_solve": lambda a, b: torch.cholesky_solve(b, linalg.cholesky(definite(a), upper=True), upper=True),
    "adjoint lu_solve from the right": lambda a, b: linalg.lu_solve(
        *linalg.lu_factor(a), b.mT, adjoint=True, left=False
    ),
    "lu_solve from the right": lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), b.mT, left=False),
    "ormqr from the right, transposed": lambda a, b: torch.ormqr(
        a, b[..., 0].sigmoid(), b.mT.contiguous(), left=False, transpose=True
    ),
    "ormqr as it is": lambda a, b: torch.ormqr(a, b[..., 0].sigmoid(), b),
    "hermitian ldl_factor": lambda a, b: linalg.ldl_factor(hermitian(a), hermitian=True)[0],
    "hermitian blocks of two": lambda a, b: linalg.ldl_factor(hollow_hermitian(a), hermitian=True)[0],
    "hermitian pivots": lambda a, b: linalg.ldl_factor(hollow_hermitian(a), hermitian=True)[1],
    "what lies on a hermitian diagonal": lambda a, b: linalg.ldl_factor(a, hermitian=True)[0],
    "hermitian ldl_solve": lambda a, b: linalg.ldl_solve(
        *linalg.ldl_factor(hermitian(a), hermitian=True), b, hermitian=True
    ),
    "over hermitian blocks of two": lambda a, b: linalg.ldl_solve(
        *linalg.ldl_factor(hollow_hermitian(a), hermitian=True), b, hermitian=True
    ),
    "pinv of a lower triangle": lambda a, b: linalg.pinv(a, hermitian=True),
    "no columns": lambda a, b: linalg.pinv(b[..., :0]),
}
ALL = {**SYSTEMS, **INDEFINITE, **REFLECTORS, **SPECTRA}
A, B = normal(2, 5, 5), normal(2, 5, 3)
CA, CB = (torch.complex(x, x.flip(0, 1)) for x in (A, B))

GROUPS: dict[str, Group] = {
    "linear algebra": Group((A, B), ALL),
    "linear algebra of float64": Group(
        (A.double(), B.double()), {name: ALL[name] for name in ("solve", "cholesky", *REFLECTORS, *SPECTRA)}
    ),
    "linear algebra of complex64": Group((CA, CB), {**ALL, **COMPLEX}),
    "linear algebra of complex128": Group((CA.to(torch.complex128), CB.to(torch.complex128)), COMPLEX),
}
