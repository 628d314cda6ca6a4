"""Base class of the matrix-multiply kernels: offsets of A, B and C, and an estimate of the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from buddy.compiler.mlir.bindings import ir, memref
from buddy.compiler.passes.kernels.arithmetic import bytes_of, converted
from buddy.compiler.passes.kernels.blocking import GemmBlocking
from buddy.compiler.passes.kernels.contraction import Contraction
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, for_blocks, nanoseconds
from buddy.compiler.passes.kernels.epilogue import KernelResults, Place, ResultSpec
from buddy.compiler.passes.kernels.packing import ALIGNMENT


class GemmKernel:
    """One contraction on flat operands `a` and `b`. Offsets are in elements."""

    def __init__(
        self, e: KernelEmitter, a: Any, b: Any, results: KernelResults, contraction: Contraction, blocking: GemmBlocking
    ) -> None:
        self.e, self.a, self.b, self.results = e, a, b, results
        self.c, self.block, self.lanes = contraction, blocking, blocking.lanes
        self.vector = results.vector
        self.element = self.vector.element_type
        self.m_loop, self.n_loop = len(contraction.outer), len(contraction.outer) + 1

    def emit(self) -> None:
        raise NotImplementedError

    def factor(self, operand: int, value: Any) -> Any:
        """Converts elements of A (0) or B (1) to the accumulator type."""
        return converted(value, self.element, self.c.unsigned[operand])

    def start(self, operand: int, outer: Sequence[Index]) -> Index:
        """Returns the offset of A (0) or B (1) for one value of the outer loops."""
        return self.e.dot(outer, [loop.strides[operand] for loop in self.c.outer])

    def place(self, outer: Sequence[Index], row: Index, column: Index) -> Place:
        """Returns the offset of results for one value of the outer loops, from `row` and `column` on."""
        place = self.results.origin
        for loop, index in enumerate([*outer, row, column]):
            place = self.results.advance(place, loop, index)
        return place

    @property
    def work(self) -> float:
        """Returns a rough time on one thread in nanoseconds."""
        outer = 1
        for loop in self.c.outer:
            outer *= loop.size
        of_b = outer * self.c.n.size * self.c.depth * bytes_of(self.c.factor_element)
        return nanoseconds(self.c.flops, of_b if self.c.m.size <= 8 else 0)

    def partial_sums(self, rows: int, columns: int) -> tuple[Any, KernelResults]:
        """Returns a new buffer of `rows` x `columns` sums, and access to it; the caller frees it."""
        buffer = memref.alloc(self.scratch_type(rows * columns), [], [], alignment=ALIGNMENT)
        spec = ResultSpec((*(0 for _ in self.c.outer), columns, 1), accumulate=True)
        return buffer, KernelResults(self.e, spec, [buffer], self.lanes, self.element)

    def move(
        self, rows: int, columns: int, source: KernelResults, start: Place, target: KernelResults, there: Place
    ) -> None:
        """Moves `rows` x `columns` sums from `source` at `start` to `target` at `there`, which finishes them."""

        def row(index: Index, _: list[Any]) -> Sequence[Any]:
            here, to = source.advance(start, self.m_loop, index), target.advance(there, self.m_loop, index)

            def one(column: Index, active: int) -> None:
                at, onto = source.advance(here, self.n_loop, column), target.advance(to, self.n_loop, column)
                target.finish(source.initial(at, 0, active), onto, 0, active)

            self.vectors(columns, one)
            return ()

        self.e.loop(0, rows, 1, row)

    def vectors(self, columns: int, body: Callable[[Index, int], None]) -> None:
        """Emits `body(column, active)` for each vector of `columns` columns."""
        for_blocks(self.e, columns, self.lanes, lambda number, active: body(self.e.mul(number, self.lanes), active))

    def zero(self) -> Any:
        return self.e.zero(self.vector)

    def scratch_type(self, elements: int) -> Any:
        return ir.MemRefType.get([elements], self.element)
