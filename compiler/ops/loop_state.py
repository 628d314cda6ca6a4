"""Loop-carried tensors of `scf.while`, `scf.for` and `scf.if`, for algorithms that update them step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir, scf
from buddy.compiler.ops.loops import for_each, position, shaped
from buddy.compiler.ops.scalar import Scalar


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
