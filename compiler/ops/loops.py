"""Loops that carry tensors, for ops whose order matters: scans, sorts, scatters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir, scf, tensor
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.sizes import index_value, remember
from buddy.compiler.ops.structured import shape_of
from buddy.compiler.ops.utils import constant

# A number, a symbolic size, or a value of type index.
Extent = Any
Body = Callable[[list[Any], list[Any]], Sequence[Any]]


def position(value: Extent) -> Any:
    """Returns `value` as a value of type index."""
    return index_value(value)


def for_each(extents: Sequence[Extent], carried: Sequence[Any], body: Body) -> list[Any]:
    """Emits a loop nest over a box in row-major order; `body(position, carried)` returns the next carried values.

    `carried` are tensors, which `body` may only change by `insert`, or scalars. Returns the final carried values.
    """

    def nest(at: list[Any], held: list[Any]) -> list[Any]:
        if len(at) == len(extents):
            return list(body(at, held))
        loop = scf.ForOp(position(0), position(extents[len(at)]), position(1), held)
        with ir.InsertionPoint(loop.body):
            scf.yield_(nest([*at, loop.induction_variable], shaped(loop.inner_iter_args, held)))
        return shaped(loop.results, held)

    return nest([], list(carried))


def shaped(values: Iterable[Any], like: Sequence[Any]) -> list[Any]:
    """Returns `values`; records for each tensor that it has the shape of the corresponding one in `like`."""
    pairs = list(zip(values, like, strict=True))
    return [remember(a, shape_of(b)) if isinstance(b.type, ir.RankedTensorType) else a for a, b in pairs]


def element(value: Any, at: Sequence[Any], dtype: TensorDType) -> Scalar:
    """Reads the element of a tensor of `dtype` at the position `at`, in values of type index."""
    return Scalar(tensor.extract(value, list(at)), dtype)


def insert(value: Any, at: Sequence[Any], into: Any) -> Any:
    """Returns the tensor `into` with the element at `at` replaced by `value`."""
    return tensor.insert(value.value if isinstance(value, Scalar) else value, into, list(at))


def index_of(value: Any, dtype: TensorDType = TensorDType.Int64) -> Scalar:
    """Converts an MLIR index to a scalar of an integer type."""
    return s.cast(Scalar(arith.index_cast(ir.IntegerType.get_signless(64), value), TensorDType.Int64), dtype)


def index_position(value: Scalar) -> Any:
    """Converts a signed integer to an MLIR index."""
    return arith.index_cast(ir.IndexType.get(), value.value)


def number(value: bool | int | float, dtype: TensorDType) -> Scalar:
    return Scalar(constant(value, dtype), dtype)


class LoopState:
    """Loop-carried tensors; `tensors` are their current values.

    Positions are numbers or values of type index; conditions are bool scalars. The functions passed to `repeat`,
    `choose` and `each` read and assign `tensors` inside the loop or branch.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = list(tensors)

    def repeat(
        self, values: Sequence[Any], test: Callable[..., tuple[Scalar, Sequence[Any]]],
        body: Callable[..., Sequence[Any]],
    ) -> list[Any]:  # fmt: skip
        """Emits a while loop: `test(*values)` returns the condition and the arguments of `body`.

        `body` returns the next values. Returns the arguments that the last call of `test` returned.
        """
        inits = [*self.tensors, *map(position, values)]
        count, types = len(self.tensors), [value.type for value in inits]
        loop = scf.WhileOp(types, inits)
        before, after = (region.blocks.append(*types) for region in loop.regions)
        with ir.InsertionPoint(before):
            self.tensors = shaped(list(before.arguments)[:count], self.tensors)
            holds, found = test(*list(before.arguments)[count:])
            scf.ConditionOp(holds.value, [*self.tensors, *map(position, found)])
        with ir.InsertionPoint(after):
            self.tensors = shaped(list(after.arguments)[:count], self.tensors)
            following = body(*list(after.arguments)[count:])
            scf.yield_([*self.tensors, *map(position, following)])
        self.tensors = shaped(list(loop.results)[:count], self.tensors)
        return list(loop.results)[count:]

    def choose(self, condition: Scalar, then: Callable[[], Any], otherwise: Callable[[], Any] | None = None) -> None:
        """Emits a branch: `then` or `otherwise` updates the tensors. Without `otherwise` they are unchanged."""
        start = list(self.tensors)
        branch = scf.IfOp(condition.value, [tensor.type for tensor in start], has_else=True)
        for block, change in ((branch.then_block, then), (branch.else_block, otherwise)):
            self.tensors = list(start)
            with ir.InsertionPoint(block):
                if change is not None:
                    change()
                scf.yield_(self.tensors)
        self.tensors = shaped(branch.results, start)

    def each(self, first: Any, last: Any, body: Callable[[Any], None]) -> None:
        """Emits a loop that calls `body(i)` for `first <= i < last`."""

        def visit(at: list[Any], held: list[Any]) -> list[Any]:
            self.tensors = held
            body(plus(first, at[0]))
            return self.tensors

        self.tensors = for_each([minus(last, first)], self.tensors, visit)


def plus(i: Any, j: Any) -> Any:
    return arith.addi(position(i), position(j))


def minus(i: Any, j: Any) -> Any:
    return arith.subi(position(i), position(j))


def half(i: Any) -> Any:
    return arith.shrsi(position(i), position(1))


def compare(relation: str, i: Any, j: Any) -> Scalar:
    """Compares positions as signed numbers; `relation` is "slt", "sgt", "eq" and so on."""
    return Scalar(arith.cmpi(getattr(arith.CmpIPredicate, relation), position(i), position(j)), TensorDType.Bool)


def pick(condition: Scalar, yes: Any, no: Any) -> Any:
    return arith.select(condition.value, position(yes), position(no))
