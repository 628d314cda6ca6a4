"""Rounds the operands of products: to bfloat16, to pairs of bfloat16, or to 8- and 4-bit integers with scales.

Nodes that round the same operand share the op that rounds it, which has the attribute `ROUNDING`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.mlir.walk import argument_attributes, defining_op
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import cast_tensor

_F32, _BF16, _INT8 = TensorDType.Float32, TensorDType.BFloat16, TensorDType.Int8
# The largest 8-bit integer that is used: the range is symmetric.
INT8_LIMIT = 127
# The largest 4-bit integer that is used, for the same reason.
INT4_LIMIT = 7
# The letter of the dim that `bf16x3` adds to both operands, over which their products are added.
_PART = "p"
# The letter of the dim over groups; the letter of K then stands for the position in a group.
GROUP_LETTER = "G"


@dataclass(frozen=True)
class Operand:
    """A tensor with a letter for each of its dims, as in `structured.contract`."""

    value: Any
    letters: str


# The attribute of an op that rounds an operand: a text that names the kind of rounding and its dims.
ROUNDING = "buddy.rounding"
_RESHAPES = ("tensor.collapse_shape", "tensor.expand_shape")


def round_to_bfloat16(value: Any) -> Any:
    """Returns `value` rounded to bfloat16.

    Transposes and reshapes move from before the rounding to after it, where passes fold them into the product.
    """
    owner = defining_op(value)
    if owner is not None and owner.name == "linalg.transpose":
        return st.transpose(round_to_bfloat16(owner.operands[0]), transpose_permutation(owner), _BF16)
    if owner is not None and owner.name in _RESHAPES:
        return st.reshape(round_to_bfloat16(owner.operands[0]), st.shape_of(value), _BF16)
    existing = _existing_rounding(value, "bf16")
    if existing is not None:
        return existing.results[0]
    return _mark(cast_tensor(value, _F32, _BF16), "bf16")


def split_operand(operand: Operand, out_dims: str, side: str, low: int) -> Operand:
    """Returns `operand` with a new dim of three parts in bfloat16 before its first summed dim (not in `out_dims`).

    Part number `low` is the rounding error of the operand in bfloat16, the other two parts are the rounded operand.
    `side`, "left" or "right", is the side of the product; it distinguishes the two orders in the attribute `ROUNDING`.
    """
    owner = defining_op(operand.value)
    if owner is not None and owner.name == "linalg.transpose":
        return split_operand(_before_transpose(operand, owner), out_dims, side, low)
    value, letters = _shared_view(operand.value), operand.letters
    part_dim = next(i for i, letter in enumerate(letters) if letter not in out_dims)
    new_letters, key = letters[:part_dim] + _PART + letters[part_dim:], f"bf16x3 {side} at {part_dim}"
    existing = _existing_rounding(value, key)
    if existing is not None:
        return Operand(existing.results[0], new_letters)
    loops = list(range(len(new_letters)))

    def body(x: Any, _out: Any) -> list[Any]:
        number = Scalar(x, _F32)
        high = cast(number, _BF16)
        low_part = cast(number - cast(high, _F32), _BF16)
        is_low = arith.cmpi(arith.CmpIPredicate.eq, st.loop_index(part_dim), arith.constant(ir.IndexType.get(), low))
        return [arith.select(is_low, low_part.value, high.value)]

    shape = st.shape_of(value)
    target = st.empty([*shape[:part_dim], 3, *shape[part_dim:]], _BF16)
    dims = [loop for loop in loops if loop != part_dim]
    (parts,) = st.generic([value], [dims], [target], [loops], [st.PARALLEL] * len(loops), body)
    return Operand(_mark(parts, key), new_letters)


def quantise(operand: Operand, out_dims: str) -> tuple[Any, Operand]:
    """Returns `operand` as 8-bit integers over the same letters, and its scales, over those that are in `out_dims`."""
    owner = defining_op(operand.value)
    if owner is not None and owner.name == "linalg.transpose":
        permutation, source = transpose_permutation(owner), _before_transpose(operand, owner)
        integers, scale = quantise(source, out_dims)
        return st.transpose(integers, permutation, _INT8), scale
    value, letters = _shared_view(operand.value), operand.letters
    scale_dims = [i for i, letter in enumerate(letters) if letter in out_dims]
    summed_dims = [i for i in range(len(letters)) if i not in scale_dims]
    scale_letters = "".join(letters[i] for i in scale_dims)
    key = f"int8 over {','.join(map(str, summed_dims))}"
    existing = _existing_rounding(value, key)
    if existing is not None:  # the op that `_integers_of` emits, whose operands are the value and its scale
        return existing.results[0], Operand(existing.operands[1], scale_letters)
    scale = _scale_of(value, summed_dims, INT8_LIMIT)
    return _mark(_integers_of(value, scale, scale_dims, INT8_LIMIT), key), Operand(scale, scale_letters)


def quantise_groups(operand: Operand, summed: str, group_size: int) -> tuple[Operand, Operand]:
    """Returns `operand` as 4-bit integers in bytes, with a dim of groups before the dim `summed`, and their scales."""
    owner = defining_op(operand.value)
    if owner is not None and owner.name == "linalg.transpose":
        return quantise_groups(_before_transpose(operand, owner), summed, group_size)
    whole = Operand(_shared_view(operand.value), operand.letters)
    grouped = split_dim(whole, summed, group_size)
    value = _shared_view(grouped.value)
    summed_dim = grouped.letters.index(summed)
    scale_dims = [i for i in range(len(grouped.letters)) if i != summed_dim]
    scale_letters = grouped.letters.replace(summed, "")
    key = f"int4 over {summed_dim}"
    existing = _existing_rounding(value, key)
    if existing is not None:
        return Operand(existing.results[0], grouped.letters), Operand(existing.operands[1], scale_letters)
    scale = _scale_of(value, [summed_dim], INT4_LIMIT)
    integers = _mark(_integers_of(value, scale, scale_dims, INT4_LIMIT), key)
    return Operand(integers, grouped.letters), Operand(scale, scale_letters)


def split_dim(operand: Operand, letter: str, group_size: int) -> Operand:
    """Returns `operand` with a dim of groups before the dim `letter`, of which `group_size` elements remain."""
    dim, shape = operand.letters.index(letter), list(st.shape_of(operand.value))
    new_shape = [*shape[:dim], shape[dim] // group_size, group_size, *shape[dim + 1 :]]
    letters = operand.letters[:dim] + GROUP_LETTER + operand.letters[dim:]
    return Operand(st.reshape(operand.value, new_shape, _F32), letters)


def _integers_of(value: Any, scale: Any, scale_dims: list[int], limit: int) -> Any:
    """Returns `value / scale`, rounded to integers of at most `limit`, as bytes.

    `scale_dims` are the dims of `value` along which the scale varies.
    """
    loops = list(range(len(st.shape_of(value))))

    def body(x: Any, step: Any, _out: Any) -> list[Any]:
        return [_round_to_integer(Scalar(x, _F32), Scalar(step, _F32), limit).value]

    target = st.empty(st.shape_of(value), _INT8)
    return st.generic([value, scale], [loops, scale_dims], [target], [loops], [st.PARALLEL] * len(loops), body)[0]


def _scale_of(value: Any, axes: list[int], limit: int) -> Any:
    """Returns the largest magnitude over the dims `axes`, divided by `limit`; NaN if an element is NaN."""
    largest = st.reduce(
        [(value, _F32)], st.shape_of(value), axes, 0.0, _F32,
        lambda x, greatest: s.maximum(greatest, s.absolute(x)),
    )  # fmt: skip
    return st.pointwise([(largest, _F32)], st.shape_of(largest), _F32, lambda x: x / float(limit))


def _round_to_integer(x: Scalar, scale: Scalar, limit: int) -> Scalar:
    """Returns `x / scale` rounded to an integer of at most `limit`, ties to even; 0 for a quotient of 0/0 or NaN."""
    steps = s.roundeven(x / scale)
    clamped = s.fmin(s.fmax(steps, -float(limit)), float(limit))
    return cast(s.select(steps.compare("eq", steps), clamped, 0.0), _INT8)


def _before_transpose(operand: Operand, transpose: Any) -> Operand:
    """Returns the operand of `transpose`, the op that computes `operand`, with its letters in the order of its dims."""
    letters = [""] * len(operand.letters)
    for dim, source_dim in enumerate(transpose_permutation(transpose)):
        letters[source_dim] = operand.letters[dim]
    return Operand(transpose.operands[0], "".join(letters))


def transpose_permutation(transpose: Any) -> list[int]:
    """Returns the dim of the operand for each dim of the result of a `linalg.transpose`."""
    return list(ir.DenseI64ArrayAttr(transpose.attributes["permutation"]))


def _mark(value: Any, key: str) -> Any:
    """Sets the attribute `ROUNDING` of the op that computes `value` to `key`. Returns `value`."""
    value.owner.attributes[ROUNDING] = ir.StringAttr.get(key)
    return value


def _existing_rounding(value: Any, key: str) -> Any | None:
    """Returns an op that has the attribute `ROUNDING` of `key` and reads `value`; `None` if there is no such op."""
    mark = ir.StringAttr.get(key)
    for use in value.uses:
        op = use.owner.operation
        if ROUNDING in op.attributes and op.attributes[ROUNDING] == mark:
            return op
    return None


def _shared_view(value: Any) -> Any:
    """Returns `value` or, if it is a reshape, the first op of the block that reshapes the same tensor in the same way.

    Each node that reads a parameter may have its own view of it; these share the rounding of the first view.
    """
    owner = defining_op(value)
    if owner is None or owner.name not in _RESHAPES:
        return value
    readers = (use.owner.operation for use in owner.operands[0].uses)
    views = [
        op for op in readers if op.name == owner.name and op.results[0].type == value.type and _same_groups(op, owner)
    ]
    first = views[0]
    for view in views[1:]:
        first = view if view.is_before_in_block(first) else first
    return first.results[0]


def _same_groups(view: Any, other: Any) -> bool:
    """True if two reshapes collapse or expand the same groups of dims."""
    return bool(view.attributes["reassociation"] == other.attributes["reassociation"])


# The attribute of an argument that is a parameter of the model.
_PARAMETER = "buddy.parameter"


def is_parameter(value: Any) -> bool:
    """True if `value` is a parameter of the model, or a view of one."""
    while (owner := defining_op(value)) is not None:
        if owner.name != "linalg.transpose" and owner.name not in _RESHAPES:
            return False
        value = owner.operands[0]
    attributes = argument_attributes(value.owner.owner)
    return value.arg_number < len(attributes) and _PARAMETER in attributes[value.arg_number]
