"""What linear algebra has no answer to is eager's, and so are the signs of vectors that only LAPACK knows."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from buddy.compiler.ops.lowering import lower_top_level
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import EAGER
from tests.programs import Line, captured

linalg = torch.linalg


def compiled(function: Callable[..., Any], *args: torch.Tensor) -> Any:
    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(function, backend="buddy", fullgraph=True, options={"fallback": "error"})(*args)


@pytest.mark.parametrize(
    ("function", "value"),
    [(linalg.inv, 0.0), (linalg.cholesky, -1.0), (torch.cholesky_inverse, 0.0), (linalg.svdvals, float("nan"))],
    ids=["a check of info", "another one", "an op that checks by itself", "no convergence"],
)
def test_what_eager_refuses_raises_the_same_error(function: Callable[..., Any], value: float) -> None:
    stack = torch.stack([torch.eye(3), torch.full((3, 3), value)])
    with pytest.raises(RuntimeError) as expected:
        function(stack)
    with pytest.raises(type(expected.value)) as raised:
        compiled(function, stack)
    assert str(raised.value) == str(expected.value)


def test_an_error_does_not_stay() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return linalg.inv(x)

    fast = torch.compile(program, backend="buddy", fullgraph=True)
    with torch.no_grad(), pytest.raises(linalg.LinAlgError):
        fast(torch.zeros(2, 2))
    with torch.no_grad():
        torch.testing.assert_close(fast(2 * torch.eye(2)), torch.eye(2) / 2)


def test_a_singular_matrix_has_infos_and_factors() -> None:
    singular = torch.tensor([[[1.0, 2.0], [2.0, 4.0]], [[0.0, 0.0], [0.0, 1.0]]])
    ours, theirs = compiled(linalg.lu_factor_ex, singular), linalg.lu_factor_ex(singular)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("function", [linalg.svdvals, linalg.eigvalsh, linalg.pinv], ids=lambda f: f.__name__)
def test_info_of_matrices_without_elements_is_not_read_from_memory_that_nobody_wrote(function: Any) -> None:
    text = str(lower_top_level(captured(function, torch.empty(3, 0, 0)).graph, "linalg"))
    infos = {found[1] for found in re.finditer(r"tensor\.extract (%\w+)\[%\w+\] : tensor<3xi32>", text)}
    assert infos
    written = {found[1] for found in re.finditer(r"(%\w+) = linalg\.fill", text)}
    assert infos <= written


@pytest.mark.parametrize("value", [-(2.0**1010), 2.0**999, float("inf"), float("nan")])
def test_exponentials_of_huge_matrices_are_eagers(value: float) -> None:
    matrix = torch.tensor([[value, 0.0], [0.0, 1.0]], dtype=torch.float64)
    expected = linalg.matrix_exp(matrix)
    torch.testing.assert_close(compiled(linalg.matrix_exp, matrix), expected, rtol=1e-12, atol=0, equal_nan=True)


def of_factors(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What reads the factors of `a` once more in its gradient."""
    solved = linalg.solve(a, b) + linalg.solve(a, b.mT, left=False).mT + linalg.solve(a, b[..., 0])[..., None]
    return solved.abs().sum() + linalg.inv(a).abs().sum() + linalg.det(a).abs() + linalg.slogdet(a)[1]


@pytest.mark.slow
def test_gradients_through_factors_wherever_rows_and_columns_lie() -> None:
    draws = torch.Generator().manual_seed(0)
    given: list[torch.Tensor] = []
    for dtype in (torch.float64, torch.complex128):
        a, b = (torch.randn(3, n, dtype=dtype, generator=draws) for n in (3, 2))
        given += [a + 2 * torch.eye(3), b, (a + 3 * torch.eye(3)).mT, b + 1]

    def program(*pairs: torch.Tensor) -> torch.Tensor:
        return torch.stack([of_factors(*pairs[i : i + 2]) for i in range(0, len(pairs), 2)]).sum()

    def gradients(function: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        leaves = [tensor.detach().requires_grad_() for tensor in given]
        return torch.autograd.grad(function(*leaves), leaves)

    torch._dynamo.reset()
    fast = torch.compile(program, backend="buddy", fullgraph=True)
    for ours, theirs in zip(gradients(fast), gradients(program), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("function", "stays"),
    [
        (linalg.eigh, True),
        (linalg.svd, True),
        (linalg.eigvalsh, False),
        (lambda x: linalg.svd(x).S, False),
    ],
    ids=["eigenvectors", "singular vectors", "eigenvalues", "singular values"],
)
def test_vectors_whose_signs_are_lapacks_stay_in_eager(function: Callable[..., Any], stays: bool) -> None:
    line = Line(function, torch.eye(3))
    lowerings = [found.lowering for found in line.compiler.assignments(default_recipe())]
    assert (EAGER in lowerings) is stays


@pytest.mark.filterwarnings("error:compiled again")
@pytest.mark.slow
def test_one_compilation_serves_matrices_of_any_size() -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return linalg.solve(a, b)

    torch._dynamo.reset()
    fast = torch.compile(program, backend="buddy", fullgraph=True, dynamic=True, options={"fallback": "error"})
    for size in (3, 5, 4):
        a, b = torch.randn(2, size, size) + 4 * torch.eye(size), torch.randn(2, size, 3)
        with torch.no_grad():
            torch.testing.assert_close(fast(a, b), program(a, b))


def nuclear_norm(a: torch.Tensor) -> torch.Tensor:
    return linalg.matrix_norm(a, "nuc")


def value_gradients(function: Callable[..., torch.Tensor], a: torch.Tensor) -> list[torch.Tensor]:
    leaf = a.clone().requires_grad_()
    values = function(leaf)
    (values * torch.arange(1.0, values.numel() + 1, dtype=values.dtype).reshape(values.shape)).sum().backward()
    assert leaf.grad is not None
    return [values.detach(), leaf.grad]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 5), (5, 3)], ids=str)
@pytest.mark.parametrize("function", [linalg.svdvals, nuclear_norm, linalg.cond], ids=lambda f: f.__name__)
def test_gradients_of_singular_values_are_compiled(function: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    a = torch.randn(*shape, dtype=dtype)
    fast = torch.compile(function, backend="buddy", fullgraph=True, options={"fallback": "error"})
    # Both are within a few roundings of the condition number (at most 40 here) times the largest gradient.
    torch.testing.assert_close(value_gradients(fast, a), value_gradients(function, a), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("function", "a"),
    [
        (linalg.svdvals, torch.eye(3)),
        (linalg.svdvals, torch.ones(3, 4)),
        (nuclear_norm, torch.stack([torch.eye(3), torch.zeros(3, 3)])),
    ],
    ids=["equal values of different gradients", "values of 0", "a matrix of zeros"],
)
def test_gradients_that_singular_vectors_decide_are_eagers(function: Any, a: torch.Tensor) -> None:
    torch._dynamo.reset()
    fast = torch.compile(function, backend="buddy", fullgraph=True)
    torch.testing.assert_close(value_gradients(fast, a), value_gradients(function, a))
