"""The register-blocked matrix-multiply kernel: one MLIR function per contraction, packing and way of starting C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from buddy.compiler.bindings import func, ir, memref, vector
from buddy.compiler.kernels.blocking import Blocking
from buddy.compiler.kernels.contraction import Contraction
from buddy.compiler.kernels.crossing import argument_types, flat_operands
from buddy.compiler.kernels.dot import DotProducts
from buddy.compiler.kernels.emit import Emitter, Index, for_blocks
from buddy.compiler.kernels.packing import ALIGNMENT, Panels, pack_panel, panels_of, row_major

Start = Literal["zero", "accumulate"]


def kernel_function(
    name: str, types: Sequence[Any], contraction: Contraction, blocking: Blocking, start: Start
) -> func.FuncOp:
    """A private function (A, B, C) -> () at the insertion point, for memrefs of `types` as `crossing` passes them.

    B has the shape `panels_of(contraction, blocking).shape` when `blocking.source` is "packed". C is overwritten when
    `start` is "zero".
    """
    function = func.FuncOp(name, (argument_types(types), []), visibility="private")
    entry = function.add_entry_block()
    with ir.InsertionPoint(entry):
        end = func.ReturnOp([])
    with ir.InsertionPoint(end):
        a, b, c = flat_operands(entry.arguments, types)
        flats = (b, a, c) if contraction.swapped else (a, b, c)
        if blocking.source == "dot":
            DotProducts(Emitter(entry), flats, contraction, blocking.lanes, start == "zero").emit()
        else:
            _Gemm(Emitter(entry), flats, contraction, blocking, start).emit()
    return function


@dataclass(frozen=True)
class _Panel:
    """`active` columns of B and C, and the steps of K to take: all of them where `k_range` is `None`.

    `b` and `c` are the offsets of the first elements; `ahead` is that of the next panel, where it should be fetched
    from memory while this one is worked on.
    """

    b: Index
    c: Index
    active: int
    k_range: tuple[Index, Index] | None
    ahead: Index | None


class _Gemm:
    """Emission of one kernel. Offsets are in elements of the flat operands."""

    def __init__(self, e: Emitter, flats: Sequence[Any], contraction: Contraction, blocking: Blocking, start: Start):
        self.e, self.c, self.block, self.start = e, contraction, blocking, start
        self.a, self.b, self.out = flats
        self.panels: Panels = panels_of(contraction, blocking)
        self.element = self.out.type.element_type
        self.vector = ir.VectorType.get([blocking.lanes], self.element)

    def emit(self) -> None:
        scratch = self._scratch() if self.block.source == "panel" else None
        self.panel = scratch if scratch is not None else self.b
        self.e.nest([loop.size for loop in self.c.outer], self._one)
        if scratch is not None:
            memref.dealloc(scratch)

    def _scratch(self) -> Any:
        return memref.alloc(ir.MemRefType.get([self.panels.panel], self.element), [], [], alignment=ALIGNMENT)

    def _one(self, outer: list[Index]) -> None:
        """The product for one value of the outer loops."""
        starts = [self.e.dot(outer, [loop.strides[i] for loop in self.c.outer]) for i in range(3)]
        if self.block.source == "packed":
            starts[1] = self._packed_start(outer)
        if not self._blocks_k():
            self._all_panels(starts, None)
            return
        size = self.c.k[0].size

        def block(lower: Index, _: list[Any]) -> Sequence[Any]:
            upper = self.e.minimum(self.e.add(lower, self.block.depth), size)
            self._all_panels(starts, (lower, upper))
            return ()

        self.e.loop(0, size, self.block.depth, block)

    def _packed_start(self, outer: list[Index]) -> Index:
        used = [index for index, loop in zip(outer, self.c.outer, strict=True) if loop.used[1]]
        return self.e.dot(used, self.panels.outer_strides)

    def _blocks_k(self) -> bool:
        return len(self.c.k) == 1 and self.block.depth < self.c.k[0].size

    def _all_panels(self, starts: list[Index], k_range: tuple[Index, Index] | None) -> None:
        a, b, c = starts
        e, n = self.e, self.c.n

        def panel(number: Index, active: int) -> None:
            column = e.mul(number, self.block.columns)
            place = e.add(c, e.mul(column, n.strides[2]))
            if self.block.source == "packed":
                here = e.add(b, e.mul(number, self.panels.panel))
            else:
                here = e.add(b, e.mul(column, n.strides[1]))
            if self.block.source == "panel":
                pack_panel(e, self.panels, self.b, here, self.panel, 0, active, k_range)
                here = 0
            self._all_rows(a, _Panel(here, place, active, k_range, self._next_panel(b, number)))

        for_blocks(e, n.size, self.block.columns, panel)

    def _next_panel(self, b: Index, number: Index) -> Index | None:
        """Where the panel after panel `number` starts, when the panels come from memory one after the other."""
        if self.block.source != "packed" or len(self.c.k) != 1 or self._blocks_k() or self.c.m.size <= self.block.rows:
            return None
        following = self.e.minimum(self.e.add(number, 1), self.panels.shape[-3] - 1)
        return self.e.add(b, self.e.mul(following, self.panels.panel))

    def _all_rows(self, a: Index, panel: _Panel) -> None:
        e, m = self.e, self.c.m

        def rows(number: Index, count: int) -> None:
            row = e.mul(number, self.block.rows)
            here, there = e.add(a, e.mul(row, m.strides[0])), e.add(panel.c, e.mul(row, m.strides[2]))
            ahead = panel.ahead
            if ahead is not None:
                ahead = e.add(ahead, e.mul(number, self._share * self.c.depth))
            self._block(here, replace(panel, c=there, ahead=ahead), count)

        for_blocks(e, m.size, self.block.rows, rows)

    @property
    def _share(self) -> int:
        """Elements of the next panel that each step of K fetches, so that all blocks of rows together fetch it all."""
        return -(-self.block.columns // -(-self.c.m.size // self.block.rows))

    def _block(self, a: Index, panel: _Panel, rows: int) -> None:
        """`rows` rows by the panel's columns of C, held in registers over all of K."""
        active, columns = panel.active, range(0, panel.active, self.block.lanes)
        places = [(self.e.add(panel.c, row * self.c.m.strides[2]), column) for row in range(rows) for column in columns]
        sums = [self._initial(place, column, active) for place, column in places]
        for (place, column), value in zip(places, self._over_k(a, panel, rows, sums), strict=True):
            self._store(value, place, column, active)

    def _initial(self, place: Index, column: int, active: int) -> Any:
        if self.start == "zero":
            return self.e.zero(self.vector)
        if self.c.n.strides[2] == 1:
            return self.e.load(self.out, self.e.add(place, column), self.block.lanes, active - column)
        return self._load_strided(place, column, active)

    def _load_strided(self, place: Index, column: int, active: int) -> Any:
        value = self.e.zero(self.vector)
        for lane in range(min(self.block.lanes, active - column)):
            offset = self.e.add(place, (column + lane) * self.c.n.strides[2])
            value = vector.insert(self.e.load_scalar(self.out, offset), value, [], [lane])
        return value

    def _store(self, value: Any, place: Index, column: int, active: int) -> None:
        if self.c.n.strides[2] == 1:
            self.e.store(value, self.out, self.e.add(place, column), active - column)
            return
        for lane in range(min(self.block.lanes, active - column)):
            offset = self.e.add(place, (column + lane) * self.c.n.strides[2])
            self.e.store_scalar(vector.extract(value, [], [lane]), self.out, offset)

    def _over_k(self, a: Index, panel: _Panel, rows: int, sums: list[Any]) -> list[Any]:
        """The sums after all steps of K."""
        e, loops = self.e, self.c.k
        steps = [loop.strides[1] for loop in loops]
        if self.block.source != "direct":
            steps = row_major([loop.size for loop in loops], self.block.columns)

        def level(depth: int, a: Index, b: Index, sums: list[Any]) -> list[Any]:
            if depth == len(loops):
                return self._step(a, b, rows, panel.active, sums)

            def body(k: Index, inner: list[Any]) -> Sequence[Any]:
                if panel.ahead is not None:
                    self._fetch(e.add(panel.ahead, e.mul(k, self._share)))
                here = e.add(a, e.mul(k, loops[depth].strides[0]))
                return level(depth + 1, here, e.add(b, e.mul(k, steps[depth])), inner)

            lower, upper = panel.k_range or (0, loops[depth].size)
            return e.loop(lower, upper, 1, body, sums)

        return level(0, a, panel.b, sums)

    def _fetch(self, offset: Index) -> None:
        memref.prefetch(self.panel, [self.e.value(offset)], False, 3, True)

    def _step(self, a: Index, b: Index, rows: int, active: int, sums: list[Any]) -> list[Any]:
        """One step of K: a rank-one update of the block. A zero-padded panel is read in whole vectors."""
        lanes = self.block.lanes
        limit = active if self.block.source == "direct" else self.block.columns
        factors = [self._load_b(b, column, limit) for column in range(0, active, lanes)]
        result = []
        for row in range(rows):
            scalar = self.e.load_scalar(self.a, self.e.add(a, row * self.c.m.strides[0]))
            factor = vector.broadcast(self.vector, scalar)
            base = row * len(factors)
            result += [vector.fma(factor, b_, sums[base + j]) for j, b_ in enumerate(factors)]
        return result

    def _load_b(self, b: Index, column: int, limit: int) -> Any:
        return self.e.load(self.panel, self.e.add(b, column), self.block.lanes, limit - column)
