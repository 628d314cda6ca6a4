"""The graph pass that computes products of dequantised integers on the integers, and the patterns that it matches.

A program that another tool has quantised computes `quantise(f(dequantise(a), dequantise(b)))` in floats. PyTorch's
decompositions write the two as element-wise ops: `dequantise(q)` is `(q - zero) * scale`, and `quantise(x)` is
`clamp(round(x / scale) + zero)`, converted to 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import (
    GetItemOp,
    Op,
    PlaceholderOp,
    argument,
    is_only_result_read,
    new_op,
    permutation_of,
)
from buddy.compiler.graph.operations import (
    AddMMOp,
    AddOp,
    AnyOp,
    AssertOp,
    BatchMatmulOp,
    CatOp,
    ClampOp,
    CloneOp,
    Conv2dOp,
    ConvertElementTypeOp,
    IntegerConvolutionOp,
    IntegerProductOp,
    LogicalNotOp,
    MatmulOp,
    MaxPool2dOp,
    MaxPool2dWithIndicesOp,
    MulOp,
    PermuteOp,
    ReluOp,
    ReshapeOp,
    RoundOp,
    SqueezeOp,
    SubOp,
    TOp,
    TransposeOp,
    UnsqueezeOp,
    ViewOp,
)
from buddy.compiler.graph.sizes import is_dynamic
from buddy.compiler.graph.transform.rewriting import Note, fresh_name, replace_node
from buddy.compiler.graph.types import TensorDType, TensorMeta

# The least and the largest integer of each type that products multiply.
_RANGES = {TensorDType.Int8: (-128, 127), TensorDType.UInt8: (0, 255)}
# The largest sum that 32 bits hold.
_MAX_SUM = 2**31 - 1
_ASSERT_TARGET = "_assert_async.msg"
_ZEROS_CHANGED_MESSAGE = (
    "zero points of quantised weights were 0 when the program was captured, and have changed; call "
    "torch.compiler.reset() and compile it again"
)
# Neither products of an 8-bit integer with this scale nor with its inverse overflow or underflow in f32.
_MIN_SCALE = 1e-30
_TRANSPOSES = (PermuteOp, TOp, TransposeOp)
_VIEWS = (ViewOp, ReshapeOp, UnsqueezeOp, SqueezeOp, CloneOp)


class _MismatchError(Exception):
    """The nodes are not a product of dequantised integers that can be rewritten; the text says why."""


def integer_products(graph: Graph) -> list[Note]:
    """Multiply dequantised 8-bit integers as integers; pool, concatenate and view integers instead of dequantised ones.

    Sums are exact, in 32 bits, and are multiplied by the scales in f32. Zero points are taken into account exactly.
    """
    rewriting = _Rewriting(graph)
    notes = [note for node in graph.operations for note in rewriting.rewrite_quantisation(node)]
    graph.drop_unused()
    notes += [note for node in graph.operations for note in rewriting.rewrite_product(node)]
    rewriting.assert_zeros()
    graph.drop_unused()
    return notes


# ---- patterns --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """An op that moves, compares or concatenates dequantised numbers, and may do the same to their integers."""

    node: Op
    sources: tuple[_Dequantised, ...]


@dataclass(frozen=True)
class _Dequantised:
    """A tensor whose elements are `(q - zero) * scale`, and how its integers `q` are computed.

    `scale` and `zero` are numbers, or 1-D tensors with an element for each index along dim `axis`. `source` is the node
    of the integers, or the op on dequantised tensors that has to be repeated on the integers.
    """

    source: Op | _Step
    dtype: TensorDType
    scale: float | Op
    zero: int | Op
    axis: int | None = None

    @property
    def is_per_tensor(self) -> bool:
        return self.axis is None

    def has_parameters_of(self, other: _Dequantised) -> bool:
        """True if both have the same type, and the same scale and zero point for the whole tensor."""
        return (self.dtype, self.scale, self.zero) == (other.dtype, other.scale, other.zero) and self.is_per_tensor


@dataclass(frozen=True)
class _Quantised:
    """`round(x * inverse) + zero`, clamped to the range of the integer type `dtype`; `chain` has its nodes in order."""

    x: Op
    dtype: TensorDType
    inverse: float
    zero: int
    chain: tuple[Op, ...]


def _match_quantised(node: Op) -> _Quantised | None:
    """Returns the quantisation that `node` computes; `None` unless it is per tensor, to the whole range of its type."""
    dtype = node.tensor_meta.dtype if len(node.metas) == 1 and node.metas[0] is not None else None
    if dtype not in _RANGES or not isinstance(node, ConvertElementTypeOp):
        return None
    clamp = node.args[0]
    if not isinstance(clamp, ClampOp) or tuple(argument(clamp, i, "") for i in (1, 2)) != _RANGES[dtype]:
        return None
    add = clamp.args[0]
    zero = add.args[1] if isinstance(add, AddOp) and not add.kwargs else None
    rounding = add.args[0] if isinstance(zero, int) else None
    if not isinstance(rounding, RoundOp) or len(rounding.args) != 1 or not isinstance(rounding.args[0], MulOp):
        return None
    x, inverse = rounding.args[0].args[:2]
    if not isinstance(inverse, float) or not isinstance(x, Op) or x.tensor_meta.dtype is not TensorDType.Float32:
        return None
    assert isinstance(zero, int)
    return _Quantised(x, dtype, inverse, zero, (rounding.args[0], rounding, add, clamp, node))


def _match_dequantised(node: Any) -> _Dequantised | None:
    """Returns the integers, the scale and the zero point of `node`; `None` if it is not known to have any.

    Raises `_MismatchError` for integers with unsupported parameters.
    """
    if not isinstance(node, Op) or node.multiple or not node.metas or node.metas[0] is None:
        return None
    if isinstance(node, MulOp) and node.tensor_meta.dtype is TensorDType.Float32:
        return _match_scaled_difference(node)
    if isinstance(node, ConvertElementTypeOp):
        source = _match_dequantised(node.args[0])
        return source if source is not None and node.tensor_meta.dtype is TensorDType.Float32 else None
    if isinstance(node, GetItemOp):
        pool = node.args[0]
        is_pool = isinstance(pool, MaxPool2dWithIndicesOp) and node.args[1] == 0 and is_only_result_read(pool, 0)
        return _match_step(pool, pool.args[0]) if is_pool else None
    if isinstance(node, (ReluOp, MaxPool2dOp, *_VIEWS)):
        return _match_step(node, node.args[0])
    if isinstance(node, _TRANSPOSES):
        operand = _match_dequantised(node.args[0])
        if operand is None:
            return None
        axis = None if operand.axis is None else permutation_of(node).index(operand.axis)
        return replace(operand, source=_Step(node, (operand,)), axis=axis)
    if isinstance(node, CatOp):
        parts = [_match_dequantised(part) for part in node.args[0]]
        first = parts[0]
        if first is None or not all(part is not None and part.has_parameters_of(first) for part in parts):
            return None
        return replace(first, source=_Step(node, tuple(part for part in parts if part is not None)))
    return None


def _match_step(node: Op, operand: Op) -> _Dequantised | None:
    """Returns the integers of `node`, an op that can be repeated on the integers of `operand`.

    Returns `None` if `operand` has no integers, or several scales or zero points.
    """
    source = _match_dequantised(operand)
    return replace(source, source=_Step(node, (source,))) if source is not None and source.is_per_tensor else None


def _match_scaled_difference(node: Op) -> _Dequantised | None:
    """Returns the operands of `(q - zero) * scale`, which `node` computes; `None` if it computes something else."""
    integers, scale = node.args[:2]
    zero: Any = 0
    if isinstance(integers, SubOp) and not integers.kwargs:
        integers, zero = integers.args[:2]
    while isinstance(integers, ConvertElementTypeOp) and integers.tensor_meta.dtype not in _RANGES:
        integers = integers.args[0]
    if not isinstance(integers, Op) or integers.multiple or integers.tensor_meta.dtype not in _RANGES:
        return None
    shape, dtype = integers.tensor_meta.shape, integers.tensor_meta.dtype
    if shape != node.tensor_meta.shape:
        return None
    if isinstance(zero, Op) and zero.tensor_meta.dtype.is_float:
        raise _MismatchError(f"the zero points of {integers} are floats")
    if isinstance(zero, float):
        raise _MismatchError(f"the zero point of {integers} is the float {zero}")
    axes = {axis for axis in (_find_axis(scale, shape), _find_axis(zero, shape)) if axis is not None}
    if len(axes) > 1:
        raise _MismatchError(f"the scales and the zero points of {integers} are along different dims")
    if isinstance(scale, int):
        scale = float(scale)
    return _Dequantised(integers, dtype, scale, zero, next(iter(axes), None))


def _find_axis(parameter: Any, shape: Sequence[Any]) -> int | None:
    """Returns the dim of a tensor of `shape` along which its scale or zero point has one element per index.

    Returns `None` for a number. Raises `_MismatchError` for floats that are not f32, and for a tensor with elements
    along several dims of `shape`.
    """
    if not isinstance(parameter, Op):
        return None
    meta = parameter.tensor_meta
    if meta.dtype.is_float and meta.dtype is not TensorDType.Float32:
        raise _MismatchError(f"the scales {parameter} are of type {meta.dtype.value}")
    offset = len(shape) - len(meta.shape)
    axes = [offset + i for i, size in enumerate(meta.shape) if size != 1]
    if not axes:
        # The only element belongs to any dim of size 1, if there is one.
        axes = [i for i, size in enumerate(shape) if size == 1][:1]
        if axes:
            return axes[0]
    if len(axes) != 1 or meta.shape[axes[0] - offset] != shape[axes[0]] or is_dynamic(meta.shape):
        raise _MismatchError(f"{parameter} has shape {list(meta.shape)}: not one element for each index of one dim")
    return axes[0]


# ---- rewriting -------------------------------------------------------------------------------------------------------


@dataclass
class _Rewriting:
    """Rewrites one graph.

    `integers` has the inserted nodes on integers, by the op that they repeat and their operands. `zeros` are the zero
    points of weights that were all 0 when the graph was captured, on which products rely.
    """

    graph: Graph
    integers: dict[tuple[Op, ...], Op] = field(default_factory=dict)
    zeros: dict[PlaceholderOp, None] = field(default_factory=dict)

    def rewrite_quantisation(self, node: Op) -> list[Note]:
        """Replaces a node that quantises dequantised integers, or the maxima of integer products."""
        rounded = _match_quantised(node)
        if rounded is None or not node._children:
            return []
        try:
            source = _match_dequantised(rounded.x)
        except _MismatchError:
            source = None
        if source is not None and _is_inverse(source, rounded):
            integers = self._integers(source, node)
            self.graph.replace_uses(node, integers)
            return [Note(node.stable, f"is {integers}: its integers are dequantised and quantised with one scale")]
        pool = _pool_of_product(rounded.x)
        return [] if pool is None else [self._quantise_before(pool, rounded)]

    def _quantise_before(self, pool: Op, rounded: _Quantised) -> Note:
        """Quantises before `pool` instead of after it: rounding keeps the order of numbers, so maxima stay the same."""
        value = pool.args[0]
        for node in rounded.chain:
            value = self._repeat(node, [value, *node.args[1:]], value.tensor_meta.shape, node.tensor_meta.dtype, pool)
        node = rounded.chain[-1]
        replace_node(self.graph, node, MaxPool2dOp, "max_pool2d.default", [value, *pool.args[1:]])
        return Note(node.stable, f"the maxima of integers: {pool} pools what is quantised already")

    def rewrite_product(self, node: Op) -> list[Note]:
        """Replaces a product of dequantised integers; a product that has only one such operand is left."""
        rewrite = _PRODUCTS.get(type(node))
        if rewrite is None or node.tensor_meta.dtype is not TensorDType.Float32:
            return []
        try:
            text = rewrite(self, node)
        except _MismatchError as reason:
            text = f"left: {reason}"
        return [Note(node.stable, text)] if text else []

    def replace_convolution(self, node: Op) -> str:
        """Replaces a convolution of dequantised integers. Returns what was done, "" for a convolution of floats."""
        x, weight, bias, *window = node.args[:9]
        operands = self._operands(x, weight)
        if operands is None:
            return ""
        is_transposed, groups = window[3], window[5]
        if is_transposed:
            raise _MismatchError("a transposed convolution of integers is not supported")
        if is_dynamic(x.tensor_meta.shape):
            raise _MismatchError("its shape is dynamic")
        _check_per_tensor(operands[0], x)
        if operands[1].axis not in (None, 0):
            raise _MismatchError(f"the scales of {weight} are not per output channel")
        _check_sums(operands, math.prod(weight.tensor_meta.shape[1:]))
        arguments = [bias, *window[:3], groups]
        return self._replace(node, IntegerConvolutionOp, "buddy.integer_convolution.default", operands, arguments)

    def replace_product(self, node: Op) -> str:
        """Replaces a product of matrices of dequantised integers, as `replace_convolution` does."""
        addend, (a, b) = (node.args[0], node.args[1:3]) if isinstance(node, AddMMOp) else (None, node.args[:2])
        operands = self._operands(a, b)
        if operands is None:
            return ""
        if any(node.kwargs.get(key, 1) != 1 for key in ("alpha", "beta")):
            raise _MismatchError("it scales its operands")
        _check_per_tensor(operands[0], a)
        if operands[1].axis not in (None, len(b.tensor_meta.shape) - 1):
            raise _MismatchError(f"the scales of {b} are not per column")
        _check_sums(operands, a.tensor_meta.shape[-1])
        return self._replace(node, IntegerProductOp, "buddy.integer_product.default", operands, [addend])

    def _operands(self, a: Op, b: Op) -> tuple[_Dequantised, _Dequantised] | None:
        """Returns the integers of both operands; `None` if neither has any. Raises `_MismatchError` if only one has."""
        left, right = _match_dequantised(a), _match_dequantised(b)
        if left is None and right is None:
            return None
        if left is None or right is None:
            raise _MismatchError(f"{a if left is None else b} is not a dequantised tensor of 8-bit integers")
        return left, right

    def _replace(
        self, node: Op, cls: type[Op], target: str, operands: tuple[_Dequantised, _Dequantised], arguments: list[Any]
    ) -> str:
        """Replaces `node` by a product of integers, and returns what was done.

        The new node's arguments are its operands, `arguments`, and the scales and zero points.
        """
        a, b = operands
        values = [self._integers(operand, node) for operand in operands]
        b_scale, b_scales = (1.0, self._vector(b.scale, node)) if isinstance(b.scale, Op) else (b.scale, None)
        b_zero, b_zeros = (0, self._vector(b.zero, node)) if isinstance(b.zero, Op) else (b.zero, None)
        if isinstance(b_zeros, PlaceholderOp) and b_zeros.is_zero:
            # Products then need no sums of `a`.
            self.zeros[b_zeros] = None
            b_zeros = None
        parameters = [a.scale, a.zero, b_scale, b_zero, b_scales, b_zeros]
        replace_node(self.graph, node, cls, target, [*values, *arguments, *parameters])
        types = " times ".join(operand.dtype.value for operand in operands)
        scales = "per tensor" if b.is_per_tensor else "per channel"
        return f"multiplies integers, {types}, with weights scaled {scales}; sums are exact, in 32 bits"

    def _vector(self, parameter: Op, before: Op) -> Op:
        """Returns the scales or zero points as a 1-D tensor."""
        sizes, dtype = parameter.tensor_meta.shape, parameter.tensor_meta.dtype
        if len(sizes) == 1:
            return parameter
        if isinstance(parameter, ViewOp) and len(parameter.args[0].tensor_meta.shape) == 1:
            vector: Op = parameter.args[0]
            return vector
        shape = [math.prod(sizes)]
        return self._insert(ViewOp, parameter, "view.default", [parameter, shape], shape, dtype, before)

    def assert_zeros(self) -> None:
        """Inserts assertions that the zero points on which products rely are still 0."""
        for dtype in {op.tensor_meta.dtype: None for op in self.zeros}:
            zeros = [op for op in self.zeros if op.tensor_meta.dtype is dtype]
            before = self.graph.operations[0]
            count = sum(op.tensor_meta.shape[0] for op in zeros)
            whole, flag = TensorMeta((count,), dtype), TensorMeta((), TensorDType.Bool)
            joined = new_op(CatOp, self._name("zero_points"), "cat.default", [zeros, 0], [whole])
            any_set = new_op(AnyOp, self._name("any_zero_point"), "any.default", [joined], [flag])
            are_zero = new_op(LogicalNotOp, self._name("no_zero_point"), "logical_not.default", [any_set], [flag])
            condition_and_message = [are_zero, _ZEROS_CHANGED_MESSAGE]
            assertion = new_op(AssertOp, self._name("assert_zeros"), _ASSERT_TARGET, condition_and_message, [None])
            self.graph.insert_before(before, joined, any_set, are_zero, assertion)

    def _integers(self, tensor: _Dequantised, before: Op) -> Op:
        """Returns the node of the integers of `tensor`; new nodes are inserted before `before`."""
        if isinstance(tensor.source, Op):
            return _skip_identities(tensor.source)
        node, sources = tensor.source.node, tensor.source.sources
        operands = [self._integers(source, before) for source in sources]
        key = (node, *operands)
        if key not in self.integers or self.integers[key] not in self.graph.body:
            self.integers[key] = self._repeat_on_integers(node, operands, tensor, before)
        return self.integers[key]

    def _repeat_on_integers(self, node: Op, operands: list[Op], tensor: _Dequantised, before: Op) -> Op:
        """Inserts an op before node `before` that does to the integers `operands` what `node` does to the numbers.

        Returns the inserted op, or an operand if `node` does not change integers.
        """
        shape, dtype = node.tensor_meta.shape, tensor.dtype
        if isinstance(node, ReluOp):
            # The zero point stands for 0.
            if tensor.zero == _RANGES[dtype][0]:
                return operands[0]
            return self._insert(ClampOp, node, "clamp.default", [operands[0], tensor.zero], shape, dtype, before)
        if isinstance(node, (MaxPool2dOp, MaxPool2dWithIndicesOp)):
            arguments = [operands[0], *node.args[1:]]
            return self._insert(MaxPool2dOp, node, "max_pool2d.default", arguments, shape, dtype, before)
        if _is_identity(node) or isinstance(node, CloneOp):
            return operands[0]
        first_argument = operands if isinstance(node, CatOp) else operands[0]
        return self._repeat(node, [first_argument, *node.args[1:]], shape, dtype, before)

    def _repeat(self, node: Op, arguments: list[Any], shape: Sequence[Any], dtype: TensorDType, before: Op) -> Op:
        """Inserts a copy of `node` with other arguments before node `before`."""
        new = self._insert(type(node), node, node.target, arguments, shape, dtype, before)
        new._keyword_arguments = dict(node.kwargs)
        return new

    def _insert(
        self, cls: type[Op], node: Op, target: str, arguments: list[Any], shape: Sequence[Any], dtype: TensorDType,
        before: Op,
    ) -> Op:  # fmt: skip
        """Inserts a node of class `cls` before node `before`, at the location of `node`."""
        new = new_op(cls, self._name(f"{node.name}_integers"), target, arguments, [TensorMeta(tuple(shape), dtype)])
        new.schema = node.schema if target == node.target else None
        new.module, new.location = node.module, node.location
        self.graph.insert_before(before, new)
        return new

    def _name(self, base: str) -> str:
        return fresh_name(self.graph, base)


# The method of `_Rewriting` that rewrites a product of each op class.
_PRODUCTS: dict[type[Op], Callable[[_Rewriting, Op], str]] = {
    Conv2dOp: _Rewriting.replace_convolution,
    MatmulOp: _Rewriting.replace_product,
    AddMMOp: _Rewriting.replace_product,
    BatchMatmulOp: _Rewriting.replace_product,
}


def _is_identity(node: Op) -> bool:
    """True if `node` is a transpose that moves no dim."""
    return isinstance(node, _TRANSPOSES) and permutation_of(node) == list(range(len(node.tensor_meta.shape)))


def _skip_identities(integers: Op) -> Op:
    """Returns the node whose result `integers` is, without the transposes after it that move no dim.

    A weight that is quantised per channel along its first dim has one: PyTorch's decomposition moves the channels to
    the front first.
    """
    while _is_identity(integers):
        integers = integers.args[0]
    return integers


def _is_inverse(source: _Dequantised, rounded: _Quantised) -> bool:
    """True if `rounded` quantises to the integers from which `source` was dequantised.

    The roundings of f32 change an integer of 8 bits by less than a half, so the integers are the same.
    """
    if not isinstance(source.scale, float) or not _MIN_SCALE <= source.scale <= 1 / _MIN_SCALE:
        return False
    # Decompositions compute the inverse of the scale in double precision, too.
    return (source.dtype, source.zero, 1.0 / source.scale) == (rounded.dtype, rounded.zero, rounded.inverse)


def _pool_of_product(x: Op) -> Op | None:
    """Returns the max pool with the result `x` if it pools sums of products, which are never NaN; else `None`."""
    pool = x.args[0] if isinstance(x, GetItemOp) and x.args[1] == 0 else x
    is_pool = isinstance(pool, (MaxPool2dOp, MaxPool2dWithIndicesOp)) and len(x._children) == 1
    if not is_pool or (pool is not x and not is_only_result_read(pool, 0)):
        return None
    source = pool.args[0]
    source = source.args[0] if isinstance(source, ReluOp) else source
    if not isinstance(source, Conv2dOp) or len(pool.args[0]._children) != 1:
        return None
    try:
        is_product = all(_match_dequantised(operand) is not None for operand in source.args[:2])
    except _MismatchError:
        return None
    return pool if is_product else None


def _check_per_tensor(tensor: _Dequantised, node: Op) -> None:
    """Raises `_MismatchError` unless `tensor`, the operand `node`, has one scale and one zero point, both numbers."""
    if not tensor.is_per_tensor or isinstance(tensor.scale, Op) or isinstance(tensor.zero, Op):
        raise _MismatchError(f"{node} has no single scale and zero point that the graph contains as numbers")


def _check_sums(operands: Sequence[_Dequantised], terms: Any) -> None:
    """Raises `_MismatchError` if sums of `terms` products may not fit into 32 bits."""
    if not isinstance(terms, int):
        raise _MismatchError("the number of products that it adds is dynamic, and 32 bits may overflow")
    largest = terms * math.prod(_largest_magnitude(operand) for operand in operands)
    if largest > _MAX_SUM:
        raise _MismatchError(f"it adds {terms} products, whose sum may overflow 32 bits")


def _largest_magnitude(tensor: _Dequantised) -> int:
    """Returns the largest magnitude of an integer minus its zero point."""
    low, high = _RANGES[tensor.dtype]
    if isinstance(tensor.zero, Op):
        return high - low
    return max(high - tensor.zero, tensor.zero - low)
