"""Emits loops with loop-carried tensors, for ops that depend on the order of iterations: scans, sorts, scatters.

A *position* is an index as an MLIR value of type index; most functions also accept numbers and symbolic sizes as
positions (`Extent`). A scalar of an integer type, such as an element of an index tensor, is a `Scalar`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

from buddy.compiler.graph.sizes import Dim
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir, scf, tensor
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.sizes import index_value, record_shape
from buddy.compiler.ops.structured import accumulator_type, cast_tensor, filled, reshape, shape_of
from buddy.compiler.ops.utils import constant

# A number, a symbolic size, or a value of type index.
Extent = Dim | ir.Value
# Maps (indices, loop-carried values) to the next loop-carried values.
Body = Callable[[list[ir.Value], list[ir.Value]], Sequence[ir.Value]]


def position(value: Extent) -> ir.Value:
    """Returns a number, a symbolic size or an index as an MLIR value of type index."""
    return index_value(value)


def for_each(extents: Sequence[Extent], carried: Sequence[ir.Value], body: Body) -> list[ir.Value]:
    """Emits a loop nest with trip counts `extents`, the innermost loop last. Returns the final loop-carried values.

    `body(indices, carried)` returns the next loop-carried values. These are scalars, or tensors that `body` changes
    only by `insert`.
    """

    def emit_nest(indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
        if len(indices) == len(extents):
            return list(body(indices, carried))
        loop = scf.ForOp(position(0), position(extents[len(indices)]), position(1), carried)
        with ir.InsertionPoint(loop.body):
            scf.yield_(emit_nest([*indices, loop.induction_variable], copy_shapes(loop.inner_iter_args, carried)))
        return copy_shapes(loop.results, carried)

    return emit_nest([], list(carried))


def copy_shapes(values: Iterable[ir.Value], like: Sequence[ir.Value]) -> list[ir.Value]:
    """Returns `values`. Records that each tensor in it has the shape of the corresponding tensor in `like`."""
    return [
        record_shape(value, shape_of(model)) if isinstance(model.type, ir.RankedTensorType) else value
        for value, model in zip(values, like, strict=True)
    ]


def element(value: ir.Value, indices: Sequence[ir.Value], dtype: TensorDType) -> Scalar:
    """Returns the element at `indices`, values of type index, of a tensor of `dtype`.

    A tensor of complex numbers has their parts along an additional last dim.
    """
    if dtype.is_complex:
        re, im = (element(value, [*indices, position(part)], dtype.part) for part in (0, 1))
        return s.ComplexScalar(re, im)
    return Scalar(tensor.extract(value, list(indices)), dtype)


def insert(value: Scalar | ir.Value, indices: Sequence[ir.Value], into: ir.Value) -> ir.Value:
    """Returns the tensor `into` with the element at `indices` replaced by `value`."""
    if isinstance(value, s.ComplexScalar):
        return insert(value.im, [*indices, position(1)], insert(value.re, [*indices, position(0)], into))
    return tensor.insert(value.value if isinstance(value, Scalar) else value, into, list(indices))


def index_to_scalar(value: ir.Value, dtype: TensorDType = TensorDType.Int64) -> Scalar:
    """Converts an MLIR value of type index to a scalar of an integer type: the inverse of `scalar_to_index`."""
    return s.cast(Scalar(arith.index_cast(ir.IntegerType.get_signless(64), value), TensorDType.Int64), dtype)


def scalar_to_index(value: Scalar) -> ir.Value:
    """Converts a scalar of type i64 to an MLIR value of type index: the inverse of `index_to_scalar`."""
    return arith.index_cast(ir.IndexType.get(), value.value)


def number(value: bool | int | float, dtype: TensorDType) -> Scalar:
    """Returns a constant scalar of `dtype`."""
    return Scalar(constant(value, dtype), dtype)


class LoopState:
    """Tensors that loops and branches carry; `tensors` are the current values.

    The functions passed to `while_loop`, `branch` and `each` read and assign `tensors` inside the loop or branch.
    Positions are numbers or values of type index; conditions are bool scalars.
    """

    def __init__(self, tensors: Sequence[ir.Value]) -> None:
        self.tensors = list(tensors)

    def while_loop(
        self, values: Sequence[Extent], test: Callable[..., tuple[Scalar, Sequence[Extent]]],
        body: Callable[..., Sequence[Extent]],
    ) -> list[ir.Value]:  # fmt: skip
        """Emits a while loop: `test(*values)` returns a condition and arguments, `body(*arguments)` the next values.

        Values and arguments are equally many positions. Returns the arguments for which the condition was false.
        """
        inits = [*self.tensors, *map(position, values)]
        count, types = len(self.tensors), [value.type for value in inits]
        loop = scf.WhileOp(types, inits)
        before, after = (region.blocks.append(*types) for region in loop.regions)
        with ir.InsertionPoint(before):
            self.tensors = copy_shapes(list(before.arguments)[:count], self.tensors)
            condition, arguments = test(*list(before.arguments)[count:])
            scf.ConditionOp(condition.value, [*self.tensors, *map(position, arguments)])
        with ir.InsertionPoint(after):
            self.tensors = copy_shapes(list(after.arguments)[:count], self.tensors)
            next_values = body(*list(after.arguments)[count:])
            scf.yield_([*self.tensors, *map(position, next_values)])
        self.tensors = copy_shapes(list(loop.results)[:count], self.tensors)
        return list(loop.results)[count:]

    def branch(self, condition: Scalar, then: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        """Emits an `scf.if`: `then` or `otherwise` updates `tensors`. Without `otherwise`, the else branch is empty."""
        start = list(self.tensors)
        branch = scf.IfOp(condition.value, [tensor.type for tensor in start], has_else=True)
        for block, update in ((branch.then_block, then), (branch.else_block, otherwise)):
            self.tensors = list(start)
            with ir.InsertionPoint(block):
                if update is not None:
                    update()
                scf.yield_(self.tensors)
        self.tensors = copy_shapes(branch.results, start)

    def each(self, start: Extent, end: Extent, body: Callable[[ir.Value], None]) -> None:
        """Emits a loop with the body `body(i)` for `start <= i < end`."""

        def visit(indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
            self.tensors = carried
            body(plus(start, indices[0]))
            return self.tensors

        self.tensors = for_each([minus(end, start)], self.tensors, visit)


def plus(i: Extent, j: Extent) -> ir.Value:
    """Returns the sum of two positions."""
    return arith.addi(position(i), position(j))


def minus(i: Extent, j: Extent) -> ir.Value:
    """Returns the difference of two positions, which may be negative."""
    return arith.subi(position(i), position(j))


def half(i: Extent) -> ir.Value:
    """Returns half of a position, rounded down."""
    return arith.shrsi(position(i), position(1))


def compare(relation: str, i: Extent, j: Extent) -> Scalar:
    """Compares positions as signed numbers; `relation` is a predicate of `arith.cmpi`, such as "slt"."""
    return Scalar(arith.cmpi(getattr(arith.CmpIPredicate, relation), position(i), position(j)), TensorDType.Bool)


def pick(condition: Scalar, if_true: Extent, if_false: Extent) -> ir.Value:
    """Selects one of two positions."""
    return arith.select(condition.value, position(if_true), position(if_false))


# ---- sums at computed positions --------------------------------------------------------------------------------------

# Maps an element's indices to (target indices along the last dims, weight) pairs; the weight `None` means 1.
Taps = Callable[[Sequence[ir.Value]], Sequence[tuple[Sequence[Scalar], Scalar | None]]]


def accumulate_taps(value: ir.Value, dtype: TensorDType, shape: Sequence[int], spatial: int, taps: Taps) -> ir.Value:
    """Returns a tensor of zeros of `shape` and `dtype`, plus the elements of `value` times weights, added sequentially.

    All dims but the last `spatial` ones are equal in `value` and the result, and are flattened to one plane index.
    `taps(indices)` returns where an element of `value` is added, and its weights; `indices` are the plane index and the
    indices along the last dims, as values of type index.
    """
    wide, planes = accumulator_type(dtype), prod(shape[:-spatial])
    counts = [planes, *shape_of(value)[-spatial:]]
    flat = reshape(value, counts, dtype)

    def visit(indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
        addend, out = s.cast(element(flat, indices, dtype), wide), carried[0]
        for target, weight in taps(indices):
            target_indices = [indices[0], *(scalar_to_index(p) for p in target)]
            term = addend if weight is None else addend * weight
            out = insert(element(out, target_indices, wide) + term, target_indices, out)
        return [out]

    (summed,) = for_each(counts, [filled(0, [planes, *shape[-spatial:]], wide)], visit)
    return reshape(cast_tensor(summed, wide, dtype), shape, dtype)
