"""One line of keys and their places, changed step by step: a builder for algorithms with loops of unknown length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from buddy.compiler.bindings import arith, ir, scf
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops.loops import element, for_each, insert, position, shaped
from buddy.compiler.ops.scalar import Scalar

Entry = tuple[Scalar, Scalar]
# Whether the first of two keys must stand before the second.
Order = Callable[[Scalar, Scalar], Scalar]


class Line:
    """Row `row` of `keys` [rows, n] of `dtype` and of `places` [rows, n], an i64 each; more tensors may go with them.

    `tensors` are their values at this point of the program. Positions are numbers or values of type index; conditions
    are bool scalars. A function given to `repeat` or `choose` changes the line as it is inside the loop or branch.
    """

    def __init__(self, tensors: Sequence[Any], row: Any, dtype: TensorDType, order: Order) -> None:
        self.tensors = list(tensors)
        self.row, self.dtype, self.order = row, dtype, order

    def get(self, i: Any) -> Entry:
        at = [self.row, position(i)]
        return element(self.tensors[0], at, self.dtype), element(self.tensors[1], at, TensorDType.Int64)

    def put(self, i: Any, entry: Entry) -> None:
        at = [self.row, position(i)]
        self.tensors[:2] = [insert(x, at, tensor) for x, tensor in zip(entry, self.tensors[:2], strict=True)]

    def swap(self, i: Any, j: Any) -> None:
        left, right = self.get(i), self.get(j)
        self.put(i, right)
        self.put(j, left)

    def before(self, i: Any, j: Any) -> Scalar:
        """Whether the key at `i` must stand before that at `j`."""
        return self.order(self.get(i)[0], self.get(j)[0])

    def repeat(
        self, values: Sequence[Any], test: Callable[..., tuple[Scalar, Sequence[Any]]],
        body: Callable[..., Sequence[Any]],
    ) -> list[Any]:  # fmt: skip
        """While `test(*values)` holds, `body` of what it gives makes the next values. Gives what the last test gave."""
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
        """One of two ways to change the line; without the second it stays as it is."""
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
        """`body(i)` for the positions from `first` to before `last`."""

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
    """A comparison of positions as signed numbers: "slt", "sgt", "eq" and so on."""
    return Scalar(arith.cmpi(getattr(arith.CmpIPredicate, relation), position(i), position(j)), TensorDType.Bool)


def pick(condition: Scalar, yes: Any, no: Any) -> Any:
    return arith.select(condition.value, position(yes), position(no))
