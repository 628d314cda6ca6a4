"""Measures the errors of a side's results relative to eager, and the errors that are allowed for a training step.

A side is a compiler or runtime that a benchmark times.

A float32 gradient has no fixed tolerance: if the input of a ReLU is close to 0, or if two inputs of a pooling are close
to each other, a rounding determines which element gets the gradient. Therefore the *spread* of each gradient is
measured: its change in eager if each weight and input is disturbed by `ROUNDINGS_OF_SUMS` roundings, as many as a
comparison with eager allows for sums of products in another order. The error of a side's gradient may be `MULTIPLE`
times the spread. Both numbers are those of `runtime.sensitivity`.

For weights in fewer bits, the reference is eager in float32 with the rounded weights of a side. The results of two
4-bit schemes differ from those in float32 by a large fraction, and from each other by as much, so float32 does not
distinguish right results from wrong ones. Each side therefore returns its rounded weights as floats, and its results
are compared with plain PyTorch on these weights.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from buddy.compiler.protocol.recipe import GROUP_SIZES
from buddy.compiler.runtime.precision import INT4_LIMIT, INT8_LIMIT, quantise
from buddy.compiler.runtime.sensitivity import MAX_RELATIVE_SPREAD, MULTIPLE, ROUNDINGS_OF_SUMS
from buddy.compiler.tools.bench.plan import BenchPrecision
from buddy.compiler.tools.bench.subjects import LoadedModel, result_tensors

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
    """Returns the largest error of an output as a whole: the norm of its difference, divided by the norm of the output.

    NaN and infinities equal only themselves; if only one of two elements is such a value, or if they are different
    ones, the error is infinite.
    """
    return max(_relative_errors(results, expected, 0.0), default=0.0)


def largest_error(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Returns the largest difference of an element, divided by its output's root mean square if that is above 1.

    NaN and infinities are compared as in `relative_error`.
    """
    errors = [0.0]
    for result, reference in zip(results, expected, strict=True):
        if reference.numel():
            scale = max(1.0, _finite_doubles(reference).square().mean().sqrt().item())
            errors.append(_difference(result, reference).abs().max().item() / scale)
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
    """Returns the spread of each result of `step`, the loss and the gradients.

    A spread is the largest error of all disturbed runs, relative to the norm of the result.

    A run multiplies each element of `tensors`, the float weights and inputs of the step, by 1 + e or 1 - e at random,
    where e is `ROUNDINGS_OF_SUMS` unit roundoffs of its type; the original values are restored at the end. With e of
    one roundoff, six runs of a U-Net left some ReLUs unchanged that another order of sums in kernels turns on or off.
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
    """Returns the error of the loss and of each gradient, relative to its norm, for gradients to at least a minimum."""
    total = math.sqrt(sum(_finite_doubles(gradient).square().sum().item() for gradient in expected[1:]))
    loss = _relative_errors(results[:1], expected[:1], 0.0)
    return [*loss, *_relative_errors(results[1:], expected[1:], _NEGLIGIBLE_FRACTION * total)]


def _relative_errors(
    results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], min_norm: float
) -> Iterator[float]:
    """Yields the norm of each difference, divided by the norm of the expected tensor, or by `min_norm` if larger."""
    for result, reference in zip(results, expected, strict=True):
        norm = max(_finite_doubles(reference).norm().item(), min_norm)
        difference = _difference(result, reference).norm().item()
        yield difference / norm if norm else difference


def _finite_doubles(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values in double precision, 0 for those that are not finite."""
    return tensor.double().nan_to_num(0.0, 0.0, 0.0)


def _difference(result: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Returns the differences of elements in double precision: 0 for equal values, infinite if only one is finite."""
    result, reference = result.double(), reference.double()
    is_equal = (result == reference) | (result.isnan() & reference.isnan())
    return torch.where(is_equal, 0.0, (result - reference).nan_to_num(math.inf, math.inf, -math.inf))


# ---- rounded weights -------------------------------------------------------------------------------------------------


# The precisions that round only weights.
WEIGHT_PRECISIONS: frozenset[BenchPrecision] = frozenset({"int8-weights", "int4-weights"})
# The largest error of a rounded matrix, relative to its norm: 4 bits in groups of 128 have 0.1 to 0.15 if the weights
# are normally distributed, and two unrelated matrices 1.4.
_MAX_ROUNDING_ERROR = 0.3
# The number of rows that are compared to find the matrix that was rounded.
_COMPARED_ROWS = 16


def round_weights(model: torch.nn.Module, precision: BenchPrecision) -> list[torch.Tensor]:
    """Returns the matrices of `model` as the option `precision` of this compiler rounds them, in float32.

    Weights of 8 bits have a scale for each output channel, those of 4 bits for each output channel and group along K. A
    matrix is not rounded to 4 bits if the size of a group does not divide K.
    """
    return [
        _round_weight(weight.detach(), depth_dim, precision)
        for weight, depth_dim in map(_weight_and_depth_dim, _matrix_layers(model))
    ]


def _round_weight(weight: torch.Tensor, depth_dim: int, precision: BenchPrecision) -> torch.Tensor:
    """Returns one matrix as `round_weights` describes; `depth_dim` is the dim K along which products are added."""
    letters = "nk" if depth_dim else "kn"  # the dims of the weight; g stands for groups along k
    if precision == "int8-weights":
        steps, scale = quantise(weight, letters, "n", INT8_LIMIT)
        return steps * scale
    group_size = GROUP_SIZES["int4-weights"]
    if weight.shape[depth_dim] % group_size:
        return weight
    steps, scale = quantise(weight.unflatten(depth_dim, (-1, group_size)), letters.replace("k", "gk"), "ng", INT4_LIMIT)
    return (steps * scale).flatten(depth_dim, depth_dim + 1)


def dequantised_weights(model: torch.nn.Module) -> list[torch.Tensor]:
    """Returns the matrices of a model whose weights are torchao's tensors, in float32."""
    weights = [_weight_and_depth_dim(layer)[0] for layer in _matrix_layers(model)]
    ordinary_types = (torch.Tensor, torch.nn.Parameter)
    return [weight.dequantize() for weight in weights if type(weight) not in ordinary_types]


def results_with_weights(loaded: LoadedModel, matrices: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the results of a copy of the model in eager, whose layers have the nearest of `matrices` as weights.

    A layer keeps its weights if no matrix is close to them: the side has left it in float32. `matrices` may be
    transposed.
    """
    assert isinstance(loaded.model, torch.nn.Module)
    model = copy.deepcopy(loaded.model)
    for layer in _matrix_layers(model):
        weight, _ = _weight_and_depth_dim(layer)
        nearest = _nearest_matrix(weight.detach(), matrices)
        if nearest is not None:
            # A new parameter: an embedding may share the old one, and is not rounded.
            layer.weight = torch.nn.Parameter(nearest, requires_grad=False)
    with torch.no_grad():
        return result_tensors(replace(loaded, model=model).results())


def _matrix_layers(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Returns the layers that multiply by a matrix: PyTorch's, and that of `transformers` with transposed weights."""
    return (layer for layer in model.modules() if isinstance(layer, torch.nn.Linear) or _is_transposed(layer))


def _weight_and_depth_dim(layer: torch.nn.Module) -> tuple[torch.Tensor, int]:
    """Returns the weight of a layer, and the dim along which products are added."""
    weight: Any = layer.weight
    return weight, 0 if _is_transposed(layer) else 1


def _is_transposed(layer: torch.nn.Module) -> bool:
    return type(layer).__module__.startswith("transformers.") and type(layer).__name__ == "Conv1D"


def _nearest_matrix(weight: torch.Tensor, matrices: Iterable[torch.Tensor]) -> torch.Tensor | None:
    """Returns the matrix that `weight` was rounded to, in the orientation of `weight`; `None` if no matrix is near."""
    oriented = (candidate for matrix in matrices for candidate in (matrix, matrix.t()))
    candidates = [candidate for candidate in oriented if candidate.shape == weight.shape]
    sample = weight[:_COMPARED_ROWS]
    limit = _MAX_ROUNDING_ERROR * sample.norm()
    distances = [(candidate[:_COMPARED_ROWS] - sample).norm() for candidate in candidates]
    best = min(range(len(candidates)), key=lambda i: distances[i], default=None)
    return candidates[best].contiguous() if best is not None and distances[best] < limit else None
