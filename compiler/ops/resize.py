"""Gradients of resampling: distributes each output element's gradient to the input elements that it was computed from.

Positions and weights are those of PyTorch's `UpSample.h`, in f32 unless the elements are f64; the position of the
nearest element is always computed in f32.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops import loops
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.data_movement import INDEX_TYPE
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import accumulator_type
from buddy.compiler.ops.utils import Registry, SymbolTable, value_of

ops_registry = Registry()
lowering = ops_registry.lowering

# The index of an input element that an output element reads, and its weight. The functions `_nearest` to `_cubic`
# return the taps of an output along one dim.
Tap = tuple[Scalar, Scalar]
# The parameter `a` that PyTorch chooses for the cubic convolution kernel (Keys 1981).
_CUBIC_A = -0.75


@dataclass(frozen=True)
class ResizeAxis:
    """A dim of `size` input elements resampled to `count` outputs, which are `step` input elements apart.

    `aligned` is `align_corners`: the first and last output coincide with the first and last input element.
    """

    size: int
    count: int
    step: float
    aligned: bool

    def source(self, output: Scalar) -> Scalar:
        """Returns the input position of output number `output`; without `aligned`, centres of elements correspond."""
        return output * self.step if self.aligned else (output + 0.5) * self.step - 0.5

    def clamp(self, index: Scalar) -> Scalar:
        return s.minimum(s.maximum(index, 0), self.size - 1)


def _nearest(axis: ResizeAxis, output: Scalar) -> list[Tap]:
    return [(axis.clamp(cast(s.floor(output * axis.step), INDEX_TYPE)), output.like(1))]


def _nearest_exact(axis: ResizeAxis, output: Scalar) -> list[Tap]:
    return [(axis.clamp(cast(s.floor((output + 0.5) * axis.step), INDEX_TYPE)), output.like(1))]


def _linear(axis: ResizeAxis, output: Scalar) -> list[Tap]:
    source = s.maximum(axis.source(output), 0)
    index = s.minimum(cast(source, INDEX_TYPE), axis.size - 1)
    fraction = s.minimum(s.maximum(source - cast(index, source.dtype), 0), 1)
    return [(index, 1 - fraction), (axis.clamp(index + 1), fraction)]


def _cubic(axis: ResizeAxis, output: Scalar) -> list[Tap]:
    source = axis.source(output)
    floor = s.floor(source)
    fraction, index = source - floor, cast(floor, INDEX_TYPE)
    weights = [
        _cubic_kernel_far(fraction + 1),
        _cubic_kernel_near(fraction),
        _cubic_kernel_near(1 - fraction),
        _cubic_kernel_far(2 - fraction),
    ]
    return [(axis.clamp(index + (i - 1)), weight) for i, weight in enumerate(weights)]


def _cubic_kernel_near(x: Scalar) -> Scalar:
    """Returns Keys' cubic convolution kernel at a distance up to 1."""
    return ((_CUBIC_A + 2) * x - (_CUBIC_A + 3)) * x * x + 1


def _cubic_kernel_far(x: Scalar) -> Scalar:
    """Returns Keys' cubic convolution kernel at a distance from 1 to 2."""
    return ((_CUBIC_A * x - 5 * _CUBIC_A) * x + 8 * _CUBIC_A) * x - 4 * _CUBIC_A


# By the name of the op, without the number of dims.
_TAPS: dict[str, Callable[[ResizeAxis, Scalar], list[Tap]]] = {
    "upsample_nearest": _nearest, "_upsample_nearest_exact": _nearest_exact, "upsample_linear": _linear,
    "upsample_bilinear": _linear, "upsample_trilinear": _linear, "upsample_bicubic": _cubic,
}  # fmt: skip


def _axes(node: Op, spatial: int, name: str) -> list[ResizeAxis]:
    """Returns the axes of a node.

    The node's arguments are the gradient, the output's sizes, the input's sizes, `align_corners` (not for nearest), and
    a scale per dim.
    """
    pairs, is_nearest = list(zip(node.args[2][-spatial:], node.args[1], strict=True)), "nearest" in name
    aligned = not is_nearest and bool(node.args[3])
    scales = list(node.args[3 if is_nearest else 4 :])
    scales += [None] * (spatial - len(scales))
    axes = []
    for (size, count), scale in zip(pairs, scales, strict=True):
        used_scale = scale if _uses_scale(name, size, count, pairs) else None
        axes.append(ResizeAxis(size, count, _step(size, count, aligned, used_scale), aligned))
    return axes


def _uses_scale(name: str, size: int, count: int, pairs: Sequence[tuple[int, int]]) -> bool:
    """True if eager computes the step from the scale argument, false if from the sizes.

    Eager uses the sizes if they show that elements are only copied.
    """
    if name == "_upsample_nearest_exact":
        return True
    if name == "upsample_bicubic":
        return any(size != count for size, count in pairs)
    return count != size and not (name == "upsample_nearest" and count == 2 * size)


def _step(size: int, count: int, aligned: bool, scale: float | None) -> float:
    """Returns the distance of two outputs in input elements; without `scale`, it follows from the sizes."""
    if aligned:
        return (size - 1) / (count - 1) if count > 1 else 0.0
    return 1 / scale if scale else size / count


@lowering("UpsampleBackwardOp")
def upsample_backward(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Adds the gradient of each output, times the weights of its taps, to the gradients of these input elements."""
    gradient, meta = value_of(node.args[0], symbol_table), node.tensor_meta
    # The target is, for instance, `upsample_bilinear2d_backward.default`.
    name_and_rank = node.target.split("d_backward")[0]
    name, spatial = name_and_rank[:-1], int(name_and_rank[-1])
    taps_of, axes = _TAPS[name], _axes(node, spatial, name)
    position_type = TensorDType.Float32 if "nearest" in name else accumulator_type(meta.dtype)

    def combined_taps(indices: Sequence[ir.Value]) -> list[tuple[list[Scalar], Scalar]]:
        """Returns every combination of the taps of all dims, with the product of their weights."""
        taps_per_axis = [
            taps_of(axis, cast(loops.index_to_scalar(i), position_type))
            for axis, i in zip(axes, indices[1:], strict=True)
        ]
        return [([index for index, _ in taps], _weight(taps)) for taps in product(*taps_per_axis)]

    return loops.accumulate_taps(gradient, meta.dtype, meta.shape, spatial, combined_taps)


def _weight(taps: Sequence[Tap]) -> Scalar:
    """Returns the product of the weights of `taps`."""
    return reduce(operator.mul, (weight for _, weight in taps))
