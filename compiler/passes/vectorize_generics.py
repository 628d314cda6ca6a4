"""`vectorize-generics`: lowers element-wise ops, reductions, fills, copies and transposes to vector loops.

Ops that are repeated become calls of one function first, so that equal loops are compiled once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import func, ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.mlir.walk import (
    VIEW_OPS,
    attributes_of,
    constant_of,
    enclosing_entry_block,
    find_ops,
    functions_of,
    nested_ops,
)
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.copies_to_loops import CopiesToLoops
from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.calls import KernelCalls, argument_types
from buddy.compiler.passes.kernels.elementwise import emit_elementwise
from buddy.compiler.passes.kernels.emit import KernelEmitter
from buddy.compiler.passes.kernels.rows.reduction import emit_reduction
from buddy.compiler.passes.kernels.structured import STRUCTURED_OPS, analyse_vectorizable

# ---- equal ops become calls of one function --------------------------------------------------------------------------


# The minimum number of equal runs that are outlined: a function takes as long to compile as two vector loops.
_MIN_COUNT = 3

_FILL, _SUBVIEW = "linalg.fill", "memref.subview"


@dataclass(frozen=True)
class _Run:
    """Consecutive ops that access only the memory of `operands`. Runs with equal keys can call the same function."""

    ops: tuple[ir.Operation, ...]
    operands: tuple[Any, ...]

    @property
    def last(self) -> ir.Operation:
        """Returns the last op of the run."""
        return self.ops[-1]

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Returns the types of the operands, and the ops with numbers for their values, as a plain value."""
        numbers: dict[Any, int] = {}  # of values, in the order in which they first occur
        key_parts: list[Hashable] = [str(value.type) for value in self.operands]
        outer_values = [value for op in self.ops for value in _outer_values(op)]
        constants = [value.owner.operation for value in outer_values if constant_of(value) is not None]
        ops = [inner for op in self.ops for inner in (op, *nested_ops(op))]
        for op in (*constants, *ops):
            attributes = sorted((name, str(value)) for name, value in attributes_of(op).items())
            operands = tuple(numbers.setdefault(value, len(numbers)) for value in op.operands)
            results = tuple((numbers.setdefault(value, len(numbers)), str(value.type)) for value in op.results)
            arguments = [value for region in op.regions for block in region.blocks for value in block.arguments]
            key_parts.append((op.name, tuple(attributes), operands, results))
            key_parts += [numbers.setdefault(value, len(numbers)) for value in arguments]
        return tuple(key_parts)


def outline_duplicates(root: ir.Operation, locations: LocationSets) -> dict[str, list[ir.Location]]:
    """Outlines ops that the functions of module `root` repeat often: single ops, and consecutive fills of one buffer.

    Only ops on memrefs outside of loops are outlined. Returns the locations of the calls of each new function.
    """
    calls = KernelCalls(root, locations, pack_weights=False)
    blocks = [function.regions[0].blocks[0] for function in functions_of(root).values()]
    runs = [(run, run.key) for block in blocks for run in _runs(block)]
    counts = Counter(key for _, key in runs)
    for run, key in runs:
        if counts[key] >= _MIN_COUNT:
            _outline(run, key, calls)
    calls.finish()
    return calls.call_locations()


def _outline(run: _Run, key: Hashable, calls: KernelCalls) -> None:
    """Replaces the ops of `run` by a call of the function for `key`."""

    def build(name: str, _: Sequence[ir.Type]) -> func.FuncOp:
        return _emit_function(name, run)

    symbol = f"repeated_{run.last.name.rpartition('.')[2]}"
    calls.call(run.last, key, symbol, run.operands, calls.locations.union([op.location for op in run.ops]), build)
    for op in reversed(run.ops):
        op.erase()


def _emit_function(name: str, run: _Run) -> func.FuncOp:
    """Emits a private function that has the run's operands as arguments and the run's ops as its body."""
    function = func.FuncOp(name, ([value.type for value in run.operands], []), visibility="private")
    entry = function.add_entry_block()
    replacements = dict(zip(run.operands, entry.arguments, strict=True))
    with ir.InsertionPoint(entry):
        for op in run.ops:
            for value in _outer_values(op):
                if value not in replacements:
                    replacements[value] = value.owner.clone().operation.results[0]
            clone = op.clone().operation
            for inner in (clone, *nested_ops(clone)):
                for number, value in enumerate(inner.operands):
                    inner.operands[number] = replacements.get(value, value)
            replacements |= zip(op.results, clone.results, strict=True)
        func.ReturnOp([])
    return function


def _outer_values(op: ir.Operation) -> list[ir.Value]:
    """Returns the values that `op` or its body uses and that are defined outside of `op`."""
    body_ops = nested_ops(op)
    inner_values: set[ir.Value] = {value for inner in body_ops for value in inner.results}
    inner_values |= {argument for region in op.regions for block in region.blocks for argument in block.arguments}
    return [value for user in (op, *body_ops) for value in user.operands if value not in inner_values]


def _runs(block: ir.Block) -> Iterator[_Run]:
    """Yields the runs of a function's body that can be outlined."""
    fills: list[_Run] = []
    for op in [op.operation for op in block.operations]:
        if op.name in VIEW_OPS:
            continue
        run = _single_run(op) if op.name in STRUCTURED_OPS and not len(op.results) else None
        joins_fills = fills and run is not None and run.last.name == _FILL and run.operands == fills[0].operands
        if not joins_fills:
            yield from _join_fills(fills)
            fills = []
        if run is not None and (joins_fills or run.last.name == _FILL):
            fills.append(run)
        elif run is not None:
            yield run


def _join_fills(fills: Sequence[_Run]) -> Iterator[_Run]:
    """Yields one run of all `fills`, which are consecutive and of the same buffer; nothing if there are no fills."""
    if fills:
        yield _Run(tuple(op for run in fills for op in run.ops), fills[0].operands)


def _single_run(op: ir.Operation) -> _Run | None:
    """Returns the run of `op` alone; for a fill of a subview, with the subview.

    Returns `None` if `op` uses values other than constants and memrefs that calls pass without an offset.
    """
    ops: tuple[ir.Operation, ...] = (op,)
    values = [value for value in _outer_values(op) if constant_of(value) is None]
    if op.name == _FILL and len(values) == 1 and _is_single_use_subview(values[0]):
        view = values[0].owner.operation
        ops, values = (view, op), [view.operands[0]]
    operands = tuple(dict.fromkeys(values))
    return _Run(ops, operands) if all(_is_passed_as_memref(value.type) for value in operands) else None


def _is_single_use_subview(value: ir.Value) -> bool:
    """True if `value` is a static subview with one use."""
    is_subview = isinstance(value, ir.OpResult) and value.owner.name == _SUBVIEW and len(value.owner.operands) == 1
    return bool(is_subview and len(list(value.uses)) == 1)


def _is_passed_as_memref(type_: ir.Type) -> bool:
    """True if `type_` is a memref that calls pass as one argument, without a separate offset."""
    try:
        return isinstance(type_, ir.MemRefType) and argument_types([type_]) == [type_]
    except UnsupportedError:
        return False


# ---- vector loops ----------------------------------------------------------------------------------------------------


@register
@dataclass(frozen=True)
class VectorizeGenerics(MlirPass):
    """Emits vector loops for supported ops; leaves others to the pass that lowers linalg to loops, with a remark.

    With `share`, equal ops that occur often first become calls of one function.
    """

    name: ClassVar[str] = "vectorize-generics"
    summary: ClassVar[str] = "lower element-wise ops, reductions, fills, copies and transposes to vector loops"

    share: bool = True

    def run(self, root: ir.Operation, context: PassContext) -> None:
        CopiesToLoops().run(root, context)
        if self.share:
            for symbol, locations in outline_duplicates(root, context.locations).items():
                text = f"{len(locations)} equal ops: calls of {symbol}"
                context.remark(self.name, context.locations.union(locations), text)
        emitters: dict[tuple[Any, bool], KernelEmitter] = {}
        for op in find_ops(root, *STRUCTURED_OPS):
            if (enclosing := enclosing_entry_block(op)) is None:
                context.remark(self.name, op.location, f"{op.name} left to scalar loops: it is not in a func.func")
                continue
            entry, is_parallel = enclosing
            emitter = emitters.setdefault((entry.owner.operation, is_parallel), KernelEmitter(entry, is_parallel))
            try:
                text = _vectorize(emitter, op, context)
            except UnsupportedError as reason:
                context.remark(self.name, op.location, f"{op.name} left to scalar loops: {reason}")
                continue
            context.remark(self.name, op.location, f"{op.name}: {text}")
            op.erase()


def _vectorize(emitter: KernelEmitter, op: ir.Operation, context: PassContext) -> str:
    """Emits `op` as vector loops; returns the text of the remark. Raises `UnsupportedError` with the reason."""
    structured = analyse_vectorizable(op, allow_loads=True, allow_reversed=True)
    if any(loop.size == 0 for loop in structured.loops):
        return "it has no elements"
    if structured.reductions:
        # Raises `UnsupportedError` if the body loads from memory or divides integers, or if a dim is reversed.
        analyse_vectorizable(op)
    emit = emit_reduction if structured.reductions else emit_elementwise
    with ir.InsertionPoint(op), op.location:
        return emit(emitter, structured, context.target)
