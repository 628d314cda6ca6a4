"""Packing of B into panels [panel][k][columns], zero-padded: a copy, or a transpose in registers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from buddy.compiler.mlir.bindings import arith, func, ir, memref, vector
from buddy.compiler.mlir.walk import ONCE
from buddy.compiler.passes.kernels.access import Loop, flatten
from buddy.compiler.passes.kernels.blocking import GemmBlocking
from buddy.compiler.passes.kernels.contraction import Contraction, converted
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, for_blocks
from buddy.compiler.support.target import CACHE_LINE

ALIGNMENT = CACHE_LINE  # bytes, of every packed buffer

# Larger windows are packed element by element: their rows would fill the cache, and their code would be long.
MAX_WINDOW = 25

Extent = tuple[int, int]  # size and stride in elements


@dataclass(frozen=True)
class Panels:
    """The elements of B that are packed, and the width of a panel: [outer..., panel, k, column].

    If the panels have a wider type, `unsigned` says that integers of B are unsigned.
    """

    outer: tuple[Extent, ...]
    n: Extent
    k: tuple[Extent, ...]
    columns: int
    lanes: int
    unsigned: bool = False

    @property
    def depth(self) -> int:
        return math.prod(size for size, _ in self.k)

    @property
    def panel(self) -> int:
        """Elements per panel."""
        return self.depth * self.columns

    @property
    def shape(self) -> tuple[int, ...]:
        return (*(size for size, _ in self.outer), -(-self.n[0] // self.columns), self.depth, self.columns)

    @property
    def outer_strides(self) -> list[int]:
        """Returns the strides of the packed buffer along the outer loops."""
        return row_major([size for size, _ in self.outer], self.shape[-3] * self.panel)

    def fill(self, e: KernelEmitter, source: Any, target: Any) -> None:
        """Emits the packing of all of B, from the flat `source` to the flat `target`."""
        pack_all(e, self, source, target)


class Packing(Protocol):
    """A packed form of a parameter, which a kernel reads instead: a value that can be compared and hashed."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def fill(self, e: KernelEmitter, source: Any, target: Any) -> None:
        """Emits the conversion from the flat `source` to the flat `target`."""


def panels_of(contraction: Contraction, blocking: GemmBlocking) -> Panels:
    def extent(loop: Loop) -> Extent:
        return loop.size, loop.strides[1]

    outer = tuple(extent(loop) for loop in contraction.outer if loop.used[1])
    ks = tuple(extent(loop) for loop in contraction.k)
    return Panels(outer, extent(contraction.n), ks, blocking.columns, blocking.lanes, contraction.unsigned[1])


def pack_function(name: str, raw: Any, packed: Any, form: Packing) -> func.FuncOp:
    """Emits a public function (raw B, packed B) -> () at the insertion point that fills all of the packed B."""
    function = func.FuncOp(name, ([raw, packed], []))
    function.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
    function.attributes[ONCE] = ir.UnitAttr.get()
    entry = function.add_entry_block()
    with ir.InsertionPoint(entry):
        end = func.ReturnOp([])
    with ir.InsertionPoint(end):
        source, target = (flatten(value) for value in entry.arguments)
        form.fill(KernelEmitter(entry), source, target)
    return function


def pack_all(e: KernelEmitter, panels: Panels, source: Any, target: Any) -> None:
    """Fills the panels of all of B, from the flat raw B `source` to the flat `target`."""

    def body(indices: list[Index]) -> None:
        here = e.dot(indices, [stride for _, stride in panels.outer])
        there = e.dot(indices, panels.outer_strides)

        def panel(number: Index, active: int) -> None:
            column = e.mul(number, panels.columns * panels.n[1])
            place = e.add(there, e.mul(number, panels.panel))
            pack_panel(e, panels, source, e.add(here, column), target, place, active)

        for_blocks(e, panels.n[0], panels.columns, panel)

    e.nest([size for size, _ in panels.outer], body)


def pack_panel(
    e: KernelEmitter, panels: Panels, source: Any, start: Index, target: Any, there: Index, active: int,
    k_range: tuple[Index, Index] | None = None,
) -> None:  # fmt: skip
    """Packs `active` columns over all of K, or over a range of its only loop, to the flat `target` from `there`."""
    *outer, (size, stride) = panels.k or ((1, 0),)
    lower, upper = k_range or (0, size)
    if window := inner_window(panels):
        windows = PackedWindows(e, source, panels.n[1], window, panels.columns, panels.lanes)
        targets = [panels.columns, size * panels.columns]  # for the next channel, and the next element of the window

        def row(channel: Index, place: int, here: Index) -> None:
            row_there = e.dot((channel, place), targets, there)
            for column in range(0, panels.columns, panels.lanes):
                value = e.load(windows.scratch, e.add(here, column), panels.lanes)
                e.store(converted(value, target.type.element_type, panels.unsigned), target, e.add(row_there, column))

        def rows(channel: Index, starts: list[Index]) -> None:
            for place, here in enumerate(starts):
                row(channel, place, here)

        windows.each(start, size, active, rows)
        return
    unsigned, columns = panels.unsigned, panels.columns
    copier = PanelCopy(e, source, stride, panels.n[1], target, columns, columns, panels.lanes, unsigned)
    targets = row_major([count for count, _ in outer], size * panels.columns)

    def body(indices: list[Index]) -> None:
        here = e.dot(indices, [step for _, step in outer], start)
        copier.copy(here, e.dot(indices, targets, there), lower, upper, active)

    e.nest([count for count, _ in outer], body)


def inner_window(panels: Panels) -> int:
    """Returns the elements of the window that is innermost in B, as in weights of convolutions; 0 without a window."""
    *outer, (size, stride) = panels.k or ((1, 0),)
    sizes = [count for count, _ in outer]
    window = math.prod(sizes)
    dense = [step for _, step in outer] == row_major(sizes, 1) and stride == window and panels.n[1] == size * window
    return window if 1 < window <= MAX_WINDOW and dense and panels.lanes > 1 else 0


def row_major(sizes: Sequence[int], step: int) -> list[int]:
    """Returns row-major strides over `sizes` with `step` as the last one."""
    strides: list[int] = []
    for size in reversed(sizes):
        strides.insert(0, step)
        step *= size
    return strides


class PackedWindows:
    """Weights [column, channel, window] as vectors of columns: transposed to a buffer, `lanes` channels at a time."""

    def __init__(
        self, e: KernelEmitter, source: Any, column_stride: int, window: int, columns: int, lanes: int
    ) -> None:
        self.e, self.source, self.column_stride = e, source, column_stride
        self.window, self.columns, self.lanes = window, columns, lanes
        self.scratch: Any = None

    def each(self, start: Index, channels: int, active: int, body: Callable[[Index, list[Index]], object]) -> None:
        """Emits `body` for each channel, with the offsets in `scratch` of the columns of its window's elements.

        Columns from `active` on are zeros.
        """
        e, step = self.e, self.window * self.columns
        type_ = ir.MemRefType.get([self.lanes * step], self.source.type.element_type)
        self.scratch = memref.alloc(type_, [], [], alignment=ALIGNMENT)
        copier = PanelCopy(
            e, self.source, 1, self.column_stride, self.scratch, self.columns, self.columns, self.lanes
        )  # fmt: skip

        def block(number: Index, count: int) -> None:
            first = e.mul(number, self.lanes)
            copier.copy(e.add(start, e.mul(first, self.window)), 0, 0, count * self.window, active)

            def one(channel: Index, _: list[Any]) -> Sequence[Any]:
                here = e.mul(channel, step)
                body(e.add(first, channel), [e.add(here, i * self.columns) for i in range(self.window)])
                return ()

            e.loop(0, count, 1, one)

        for_blocks(e, channels, self.lanes, block)
        memref.dealloc(self.scratch)


@dataclass(frozen=True)
class PanelCopy:
    """Copies a matrix, or its transpose, in registers.

    Element (k, column) is read from the flat memref `source` at `start + k * k_stride + column * column_stride` and
    written to the flat memref `target` at `start + k * row_stride + column`; each copy has its own starts. A row is
    `width` wide; `lanes` is a power of two. Elements are converted if the types differ; `unsigned` is for integers.
    """

    e: KernelEmitter
    source: Any
    k_stride: int
    column_stride: int
    target: Any
    row_stride: int
    width: int
    lanes: int
    unsigned: bool = False

    def copy(self, start: Index, target_start: Index, lower: Index, upper: Index, active: int) -> None:
        """Copies rows `lower <= k < upper`; columns from `active` to `width` become zeros."""
        if self.column_stride == 1:
            self._rows(self._copy_row, start, target_start, lower, upper, active)
        elif self.k_stride == 1 and self.lanes > 1:
            self._squares(start, target_start, lower, upper, active)
        else:
            self._rows(self._gather_row, start, target_start, lower, upper, active)

    def _rows(self, row: Any, start: Index, target_start: Index, lower: Index, upper: Index, active: int) -> None:
        e = self.e

        def body(k: Index, _: list[Any]) -> Sequence[Any]:
            row(e.add(start, e.mul(k, self.k_stride)), e.add(target_start, e.mul(k, self.row_stride)), active)
            return ()

        e.loop(lower, upper, 1, body)

    def _copy_row(self, here: Index, there: Index, active: int) -> None:
        for column in range(0, active, self.lanes):
            value = self.e.load(self.source, self.e.add(here, column), self.lanes, active - column)
            self._store(value, there, column)
        self._zeros(there, -(-active // self.lanes) * self.lanes)

    def _gather_row(self, here: Index, there: Index, active: int) -> None:
        e = self.e
        self._zeros(there, active // self.lanes * self.lanes)

        def body(column: Index, _: list[Any]) -> Sequence[Any]:
            value = e.load_scalar(self.source, e.add(here, e.mul(column, self.column_stride)))
            e.store_scalar(self._convert(value), self.target, e.add(there, column))
            return ()

        e.loop(0, active, 1, body)

    def _store(self, value: Any, there: Index, column: int) -> None:
        self.e.store(self._convert(value), self.target, self.e.add(there, column), self.width - column)

    def _zeros(self, there: Index, first: int) -> None:
        for column in range(first, self.width, self.lanes):
            self._store(self.e.zero(self._vector), there, column)

    def _squares(self, start: Index, target_start: Index, lower: Index, upper: Index, active: int) -> None:
        """Transposes squares of lanes x lanes elements in registers; the remaining rows of K are copied one by one."""
        e, lanes = self.e, self.lanes
        whole = self._whole(lower, upper)
        full = active // lanes * lanes

        def band(k: Index, _: list[Any]) -> Sequence[Any]:
            here, there = e.add(start, k), e.add(target_start, e.mul(k, self.row_stride))
            e.loop(0, full, lanes, lambda column, _: self._square(here, there, column, lanes))
            if active > full:
                self._square(here, there, full, active - full)
            for row in range(lanes):
                self._zeros(e.add(there, row * self.row_stride), -(-active // lanes) * lanes)
            return ()

        e.loop(lower, whole, lanes, band)
        self._rows(self._gather_row, start, target_start, whole, upper, active)

    def _whole(self, lower: Index, upper: Index) -> Index:
        """Returns the end of the last full square between `lower` and `upper`."""
        e, lanes = self.e, self.lanes
        if isinstance(lower, int) and isinstance(upper, int):
            return lower + (upper - lower) // lanes * lanes
        count = arith.divui(arith.subi(e.value(upper), e.value(lower)), e.value(lanes))
        return e.add(lower, e.mul(count, lanes))

    def _square(self, here: Index, there: Index, column: Index, count: int) -> Sequence[Any]:
        """Reads `count` rows of `lanes` elements from `column` on and writes them as columns."""
        e = self.e
        here, there = e.add(here, e.mul(column, self.column_stride)), e.add(there, column)
        rows = [e.load(self.source, e.add(here, i * self.column_stride), self.lanes) for i in range(count)]
        rows += [e.zero(ir.VectorType.get([self.lanes], self.source.type.element_type))] * (self.lanes - count)
        width = self.lanes if self.width % self.lanes == 0 else count
        for i, value in enumerate(transposed(rows)):
            e.store(self._convert(value), self.target, e.add(there, i * self.row_stride), width)
        return ()

    def _convert(self, value: Any) -> Any:
        return converted(value, self.target.type.element_type, self.unsigned)

    @property
    def _vector(self) -> Any:
        return ir.VectorType.get([self.lanes], self.target.type.element_type)


def transposed(rows: list[Any]) -> list[Any]:
    """Returns the transpose of as many vectors as each has lanes (a power of two), by repeated perfect shuffles.

    Interleaving row i with row i + L/2 moves the top bit of the row number into the lowest bit of the lane number;
    after log2(L) rounds, row and lane are exchanged.
    """
    lanes = len(rows)
    low = [lane // 2 + lanes * (lane % 2) for lane in range(lanes)]
    high = [index + lanes // 2 for index in low]
    for _ in range(lanes.bit_length() - 1):
        pairs = [(rows[i], rows[i + lanes // 2]) for i in range(lanes // 2)]
        rows = [vector.shuffle(a, b, mask) for a, b in pairs for mask in (low, high)]
    return rows
