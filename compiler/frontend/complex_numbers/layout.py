"""Rules for complex data movement: views, copies, factories and writes apply to the real and the imaginary part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import getitem
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils._pytree import tree_map

from buddy.compiler.frontend.complex_numbers.pair import RULES, ComplexPair, pair_of, part_type, rule, to_pair_like

if TYPE_CHECKING:
    from buddy.compiler.frontend.complex_numbers.pair import Operand, Rule


aten, prims = torch.ops.aten, torch.ops.prims

_DATA_MOVEMENT_OPS = (
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten._reshape_alias.default,
    aten.permute.default, aten.t.default, aten.transpose.int, aten.expand.default, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default, aten.slice.Tensor, aten.select.int, aten.clone.default,
    aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default, aten.positive.default, aten.repeat.default,
    aten.diagonal.default, aten.unfold.default, aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int,
    aten.flip.default, aten.roll.default, aten.index.Tensor, aten.index_select.default, aten.gather.default,
    aten.tril.default, aten.triu.default, aten._unsafe_index.Tensor,
    aten.slice_backward.default, aten.select_backward.default, aten.embedding.default,
    aten.im2col.default, aten.col2im.default, aten.reflection_pad1d.default,
    aten.reflection_pad2d.default, aten.reflection_pad3d.default, aten.replication_pad1d.default,
    aten.replication_pad2d.default, aten.replication_pad3d.default, aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default, aten.replication_pad3d_backward.default, aten.repeat_interleave.self_int,
    aten.take.default, aten.diag_embed.default, aten.unfold_backward.default,
)  # fmt: skip


_T = TypeVar("_T")


def part_by_part(op: Callable[..., Any]) -> Rule:
    """Returns the rule of an op, with any number of operands and results, that treats both parts alike."""

    def apply(out: Any, *args: object, **kwargs: object) -> object:
        re, im = (op(*_select_part(args, name), **_select_part(kwargs, name)) for name in ("re", "im"))
        return list(map(ComplexPair, re, im)) if isinstance(re, (list, tuple)) else ComplexPair(re, im)

    return apply


def _select_part(nested: _T, name: str) -> _T:
    """Replaces each pair in nested arguments by its part `name` ("re" or "im"), and complex dtypes by real ones."""

    def take(value: Operand) -> object:
        value = getattr(value, name) if isinstance(value, ComplexPair) else value
        return part_type(value) if isinstance(value, torch.dtype) else value

    return tree_map(take, nested)


for _op in _DATA_MOVEMENT_OPS:
    RULES[_op] = part_by_part(_op)


def converted_write(op: Callable[..., object], position: int) -> Rule:
    """Returns the rule of an op that writes a tensor into another one, converted to the type of the result.

    `position` is the index of the tensor to write among the op's arguments; the tensor may be real or complex.
    """

    def apply(out: torch.Tensor, *args: object, **kwargs: object) -> object:
        before, source, after = args[:position], args[position], args[position + 1 :]
        if not out.dtype.is_complex:
            return op(*before, _to_type(source, out.dtype), *after, **kwargs)
        pair = pair_of(source, part_type(out.dtype))
        if not isinstance(pair.im, torch.Tensor):
            pair = ComplexPair(pair.re, torch.zeros_like(pair.re))
        return part_by_part(op)(out, *before, pair, *after, **kwargs)

    return apply


def _as_strided_scatter(x: torch.Tensor, *rest: object) -> torch.Tensor:
    """Writes to a dense copy of a part; strides count complex numbers."""
    return aten.as_strided_scatter(_dense_copy(x), *rest)


# Ops that write a tensor, with the index of this argument.
for _op, _position in {
    aten.slice_scatter.default: 1, aten.select_scatter.default: 1, aten.diagonal_scatter.default: 1,
    aten.index_put.default: 2, aten._unsafe_index_put.default: 2, aten.put.default: 2, aten.masked_scatter.default: 2,
    aten.index_fill.int_Tensor: 3, aten.index_add.default: 3, aten.index_copy.default: 3, aten.scatter.src: 3,
    aten.scatter_add.default: 3,
}.items():  # fmt: skip
    RULES[_op] = converted_write(_op, _position)
RULES[aten.as_strided_scatter.default] = converted_write(_as_strided_scatter, 1)


def _to_type(source: Operand, dtype: torch.dtype) -> torch.Tensor:
    """Converts a real or complex tensor to a real type.

    Returns the real part, or for bool the mask of the numbers that are not 0.
    """
    pair = pair_of(source)
    return (pair.re != 0) | (pair.im != 0) if dtype == torch.bool else pair.re.to(dtype)


# Rules of ops with several results return a list of pairs, from which `getitem` selects one.
@rule(getitem)
def select_result(out: torch.Tensor, values: Sequence[object] | None, index: int) -> object:
    return NotImplemented if values is None else values[index]


@rule(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(
    out: torch.Tensor, x: ComplexPair, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> object:
    """Copies each part to dense memory, and applies the strides to it; strides count complex numbers.

    The conversion has rejected operands that are not dense and row-major.
    """
    return x.map(lambda part: _dense_copy(part).as_strided(size, stride, offset))


def _dense_copy(part: torch.Tensor) -> torch.Tensor:
    """Returns a row-major copy: a part may be every other number of a tensor."""
    return part.clone(memory_format=torch.contiguous_format)


@rule(aten.cat.default)
def cat(out: torch.Tensor, tensors: list[ComplexPair | torch.Tensor], dim: int = 0) -> ComplexPair:
    pairs = [to_pair_like(_shaped_like(t), pair_of(t, part_type(out.dtype))) for t in tensors]
    return ComplexPair(torch.cat([p.re for p in pairs], dim), torch.cat([p.im for p in pairs], dim))


def _shaped_like(value: ComplexPair | torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the shape of `value`."""
    return value.re if isinstance(value, ComplexPair) else value


@rule(aten.constant_pad_nd.default)
def constant_pad_nd(out: torch.Tensor, x: ComplexPair, pad: Sequence[int], value: complex = 0) -> ComplexPair:
    number = complex(value)
    return ComplexPair(aten.constant_pad_nd(x.re, pad, number.real), aten.constant_pad_nd(x.im, pad, number.imag))


@rule(aten._to_copy.default, prims.convert_element_type.default)
def cast(out: torch.Tensor, x: Operand, *_: object, **__: object) -> object:
    """Casts from real or complex numbers to a complex type, to a real type (the real part), or to bool (x != 0)."""
    return to_pair_like(out, x) if out.dtype.is_complex else _to_type(x, out.dtype)


@rule(aten.copy.default)
def copy(out: torch.Tensor, target: Operand, source: Operand, non_blocking: bool = False) -> object:
    return to_pair_like(out, source) if out.dtype.is_complex else _to_type(source, out.dtype).expand(out.shape)


@rule(
    aten.full.default, aten.scalar_tensor.default, aten.full_like.default, aten.fill.Scalar, aten.new_full.default,
)  # fmt: skip
def full(out: torch.Tensor, *args: object, **kwargs: object) -> object:
    number = next((value for value in reversed(args) if isinstance(value, (int, float, complex))), None)
    if number is None:
        return NotImplemented  # the value is a tensor, or a symbolic number that is known only at the call
    return (
        to_pair_like(out, complex(number)) if out.dtype.is_complex else torch.full(out.shape, number, dtype=out.dtype)
    )


@rule(aten.fill.Tensor)
def fill(out: torch.Tensor, x: Operand, value: Operand) -> object:
    return to_pair_like(out, pair_of(value)) if out.dtype.is_complex else NotImplemented


@rule(
    aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default,
    aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default,
    aten.new_empty_strided.default, aten.empty_permuted.default,
)  # fmt: skip
def zeros(out: torch.Tensor, *args: object, **kwargs: object) -> object:
    """Returns zeros, also for `empty`: uninitialized memory may be zeros."""
    return to_pair_like(out, 0.0) if out.dtype.is_complex else torch.zeros(out.shape, dtype=out.dtype)


@rule(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(out: torch.Tensor, *args: object, **kwargs: object) -> object:
    return to_pair_like(out, 1.0) if out.dtype.is_complex else torch.ones(out.shape, dtype=out.dtype)
