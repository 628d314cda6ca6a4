"""Bessel functions in double precision, against mpmath: eager itself has errors of up to 8.1e-7."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import pytest
import torch

from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime import LoadedProgram
from tests.programs import captured

FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[float], object]]] = {
    "j0": (torch.special.bessel_j0, lambda x: mpmath.besselj(0, x)),
    "j1": (torch.special.bessel_j1, lambda x: mpmath.besselj(1, x)),
    "y0": (torch.special.bessel_y0, lambda x: mpmath.bessely(0, x)),
    "y1": (torch.special.bessel_y1, lambda x: mpmath.bessely(1, x)),
}
# Sixteen roundings of numbers up to 4, of which Y1 is the largest here.
ERROR = 1e-14


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bessel_functions_are_exact_to_double_precision(name: str) -> None:
    function, exact = FUNCTIONS[name]
    x = torch.linspace(0.25, 40, 400, dtype=torch.float64)
    graph = captured(lambda x: function(x), x)
    (found,) = LoadedProgram(compile_graph(graph.graph, default_recipe()))(graph.tensors)
    with mpmath.workdps(40):
        right = torch.tensor([float(exact(value)) for value in x.tolist()], dtype=torch.float64)
    assert (found - right).abs().max() <= ERROR


@pytest.mark.parametrize("name", FUNCTIONS)
def test_eager_has_the_error_that_coverage_allows_for(name: str) -> None:
    """Fails once PyTorch computes these in double precision: then the entry in `EAGER_ERRORS` has no reason."""
    function, exact = FUNCTIONS[name]
    x = torch.tensor([5.05], dtype=torch.float64)
    assert 1e-7 < abs(function(x).item() - float(exact(5.05))) < 1e-6
