"""How far a side's results are from eager's, and how far those of a training step may be.

A gradient of float32 has no fixed tolerance: where the input of a ReLU is close to 0, or two inputs of a pooling are
close to each other, a rounding decides which element the gradient goes to. So the *spread* of each gradient is
measured: by how much it changes in eager if each weight and input is disturbed by as many roundings as verdicts allow
for sums of products in another order. A side's gradient may be `MULTIPLE` times as far from eager's. Both numbers are
those of `runtime.sensitivity`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from buddy.compiler.runtime.sensitivity import MAX_RELATIVE_SPREAD, MULTIPLE, ROUNDINGS_OF_SUMS

# The disturbed runs. A ReLU that a rounding switches is rare, and which one it is differs from run to run.
DISTURBED_RUNS = 6
# The least error that is allowed: sums in another order, whose roundings add up over the layers in both directions.
# The disturbed runs round every sum alike.
MIN_ALLOWED = 1e-4
# A gradient whose norm is less than this part of that of all gradients together is compared with that part: it may be
# a sum of terms that cancel, such as that of an attention's key bias, whose exact value is 0.
_NEGLIGIBLE = 1e-4


@dataclass(frozen=True)
class StepError:
    """The result of a training step that is furthest from eager's, relative to what is allowed.

    `error` and `spread` are norms of differences, relative to the norm of the result.
    """

    name: str
    error: float
    spread: float

    @property
    def allowed(self) -> float:
        return max(MULTIPLE * self.spread, MIN_ALLOWED)

    @property
    def problem(self) -> str:
        """The reason why the step's time says nothing, "" if its results are right."""
        if self.spread > MAX_RELATIVE_SPREAD:
            return (
                f"{self.name} of eager itself changes by {self.spread:.1e} if weights are disturbed by a rounding: "
                "no other result can be compared with it"
            )
        if self.error <= self.allowed:
            return ""
        return f"{self.name} differs from eager's by {self.error:.1e}; {self.allowed:.1e} is allowed"


def relative_error(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Returns the norm of the difference of an output, divided by its norm; the largest one of all outputs.

    NaN and infinities equal only themselves; another value in their place, or one of them, is an infinite error.
    """
    return max(_relative_errors(results, expected, 0.0), default=0.0)


def largest_error(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Returns the largest difference in any output, divided by the output's root mean square if that is above 1.

    NaN and infinities are compared as in `relative_error`.
    """
    errors = [0.0]
    for ours, theirs in zip(results, expected, strict=True):
        if theirs.numel():
            scale = max(1.0, _finite(theirs).square().mean().sqrt().item())
            errors.append(_difference(ours, theirs).abs().max().item() / scale)
    return max(errors)


def step_error(
    names: Sequence[str], results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], spreads: Sequence[float]
) -> StepError:
    """Returns the error of the result that is furthest from `expected`, relative to what its spread allows.

    Results are the loss, then gradients, as `names` says; `spreads` are those of `gradient_spreads`.
    """
    errors = _step_errors(results, expected)
    found = [StepError(*each) for each in zip(names, errors, spreads, strict=True)]
    return max(found, key=lambda each: (bool(each.problem), each.error / each.allowed))


def gradient_spreads(
    step: Callable[[], list[torch.Tensor]], tensors: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> list[float]:
    """Returns the spread of each result of `step`: its largest error of all disturbed runs, relative to its norm.

    A run multiplies each element of `tensors`, the float weights and inputs of the step, by 1 + e or 1 - e at random,
    where e is `ROUNDINGS_OF_SUMS` unit roundoffs of its type; the tensors have their values again at the end. With one
    roundoff, six runs of a U-Net did not switch the ReLUs that kernels with other sums do.
    """
    spreads = [0.0] * len(expected)
    for seed in range(DISTURBED_RUNS):
        with _disturbed(tensors, seed):
            errors = _step_errors(step(), expected)
        spreads = [max(spread, error) for spread, error in zip(spreads, errors, strict=True)]
    return spreads


@contextmanager
def _disturbed(tensors: Sequence[torch.Tensor], seed: int) -> Iterator[None]:
    bits = torch.Generator().manual_seed(seed)
    values = [tensor.detach().clone() for tensor in tensors]
    try:
        for tensor in tensors:
            signs = torch.randint(2, tensor.shape, generator=bits).to(tensor.dtype) * 2 - 1
            tensor.detach().mul_(1 + ROUNDINGS_OF_SUMS * torch.finfo(tensor.dtype).eps / 2 * signs)
        yield
    finally:
        for tensor, value in zip(tensors, values, strict=True):
            tensor.detach().copy_(value)


def _step_errors(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> list[float]:
    """Returns the error of the loss and of each gradient; for a negligible gradient, relative to all gradients."""
    total = math.sqrt(sum(_finite(gradient).square().sum().item() for gradient in expected[1:]))
    loss = _relative_errors(results[:1], expected[:1], 0.0)
    return [*loss, *_relative_errors(results[1:], expected[1:], _NEGLIGIBLE * total)]


def _relative_errors(
    results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], least: float
) -> Iterator[float]:
    """Yields the norm of each difference, divided by the norm of what is expected, which counts as `least` or more."""
    for ours, theirs in zip(results, expected, strict=True):
        size = max(_finite(theirs).norm().item(), least)
        difference = _difference(ours, theirs).norm().item()
        yield difference / size if size else difference


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values in double precision, 0 for those that are not finite."""
    return tensor.double().nan_to_num(0.0, 0.0, 0.0)


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Returns the difference of each element in double precision: 0 of the same value, infinity of NaN and a number."""
    a, b = ours.double(), theirs.double()
    return torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).nan_to_num(math.inf, math.inf, -math.inf))
