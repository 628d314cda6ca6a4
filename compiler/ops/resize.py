"""Gradients of resampling: distributes each output's gradient over the elements that the output was computed from.

Positions and weights are those of PyTorch's `UpSample.h`, in f32 unless the elements are f64; the position of the
nearest element is always computed in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import loops
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.moves import INDEX
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.sums import accumulate_taps, accumulator_type
from buddy.compiler.ops.utils import SymbolTable, value_of

ops_registry = Registry()
lowering = ops_registry.lowering

# The index of an element that an output reads, and its weight.
Tap = tuple[Scalar, Scalar]
# PyTorch's parameter of the cubic convolution kernel (Keys 1981).
_CUBIC = -0.75


@dataclass(frozen=True)
class ResizeAxis:
    """A dim of `size` elements resampled to `count`; `step` is the distance between outputs, in elements."""

    size: int
    count: int
    step: float
    aligned: bool

    def source(self, number: Scalar, shift: float) -> Scalar:
        """Returns the position that output `number` reads; `shift` is the distance of its centre from its start."""
        return number * self.step if self.aligned else (number + shift) * self.step - shift

    def inside(self, index: Scalar) -> Scalar:
        return s.minimum(s.maximum(index, 0), self.size - 1)


def _nearest(axis: ResizeAxis, number: Scalar) -> list[Tap]:
    return [(axis.inside(cast(s.floor(number * axis.step), INDEX)), number.like(1))]


def _nearest_exact(axis: ResizeAxis, number: Scalar) -> list[Tap]:
    return [(axis.inside(cast(s.floor((number + 0.5) * axis.step), INDEX)), number.like(1))]


def _linear(axis: ResizeAxis, number: Scalar) -> list[Tap]:
    source = s.maximum(axis.source(number, 0.5), 0)
    first = s.minimum(cast(source, INDEX), axis.size - 1)
    second = s.minimum(s.maximum(source - cast(first, source.dtype), 0), 1)
    return [(first, 1 - second), (axis.inside(first + 1), second)]


def _cubic(axis: ResizeAxis, number: Scalar) -> list[Tap]:
    source = axis.source(number, 0.5)
    start = s.floor(source)
    t, first = source - start, cast(start, INDEX)
    weights = [_kernel_far(t + 1), _kernel_near(t), _kernel_near(1 - t), _kernel_far(2 - t)]
    return [(axis.inside(first + (i - 1)), weight) for i, weight in enumerate(weights)]


def _kernel_near(x: Scalar) -> Scalar:
    """Keys' cubic convolution kernel, for distances up to 1."""
    return ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1


def _kernel_far(x: Scalar) -> Scalar:
    """Keys' cubic convolution kernel, for distances from 1 to 2."""
    return ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC


_TAPS: dict[str, Callable[[ResizeAxis, Scalar], list[Tap]]] = {
    "upsample_nearest": _nearest, "_upsample_nearest_exact": _nearest_exact, "upsample_linear": _linear,
    "upsample_bilinear": _linear, "upsample_trilinear": _linear, "upsample_bicubic": _cubic,
}  # fmt: skip


def _axes(node: Op, spatial: int, name: str) -> list[ResizeAxis]:
    """Returns the axes of a node.

    Its arguments are the gradient, the output's and the input's sizes, `align_corners` (not for nearest), and a scale
    per dim.
    """
    pairs, by_nearest = list(zip(node.args[2][-spatial:], node.args[1], strict=True)), "nearest" in name
    aligned = not by_nearest and bool(node.args[3])
    scales = list(node.args[3 if by_nearest else 4 :])
    scales += [None] * (spatial - len(scales))
    return [
        ResizeAxis(
            size, count, _step(size, count, aligned, scale if _uses_scale(name, size, count, pairs) else None), aligned
        )
        for (size, count), scale in zip(pairs, scales, strict=True)
    ]


def _uses_scale(name: str, size: int, count: int, pairs: Sequence[tuple[int, int]]) -> bool:
    """True if eager computes the step from the scale argument.

    It computes the step from the sizes if the sizes imply that elements are copied.
    """
    if name == "_upsample_nearest_exact":
        return True
    if name == "upsample_bicubic":
        return any(one != other for one, other in pairs)
    return count != size and not (name == "upsample_nearest" and count == 2 * size)


def _step(size: int, count: int, aligned: bool, scale: float | None) -> float:
    if aligned:
        return (size - 1) / (count - 1) if count > 1 else 0.0
    return 1 / scale if scale else size / count


@lowering("UpsampleBackwardOp")
def upsample_backward(node: Op, symbol_table: SymbolTable) -> Any:
    gradient, meta = value_of(node.args[0], symbol_table), node.tensor_meta
    name = node.target.split("d_backward")[0]
    spatial, taps = int(name[-1]), _TAPS[name[:-1]]
    axes = _axes(node, spatial, name[:-1])
    real = TensorDType.Float32 if "nearest" in name else accumulator_type(meta.dtype)

    def places(at: Sequence[Any]) -> list[tuple[list[Scalar], Scalar]]:
        """Returns every combination of the taps of all dims."""
        of_axes = [taps(axis, cast(loops.index_of(p), real)) for axis, p in zip(axes, at[1:], strict=True)]
        return [([index for index, _ in chosen], _product(chosen)) for chosen in product(*of_axes)]

    return accumulate_taps(gradient, meta.dtype, meta.shape, spatial, places)


def _product(taps: Sequence[Tap]) -> Scalar:
    weight = taps[0][1]
    for _, further in taps[1:]:
        weight = weight * further
    return weight
