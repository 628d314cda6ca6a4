"""Computes the reference for weights in fewer bits: eager in float32, with the rounded weights of a side.

The results of two 4-bit schemes differ from those in float32 by a large fraction, and from each other by as much, so
float32 does not distinguish right results from wrong ones. Each side therefore returns its rounded weights as floats,
and its results are compared with plain PyTorch on these weights.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from buddy.compiler.protocol.recipe import GROUP_SIZES
from buddy.compiler.runtime.precision import INT4_LIMIT, INT8_LIMIT, quantise
from buddy.compiler.tools.bench.plan import BenchPrecision
from buddy.compiler.tools.bench.subjects import LoadedModel, result_tensors

# The precisions that round only weights.
WEIGHT_PRECISIONS: frozenset[BenchPrecision] = frozenset({"int8-weights", "int4-weights"})
# The largest error of a rounded matrix, relative to its norm: 4 bits in groups of 128 have 0.1 to 0.15 if the weights
# are normally distributed, and two unrelated matrices 1.4.
_MAX_ROUNDING_ERROR = 0.3
# The number of rows that are compared to find the matrix that was rounded.
_COMPARED_ROWS = 16


def round_weights(model: torch.nn.Module, precision: BenchPrecision) -> list[torch.Tensor]:
    """Returns the matrices of `model` as the option `precision` of this compiler rounds them, in float32.

    8 bits have a scale for each output channel; 4 bits one for each group along K too, where groups divide K.
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

    A layer that none of them rounds keeps its weights: the side has left it in float32. `matrices` may be transposed.
    """
    assert isinstance(loaded.model, torch.nn.Module)
    model = copy.deepcopy(loaded.model)
    for layer in _matrix_layers(model):
        weight, _ = _weight_and_depth_dim(layer)
        nearest = _nearest(weight.detach(), matrices)
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


def _nearest(weight: torch.Tensor, matrices: Iterable[torch.Tensor]) -> torch.Tensor | None:
    """Returns the matrix that `weight` was rounded to, in the orientation of `weight`; `None` if none is near it."""
    oriented = (candidate for matrix in matrices for candidate in (matrix, matrix.t()))
    candidates = [candidate for candidate in oriented if candidate.shape == weight.shape]
    sample = weight[:_COMPARED_ROWS]
    limit = _MAX_ROUNDING_ERROR * sample.norm()
    distances = [(candidate[:_COMPARED_ROWS] - sample).norm() for candidate in candidates]
    best = min(range(len(candidates)), key=lambda i: distances[i], default=None)
    return candidates[best].contiguous() if best is not None and distances[best] < limit else None
