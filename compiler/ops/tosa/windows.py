"""Convolutions and pools in TOSA, where channels are last, and windows must end at the end of the padded input."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from buddy.compiler.graph.operation import GetItemOp, Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import ir, tosa
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.tosa import registration
from buddy.compiler.ops.tosa.registration import tensor_of
from buddy.compiler.ops.tosa.tensors import TosaTensor, padded, part, reshape, splat, transpose
from buddy.compiler.ops.tosa.types import require
from buddy.compiler.ops.utils import (
    LoweringError,
    SymbolTable,
    argument,
    mlir_element_type_get,
    tensor_type,
)  # fmt: skip
from buddy.compiler.ops.windows import SlidingWindow, pool_window, spread

ops_registry = Registry()
lowering = partial(registration.lowering, ops_registry)


def _channels_last(x: TosaTensor) -> TosaTensor:
    return transpose(x, [0, *range(2, len(x.shape)), 1])


def _channels_second(x: TosaTensor) -> TosaTensor:
    rank = len(x.shape)
    return transpose(x, [0, rank - 1, *range(1, rank - 1)])


def _fit_to_windows(x: TosaTensor, window: SlidingWindow, outputs: Sequence[int]) -> tuple[TosaTensor, list[int]]:
    """Returns `x`, with channels last, cropped to the elements that windows reach, and the pads of all dims."""
    pads = []
    for i, (reach, before) in enumerate(zip(window.reach(outputs), window.padding, strict=True)):
        after = reach - before - x.shape[1 + i]
        if after < 0:
            x = part(x, 1 + i, 0, x.shape[1 + i] + after)
        pads += [before, max(after, 0)]
    return x, pads


def _numbers(values: Sequence[int]) -> Any:
    return ir.DenseI64ArrayAttr.get(list(values))


# ---- convolution -----------------------------------------------------------------------------------------------------


@lowering("Conv2dOp")
def convolution(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    """Lowers [batch, channels, *space] by [out, channels / groups, *kernel]; adds a unit dim to one spatial dim."""
    meta, groups = node.tensor_meta, node.args[8]
    x, kernel = (tensor_of(arg, symbol_table) for arg in node.args[:2])
    spatial = len(meta.shape) - 2
    if node.args[6]:
        raise LoweringError("no transposed convolution that the bindings can lower")
    if meta.dtype is not TensorDType.Float32:
        raise LoweringError(f"no {meta.dtype.value} convolution with a wider accumulator")
    window = SlidingWindow(kernel.shape[2:], *(spread(node.args[i], spatial) for i in (3, 4, 5)))
    outputs = list(meta.shape[2:])
    if spatial == 1:
        x, kernel = reshape(x, [*x.shape[:2], 1, x.shape[2]]), reshape(kernel, [*kernel.shape[:2], 1, kernel.shape[2]])
        window, outputs = window.with_unit_dim(), [1, *outputs]
    bias = _bias(node.args[2], kernel.shape[0], meta.dtype, symbol_table)
    x, pads = _fit_to_windows(_channels_last(x), window, outputs)
    found = _convolve(x, kernel, bias, groups, window, pads, outputs)
    return reshape(_channels_second(found), meta.shape)


def _bias(arg: Any, channels: int, dtype: TensorDType, symbol_table: SymbolTable) -> TosaTensor:
    return splat(0, [channels], dtype) if arg is None else tensor_of(arg, symbol_table)


def _convolve(
    x: TosaTensor,
    kernel: TosaTensor,
    bias: TosaTensor,
    groups: int,
    window: SlidingWindow,
    pads: list[int],
    outputs: Sequence[int],
) -> TosaTensor:
    channels, out = x.shape[-1], kernel.shape[0]
    if groups == 1:
        op = {2: "conv2d", 3: "conv3d"}.get(len(outputs), "")
        kernel = _channels_last(kernel)
    elif groups == channels and len(outputs) == 2:
        op = "depthwise_conv2d"
        multiplied = reshape(kernel, [channels, out // channels, *kernel.shape[2:]])
        kernel = transpose(multiplied, [2, 3, 0, 1])
    else:
        raise LoweringError(f"no convolution in {groups} groups over {len(outputs)} dims")
    if not op:
        raise LoweringError(f"no convolution over {len(outputs)} dims")
    require(op, x.dtype)
    kind = tensor_type([x.shape[0], *outputs, out], x.dtype)
    zero = splat(0, [1], x.dtype).value
    settings = {
        "pad": _numbers(pads), "stride": _numbers(window.stride), "dilation": _numbers(window.dilation),
        "acc_type": ir.TypeAttr.get(mlir_element_type_get(TensorDType.Float32)),
    }  # fmt: skip
    return TosaTensor(getattr(tosa, op)(kind, x.value, kernel.value, bias.value, zero, zero, **settings), x.dtype)


# ---- pools -----------------------------------------------------------------------------------------------------------


@lowering("MaxPool2dWithIndicesOp", "MaxPool2dOp")
def max_pool(node: Op, symbol_table: SymbolTable) -> list[TosaTensor]:
    """Returns the maxima; TOSA does not return their positions."""
    x, window, meta = tensor_of(node.args[0], symbol_table), pool_window(node), node.tensor_meta
    if any(isinstance(user, GetItemOp) and user.args[1] == 1 for user in node._children):
        raise LoweringError("max_pool2d returns no positions")
    if any(gap != 1 for gap in window.dilation):
        raise LoweringError("no dilated max_pool2d")
    require("max_pool2d", x.dtype)
    x, pads = _fit_to_windows(_as_batch(x), window, meta.shape[-2:])
    kind = tensor_type([x.shape[0], *meta.shape[-2:], x.shape[-1]], x.dtype)
    found = tosa.max_pool2d(kind, x.value, _numbers(window.size), _numbers(window.stride), _numbers(pads))
    return [reshape(_channels_second(TosaTensor(found, x.dtype)), meta.shape)]


def _as_batch(x: TosaTensor) -> TosaTensor:
    """Returns the tensor with channels last and a batch dim."""
    return _channels_last(x if len(x.shape) == 4 else reshape(x, [1, *x.shape]))


@lowering("AvgPool2dOp")
def avg_pool(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    """Adds padding that counts as elements before the pool, because TOSA divides by the number of other elements."""
    x, window = tensor_of(node.args[0], symbol_table), pool_window(node)
    divisor = argument(node, 6, "divisor_override")
    if argument(node, 4, "ceil_mode", False):
        raise LoweringError("no avg_pool2d with ceil_mode: partial windows differ")
    if divisor is not None and divisor != prod(window.size):
        raise LoweringError("no avg_pool2d with another divisor")
    x = _as_batch(x)
    if argument(node, 5, "count_include_pad", True) and any(window.padding):
        sides = [0, *window.padding, 0]
        x, window = padded(x, sides, sides, 0), window.without_padding()
    return _average_pool(node, x, window)


@lowering("AdaptiveAvgPool2dOp")
def adaptive_avg_pool(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    """Lowers the case in which the output's size divides the input's, and all windows have the same size."""
    x, outputs = _as_batch(tensor_of(node.args[0], symbol_table)), node.tensor_meta.shape[-2:]
    if any(not n or size % n for size, n in zip(x.shape[1:3], outputs, strict=True)):
        raise LoweringError("windows of different sizes: the output's size does not divide the input's")
    size = (x.shape[1] // outputs[0], x.shape[2] // outputs[1])
    return _average_pool(node, x, SlidingWindow(size, size, (0, 0), (1, 1)))


def _average_pool(node: Op, x: TosaTensor, window: SlidingWindow) -> TosaTensor:
    meta = node.tensor_meta
    require("avg_pool2d", x.dtype)
    x, pads = _fit_to_windows(x, window, meta.shape[-2:])
    kind = tensor_type([x.shape[0], *meta.shape[-2:], x.shape[-1]], x.dtype)
    zero = splat(0, [1], x.dtype).value
    wide = ir.TypeAttr.get(mlir_element_type_get(TensorDType.Float32))
    sizes = (_numbers(window.size), _numbers(window.stride), _numbers(pads))
    found = tosa.avg_pool2d(kind, x.value, zero, zero, *sizes, wide)
    return reshape(_channels_second(TosaTensor(found, x.dtype)), meta.shape)
