"""Lowers products and convolutions of dequantised 8-bit integers, which sum products of integers in 32 bits.

With zero points z and w, the sum of `(a - z) (b - w)` is that of `a b`, minus z times the sum of b, minus w times the
sum of a, plus `z w` for each product. Sums of weights alone are computed once, before the calls. Arithmetic of 32 bits
wraps around, so intermediate results may overflow; the whole sum does not.
"""

from __future__ import annotations

from math import prod
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.convolutions import ConvolutionSetup, SlidingWindow, convolve_padded, pad_for_window, per_dim
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.utils import Registry, SymbolTable, value_of

ops_registry = Registry()
lowering = ops_registry.lowering

_F32, _INT32 = TensorDType.Float32, TensorDType.Int32
# A tensor and its element type; it is broadcast to the shape of the result.
TypedTensor = tuple[Any, TensorDType]


@lowering("IntegerProductOp")
def multiply(node: Op, symbol_table: SymbolTable) -> Any:
    """Multiplies matrices, or each of a batch; `b_scales` and `b_zeros` have an element for each column.

    The arguments are those of `IntegerProductOp`.
    """
    a, b, addend = node.args[:3]
    batch = "b" * (len(node.tensor_meta.shape) - 2)
    values, dtypes = [value_of(op, symbol_table) for op in (a, b)], [op.tensor_meta.dtype for op in (a, b)]
    unsigned = dtypes[0].is_unsigned, dtypes[1].is_unsigned
    epilogue = _Epilogue(node, 3, symbol_table, [])
    rank, (*_, k) = len(batch) + 2, a.tensor_meta.shape
    sums = st.contract(values[0], values[1], f"{batch}mk", f"{batch}kn", f"{batch}mn", _INT32, unsigned=unsigned)
    a_sums = (_sum(values[0], dtypes[0], [rank - 1]), _INT32) if epilogue.b_zero != 0 else None
    b_sums = (_sum(values[1], dtypes[1], [rank - 2]), _INT32) if epilogue.a_zero else None
    terms = epilogue.corrections(a_sums, b_sums, k)
    others = [] if addend is None else [(value_of(addend, symbol_table), addend.tensor_meta.dtype)]
    return epilogue.emit(sums, terms, others)


@lowering("IntegerConvolutionOp")
def convolve(node: Op, symbol_table: SymbolTable) -> Any:
    """Lowers a convolution; `b_scales` and `b_zeros` have an element for each output channel. Padding means 0."""
    x, weight, bias, stride, padding, dilation, groups = node.args[:7]
    size = weight.tensor_meta.shape[2:]
    window = SlidingWindow(size, *(per_dim(numbers, len(size)) for numbers in (stride, padding, dilation)))
    kernel_dtype = weight.tensor_meta.dtype
    setup = ConvolutionSetup(window, groups, x.tensor_meta.dtype, kernel_dtype, sum_dtype=_INT32)
    epilogue = _Epilogue(node, 7, symbol_table, [1] * len(size))
    shape, kernel = node.tensor_meta.shape, value_of(weight, symbol_table)
    padded = pad_for_window(value_of(x, symbol_table), window, shape[2:], epilogue.a_zero, setup.dtype)
    sums = convolve_padded(padded, kernel, setup, shape)
    x_sums = (_window_sums(padded, setup, shape), _INT32) if epilogue.b_zero != 0 else None
    weight_sums = None
    if epilogue.a_zero:
        summed = _sum(kernel, weight.tensor_meta.dtype, list(range(1, 2 + len(size))))
        weight_sums = (st.reshape(summed, [shape[1], *[1] * len(size)], _INT32), _INT32)
    terms = epilogue.corrections(x_sums, weight_sums, prod(weight.tensor_meta.shape[1:]))
    others: list[TypedTensor] = []
    if bias is not None:
        per_channel = st.reshape(value_of(bias, symbol_table), [shape[1], *[1] * len(size)], bias.tensor_meta.dtype)
        others.append((per_channel, bias.tensor_meta.dtype))
    return epilogue.emit(sums, terms, others)


def _sum(value: Any, dtype: TensorDType, axes: list[int]) -> Any:
    """Returns the sums of integers over `axes`, which remain as dims of size 1, in 32 bits."""
    return st.reduce(
        [(value, dtype)], st.shape_of(value), axes, 0, _INT32, lambda x, total: total + cast(x, _INT32), keep=True
    )


def _window_sums(padded: Any, setup: ConvolutionSetup, shape: Any) -> Any:
    """Returns the sums of the integers that each output reads: a convolution with ones, with one channel per group.

    The result has the shape of the convolution; all output channels of a group read the same integers.
    """
    n, channels, *space = st.shape_of(padded)
    grouped = st.reshape(padded, [n, setup.groups, channels // setup.groups, *space], setup.dtype)
    by_group = st.reshape(_sum(grouped, setup.dtype, [2]), [n, setup.groups, *space], _INT32)
    ones = st.filled(1, [setup.groups, 1, *setup.window.size], _INT32)
    sums = convolve_padded(
        by_group, ones, ConvolutionSetup(setup.window, setup.groups, _INT32), [n, setup.groups, *shape[2:]]
    )
    if setup.groups == 1:
        return sums
    size = [n, setup.groups, shape[1] // setup.groups, *shape[2:]]
    spread = st.broadcast(st.reshape(sums, [n, setup.groups, 1, *shape[2:]], _INT32), size, _INT32)
    return st.reshape(spread, shape, _INT32)


class _Epilogue:
    """Applies the scales and zero points of a node, its arguments from `first` on, to sums of products.

    `b_scale` and `b_zero` are numbers, or tensors [channels, *trailing]; `trailing` has a 1 for each dim of the result
    after the channels.
    """

    def __init__(self, node: Op, first: int, symbol_table: SymbolTable, trailing: list[int]) -> None:
        self.a_scale, self.a_zero, b_scale, b_zero, scales, zeros = node.args[first : first + 6]
        self._shape = node.tensor_meta.shape
        self.b_scale = b_scale if scales is None else self._per_channel(scales, symbol_table, trailing)
        self.b_zero = b_zero if zeros is None else self._per_channel(zeros, symbol_table, trailing)

    @staticmethod
    def _per_channel(op: Op, symbol_table: SymbolTable, trailing: list[int]) -> TypedTensor:
        """Returns a tensor of scales or zero points [channels, *trailing]."""
        dtype = op.tensor_meta.dtype
        return st.reshape(value_of(op, symbol_table), [*op.tensor_meta.shape, *trailing], dtype), dtype

    def corrections(self, a_sums: TypedTensor | None, b_sums: TypedTensor | None, count: int) -> list[Any]:
        """Returns tensors of 32 bits that are to be subtracted from sums of `count` products.

        `a_sums` and `b_sums` are the sums of the integers; they are only needed if the other operand's zero point is
        not 0.
        """
        terms = []
        if b_sums is not None:
            terms.append(self._times(b_sums[0], self.a_zero))
        if a_sums is None:
            return terms
        # This term is w (sum of a - count z), with the zero points z of `a` and w of `b`.
        excess, zeros = count * self.a_zero, self.b_zero
        if not isinstance(zeros, tuple):
            return [*terms, self._times(a_sums[0], zeros, excess)]

        def multiply_zeros(total: Scalar, zero: Scalar) -> Scalar:
            return (total - excess) * cast(zero, _INT32)

        return [*terms, st.pointwise([a_sums, zeros], self._shape, _INT32, multiply_zeros)]

    @staticmethod
    def _times(sums: Any, zero: int, excess: int = 0) -> Any:
        """Returns `(sums - excess) * zero`, in 32 bits."""
        return st.pointwise([(sums, _INT32)], st.shape_of(sums), _INT32, lambda total: (total - excess) * zero)

    def emit(self, sums: Any, terms: list[Any], others: list[TypedTensor]) -> Any:
        """Returns `(sums - terms) * (a_scale * b_scale) + others` in f32; rounds the product of both scales to f32."""
        operands: list[TypedTensor] = [(sums, _INT32), *((term, _INT32) for term in terms)]
        if isinstance(self.b_scale, tuple):
            scales, dtype = self.b_scale
            operands.append(
                (st.pointwise([(scales, dtype)], st.shape_of(scales), _F32, lambda x: x * self.a_scale), _F32)
            )

        def body(total: Scalar, *elements: Scalar) -> Scalar:
            remaining = list(elements)
            for _ in terms:
                total = total - remaining.pop(0)
            value = cast(total, _F32)
            scale = remaining.pop(0) if isinstance(self.b_scale, tuple) else value.like(self.b_scale) * self.a_scale
            value = value * scale
            for other in remaining:
                value = value + cast(other, _F32)
            return value

        return st.pointwise([*operands, *others], self._shape, _F32, body)
