"""Emits the packing of B into zero-padded panels [panel][k][columns]: a copy, or a transpose in registers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

from buddy.compiler.mlir.bindings import func, ir, memref
from buddy.compiler.mlir.walk import RUNS_ONCE
from buddy.compiler.passes.kernels.access import Loop, SizeAndStride, flatten, row_major_strides
from buddy.compiler.passes.kernels.blocking import GemmBlocking
from buddy.compiler.passes.kernels.contraction import Contraction, convert_elements
from buddy.compiler.passes.kernels.dot_instructions import as_elements, as_words
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, ceil_div, for_blocks, round_up
from buddy.compiler.passes.kernels.matrix_copies import PackedWindows, PanelCopy, interleaved, transposed
from buddy.compiler.support.target import CACHE_LINE

ALIGNMENT = CACHE_LINE  # bytes, of every packed buffer

# Windows with more elements are packed one element at a time: their rows would fill the cache, and their code would be
# long.
_MAX_WINDOW = 25


@dataclass(frozen=True)
class Panels:
    """The packing of B into panels [outer..., panel, k, column].

    `outer`, `n` and `k` have (size, stride in B) of the loops over B. A panel has `columns` columns, which are packed
    in vectors of `lanes`; columns that B lacks are zeros. With a `group` of more than one, that many elements along K
    are adjacent: the order is [panel, k / group, column, k % group]. Zeros fill up the depth of a panel to a
    `multiple`. `element` is the type of the elements of packed weights ("": that of B). Without groups, the elements of
    a panel may be wider than those of B; integers are extended by zeros if `unsigned`.
    """

    outer: tuple[SizeAndStride, ...]
    n: SizeAndStride
    k: tuple[SizeAndStride, ...]
    columns: int
    lanes: int
    unsigned: bool = False
    group: int = 1
    multiple: int = 1
    element: str = ""

    @property
    def depth(self) -> int:
        """Returns the steps of K in a panel."""
        return round_up(math.prod(size for size, _ in self.k), self.multiple)

    @property
    def count(self) -> int:
        """Returns the number of panels for one iteration of the outer loops."""
        return ceil_div(self.n[0], self.columns)

    @property
    def panel_elements(self) -> int:
        """Returns the number of elements in a panel."""
        return self.depth * self.columns

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the shape of the buffer with all panels."""
        steps = (self.depth // self.group, self.columns, self.group) if self.group > 1 else (self.depth, self.columns)
        return (*(size for size, _ in self.outer), self.count, *steps)

    @property
    def outer_strides(self) -> list[int]:
        """Returns the strides of the packed buffer along the outer loops."""
        return row_major_strides([size for size, _ in self.outer], self.count * self.panel_elements)

    def emit_packing(self, e: KernelEmitter, source: ir.Value, target: ir.Value) -> None:
        """Emits the packing of all of B, from the flat `source` to the flat `target`."""
        pack_all(e, self, source, target)


class Packing(Protocol):
    """The layout of packed weights, and the code that packs them: a value that can be compared and hashed.

    `shape` is that of the packed buffer. `element` is the type of packed elements, or "" for that of the weights.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def element(self) -> str: ...

    def emit_packing(self, e: KernelEmitter, source: ir.Value, target: ir.Value) -> None:
        """Emits the packing from the flat unpacked weights `source` to the flat packed weights `target`."""


def panels_of(contraction: Contraction, blocking: GemmBlocking) -> Panels:
    """Returns the panels of B that the kernel of `contraction` reads."""

    def extent(loop: Loop) -> SizeAndStride:
        return loop.size, loop.strides[1]

    outer = tuple(extent(loop) for loop in contraction.outer if loop.used[1])
    ks = tuple(extent(loop) for loop in contraction.k)
    unsigned, multiple = contraction.unsigned[1], blocking.depth_multiple
    return Panels(
        outer, extent(contraction.n), ks, blocking.columns, blocking.lanes, unsigned, blocking.group, multiple
    )


def emit_pack_function(
    name: str, type_: ir.Type, packed: ir.Type, packing: Packing, public: bool = True
) -> func.FuncOp:
    """Emits a function (weights, packed weights) -> () that packs the weights.

    The runtime calls a public one, once; the module itself calls a private one.
    """
    function = func.FuncOp(name, ([type_, packed], []), visibility=None if public else "private")
    if public:
        function.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
        function.attributes[RUNS_ONCE] = ir.UnitAttr.get()
    entry = function.add_entry_block()
    with ir.InsertionPoint(entry):
        terminator = func.ReturnOp([])
    with ir.InsertionPoint(terminator):
        source, target = (flatten(value) for value in entry.arguments)
        packing.emit_packing(KernelEmitter(entry), source, target)
    return function


def pack_all(e: KernelEmitter, panels: Panels, source: ir.Value, target: ir.Value) -> None:
    """Emits the packing of all of B, from the flat unpacked B `source` to the flat panels `target`."""

    def emit_panels(indices: list[Index]) -> None:
        start = e.dot(indices, [stride for _, stride in panels.outer])
        target_start = e.dot(indices, panels.outer_strides)

        def emit_panel(number: Index, active: int) -> None:
            column = e.mul(number, panels.columns * panels.n[1])
            panel_start = e.add(target_start, e.mul(number, panels.panel_elements))
            pack_panel(e, panels, source, e.add(start, column), target, panel_start, active)

        for_blocks(e, panels.n[0], panels.columns, emit_panel)

    e.nest([size for size, _ in panels.outer], emit_panels)


def pack_panel(
    e: KernelEmitter, panels: Panels, source: ir.Value, start: Index, target: ir.Value, target_start: Index,
    active: int, k_range: tuple[Index, Index] | None = None,
) -> None:  # fmt: skip
    """Emits the packing of one panel, of which the first `active` columns are copied and the others become zeros.

    `start` is the offset of the first column in the flat `source`, `target_start` the offset of step 0 of K in the flat
    `target`. Packs all steps of K, or those from `k_range[0]` up to `k_range[1]` of its only loop.
    """
    *outer, (size, stride) = panels.k or ((1, 0),)
    lower, upper = k_range or (0, size)
    if panels.group > 1:
        assert k_range is None, "panels of groups have all steps of K"
        if len(panels.k) > 1:
            _pack_groups_of_rows(e, panels, source, start, target, target_start, active)
        else:
            _GroupedCopy(e, panels, source, target, active).copy(start, target_start)
        return
    if window := _inner_window(panels):
        _pack_windows(e, panels, source, start, target, target_start, active, window)
        return
    unsigned, columns = panels.unsigned, panels.columns
    copier = PanelCopy(e, source, stride, panels.n[1], target, columns, columns, panels.lanes, unsigned)
    target_strides = row_major_strides([count for count, _ in outer], size * panels.columns)

    def emit_rows(indices: list[Index]) -> None:
        row_start = e.dot(indices, [outer_stride for _, outer_stride in outer], start)
        copier.copy(row_start, e.dot(indices, target_strides, target_start), lower, upper, active)

    e.nest([count for count, _ in outer], emit_rows)


def _pack_windows(
    e: KernelEmitter, panels: Panels, source: ir.Value, start: Index, target: ir.Value, target_start: Index,
    active: int, window: int,
) -> None:  # fmt: skip
    """Emits the packing of one panel of weights [column, channel, window], of `window` elements for each channel."""
    channels = panels.k[-1][0]
    windows = PackedWindows(e, source, panels.n[1], window, panels.columns, panels.lanes)
    target_strides = [panels.columns, channels * panels.columns]  # per channel, and per element of the window

    def emit_channel(channel: Index, row_starts: list[Index]) -> None:
        for element, row_start in enumerate(row_starts):
            row_target = e.dot((channel, element), target_strides, target_start)
            for column in range(0, panels.columns, panels.lanes):
                value = e.load(windows.scratch, e.add(row_start, column), panels.lanes)
                value = convert_elements(value, target.type.element_type, panels.unsigned)
                e.store(value, target, e.add(row_target, column))

    windows.for_each_channel(start, channels, active, emit_channel)


def _pack_groups_of_rows(
    e: KernelEmitter, panels: Panels, source: ir.Value, start: Index, target: ir.Value, target_start: Index, active: int
) -> None:  # fmt: skip
    """Emits the packing of one panel of groups by way of a panel of rows, which handles several loops of K."""
    rows = replace(panels, group=1, multiple=1)
    scratch = memref.alloc(
        ir.MemRefType.get([rows.panel_elements], source.type.element_type), [], [], alignment=ALIGNMENT
    )
    pack_panel(e, rows, source, start, scratch, 0, active)
    groups = replace(panels, k=((rows.depth, panels.columns),), n=(panels.columns, 1))
    _GroupedCopy(e, groups, scratch, target, panels.columns).copy(0, target_start)
    memref.dealloc(scratch)


def _inner_window(panels: Panels) -> int:
    """Returns the number of elements of the window, if B has a layout [column, channel, window] as in convolutions.

    Returns 0 if B has another layout, or if the window is too large.
    """
    *outer, (size, stride) = panels.k or ((1, 0),)
    sizes = [count for count, _ in outer]
    window = math.prod(sizes)
    is_dense_window = [outer_stride for _, outer_stride in outer] == row_major_strides(sizes, 1)
    is_dense = is_dense_window and stride == window and panels.n[1] == size * window
    return window if 1 < window <= _MAX_WINDOW and is_dense and panels.lanes > 1 else 0


@dataclass(frozen=True)
class _GroupedCopy:
    """Emits the copy of a matrix to one of `panels`, whose groups of elements are adjacent. Elements keep their type.

    The offsets of the first elements are `start` in the source and `target_start` in the target. The first `active`
    columns are copied, the others become zeros.
    """

    e: KernelEmitter
    panels: Panels
    source: Any
    target: Any
    active: int

    def copy(self, start: Index, target_start: Index) -> None:
        """Emits the copy of all steps of K, and zeros for the steps that pad the panel."""
        e, panels = self.e, self.panels
        ((size, k_stride),), column_stride = panels.k, panels.n[1]
        # `copy_steps` copies at most `block` steps of K at once.
        block, copy_steps = panels.group, self._copy_rows if column_stride == 1 else self._gather_rows
        if k_stride == 1 and column_stride != 1:
            block, copy_steps = panels.group * panels.lanes, self._copy_columns

        def emit_steps(k: Index, steps: int) -> None:
            copy_steps(e.add(start, e.mul(k, k_stride)), e.add(target_start, e.mul(k, panels.columns)), steps)

        def emit_block(k: Index) -> None:
            emit_steps(k, block)

        end = size // block * block
        e.for_each(0, end, block, emit_block)
        if end < size:
            emit_steps(end, size - end)
        first_zero = round_up(size, panels.group)
        for column in range(0, panels.columns, panels.lanes):
            for step in range(first_zero, panels.depth, panels.group):
                self._store(e.zero(self._group_vector), e.add(target_start, step * panels.columns), column)

    @property
    def _group_vector(self) -> ir.Type:
        """Returns the type of a vector of groups."""
        return ir.VectorType.get([self.panels.lanes * self.panels.group], self.source.type.element_type)

    def _store(self, value: ir.Value, row: Index, column: Index) -> None:
        """Stores a vector of groups to the row of the target at offset `row`, from `column` on."""
        self.e.store(value, self.target, self.e.add(row, self.e.mul(column, self.panels.group)))

    def _copy_columns(self, start: Index, target: Index, steps: int) -> None:
        """Copies `steps` steps of each column, which are contiguous, by transposing squares of words."""
        e, panels, lanes = self.e, self.panels, self.panels.lanes
        row_elements, rows = panels.columns * panels.group, ceil_div(steps, panels.group)
        zero = e.zero(self._group_vector)

        def copy_square(number: Index, count: int) -> None:
            first = e.mul(number, lanes)
            starts = [e.add(start, e.mul(e.add(first, i), panels.n[1])) for i in range(count)]
            columns = [e.load(self.source, offset, lanes * panels.group, steps) for offset in starts]
            square = transposed([as_words(column, panels.group) for column in [*columns, *[zero] * (lanes - count)]])
            for i, row in enumerate(square[:rows]):
                self._store(as_elements(row, self.source.type.element_type), e.add(target, i * row_elements), first)

        for_blocks(e, self.active, lanes, copy_square)
        for column in range(round_up(self.active, lanes), panels.columns, lanes):
            for i in range(rows):
                self._store(zero, e.add(target, i * row_elements), column)

    def _copy_rows(self, start: Index, target: Index, steps: int) -> None:
        """Copies `steps` rows, a group or less, which are contiguous, by interleaving them."""
        e, panels, lanes = self.e, self.panels, self.panels.lanes
        zero = e.zero(ir.VectorType.get([lanes], self.source.type.element_type))
        starts = [e.add(start, i * panels.k[0][1]) for i in range(steps)]
        for column in range(0, panels.columns, lanes):
            remaining = self.active - column
            rows = [
                e.load(self.source, e.add(row, column), lanes, remaining) if remaining > 0 else zero for row in starts
            ]
            self._store(interleaved([*rows, *[zero] * (panels.group - steps)]), target, column)

    def _gather_rows(self, start: Index, target: Index, steps: int) -> None:
        """Copies `steps` steps, a group or less, element by element."""
        e, panels = self.e, self.panels
        for column in range(0, panels.columns, panels.lanes):
            self._store(e.zero(self._group_vector), target, column)

        def copy_group(column: Index) -> None:
            for i in range(steps):
                offset = e.add(start, e.add(e.mul(column, panels.n[1]), i * panels.k[0][1]))
                value = e.load_scalar(self.source, offset)
                e.store_scalar(value, self.target, e.add(target, e.add(e.mul(column, panels.group), i)))

        e.for_each(0, self.active, 1, copy_group)
