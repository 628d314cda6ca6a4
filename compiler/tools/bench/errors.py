"""Measures the errors of a side's results relative to eager, and the errors that are allowed for a training step.

A float32 gradient has no fixed tolerance: if the input of a ReLU is close to 0, or if two inputs of a pooling are close
to each other, a rounding determines which element gets the gradient. Therefore the *spread* of each gradient is
measured: its change in eager if each weight and input is disturbed by `ROUNDINGS_OF_SUMS` roundings, as many as
verdicts allow for sums of products in another order. The error of a side's gradient may be `MULTIPLE` times the spread.
Both numbers are those of `runtime.sensitivity`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from buddy.compiler.runtime.sensitivity import MAX_RELATIVE_SPREAD, MULTIPLE, ROUNDINGS_OF_SUMS

# The number of disturbed runs. Few ReLUs are switched by a rounding, and they differ from run to run.
DISTURBED_RUNS = 6
# The minimum of the allowed error. Sums in another order have other roundings, which add up over the layers; the
# disturbed runs do not include this effect, because they compute all sums in the same order.
MIN_ALLOWED_ERROR = 1e-4
# The minimum norm that the error of a gradient is divided by, as a fraction of the norm of all gradients together. The
# terms of a smaller gradient may cancel: the exact gradient of an attention's key bias is 0.
_NEGLIGIBLE_FRACTION = 1e-4


@dataclass(frozen=True)
class StepDifference:
    """The error of one result of a training step, the loss or a gradient, called `name`.

    `error` and `spread` are norms of differences, relative to the norm of the result.
    """

    name: str
    error: float
    spread: float

    @property
    def allowed(self) -> float:
        """The largest error of a correct result."""
        return max(MULTIPLE * self.spread, MIN_ALLOWED_ERROR)

    @property
    def problem(self) -> str:
        """The reason why the step is not timed, "" if its results are right."""
        if self.spread > MAX_RELATIVE_SPREAD:
            return (
                f"{self.name} of eager itself changes by {self.spread:.1e} if weights are disturbed by a rounding: "
                "no other result can be compared with it"
            )
        if self.error <= self.allowed:
            return ""
        return f"{self.name} differs from eager's by {self.error:.1e}; {self.allowed:.1e} is allowed"


def relative_error(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Returns the largest relative error of an output: the norm of its difference, divided by the norm of the output.

    NaN and infinities equal only themselves; if only one of two elements is such a value, or if they are different
    ones, the error is infinite.
    """
    return max(_relative_errors(results, expected, 0.0), default=0.0)


def largest_error(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Returns the largest difference in any output, divided by the output's root mean square if that is above 1.

    NaN and infinities are compared as in `relative_error`.
    """
    errors = [0.0]
    for ours, theirs in zip(results, expected, strict=True):
        if theirs.numel():
            scale = max(1.0, _finite_doubles(theirs).square().mean().sqrt().item())
            errors.append(_difference(ours, theirs).abs().max().item() / scale)
    return max(errors)


def step_error(
    names: Sequence[str], results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], spreads: Sequence[float]
) -> StepDifference:
    """Returns the difference of the result with the largest error relative to the allowed error.

    `results` are the loss and the gradients, with their `names`; `spreads` are those of `gradient_spreads`.
    """
    errors = _step_errors(results, expected)
    differences = [StepDifference(*values) for values in zip(names, errors, spreads, strict=True)]
    return max(differences, key=lambda difference: (bool(difference.problem), difference.error / difference.allowed))


def gradient_spreads(
    step: Callable[[], list[torch.Tensor]], tensors: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> list[float]:
    """Returns the spread of each result of `step`: its largest error of all disturbed runs, relative to its norm.

    A run multiplies each element of `tensors`, the float weights and inputs of the step, by 1 + e or 1 - e at random,
    where e is `ROUNDINGS_OF_SUMS` unit roundoffs of its type; the original values are restored at the end. With e of
    one roundoff, six runs of a U-Net did not switch all ReLUs that kernels with another order of sums switch.
    """
    spreads = [0.0] * len(expected)
    for seed in range(DISTURBED_RUNS):
        with _disturbed(tensors, seed):
            errors = _step_errors(step(), expected)
        spreads = [max(spread, error) for spread, error in zip(spreads, errors, strict=True)]
    return spreads


@contextmanager
def _disturbed(tensors: Sequence[torch.Tensor], seed: int) -> Iterator[None]:
    """Disturbs `tensors` as `gradient_spreads` describes, in the `with` block."""
    generator = torch.Generator().manual_seed(seed)
    values = [tensor.detach().clone() for tensor in tensors]
    try:
        for tensor in tensors:
            signs = torch.randint(2, tensor.shape, generator=generator).to(tensor.dtype) * 2 - 1
            tensor.detach().mul_(1 + ROUNDINGS_OF_SUMS * torch.finfo(tensor.dtype).eps / 2 * signs)
        yield
    finally:
        for tensor, value in zip(tensors, values, strict=True):
            tensor.detach().copy_(value)


def _step_errors(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> list[float]:
    """Returns the error of the loss and of each gradient; for a negligible gradient, relative to all gradients."""
    total = math.sqrt(sum(_finite_doubles(gradient).square().sum().item() for gradient in expected[1:]))
    loss = _relative_errors(results[:1], expected[:1], 0.0)
    return [*loss, *_relative_errors(results[1:], expected[1:], _NEGLIGIBLE_FRACTION * total)]


def _relative_errors(
    results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], min_norm: float
) -> Iterator[float]:
    """Yields the norm of each difference, divided by the norm of the expected tensor, or by `min_norm` if larger."""
    for ours, theirs in zip(results, expected, strict=True):
        norm = max(_finite_doubles(theirs).norm().item(), min_norm)
        difference = _difference(ours, theirs).norm().item()
        yield difference / norm if norm else difference


def _finite_doubles(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values in double precision, 0 for those that are not finite."""
    return tensor.double().nan_to_num(0.0, 0.0, 0.0)


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Returns the differences of elements in double precision: 0 for equal values, infinite if only one is finite."""
    ours, theirs = ours.double(), theirs.double()
    is_equal = (ours == theirs) | (ours.isnan() & theirs.isnan())
    return torch.where(is_equal, 0.0, (ours - theirs).nan_to_num(math.inf, math.inf, -math.inf))
