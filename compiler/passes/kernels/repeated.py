"""Outlines repeated ops to a function, so that equal loops are compiled once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.mlir.bindings import func, ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.mlir.walk import VIEWS, attributes_of, collect
from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.calls import KernelCalls, argument_types
from buddy.compiler.passes.kernels.structured import KINDS

# The number of equal ops from which on they are outlined: a function takes as long to compile as two vector loops.
_MIN_COUNT = 3

_FILL, _VIEW, _CONSTANT = "linalg.fill", "memref.subview", "arith.constant"


@dataclass(frozen=True)
class _Run:
    """Consecutive ops that access no memory but that of `operands`; equal runs have an equal `key`."""

    ops: tuple[Any, ...]
    operands: tuple[Any, ...]

    @property
    def last(self) -> Any:
        return self.ops[-1]

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Returns the ops and the values that they pass to each other, as a plain value."""
        numbers: dict[Any, int] = {}
        found: list[Hashable] = [str(value.type) for value in self.operands]
        constants = [value.owner.operation for op in self.ops for value in _outer_values(op) if _is_constant(value)]
        inside = [inner for op in self.ops for inner in (op, *collect(op))]
        for op in (*constants, *inside):
            attributes = sorted((name, str(value)) for name, value in attributes_of(op).items())
            operands = tuple(numbers.setdefault(value, len(numbers)) for value in op.operands)
            results = tuple((numbers.setdefault(value, len(numbers)), str(value.type)) for value in op.results)
            arguments = [value for region in op.regions for block in region.blocks for value in block.arguments]
            found.append((op.name, tuple(attributes), operands, results))
            found += [numbers.setdefault(value, len(numbers)) for value in arguments]
        return tuple(found)


def outline_duplicates(root: Any, locations: LocationSets) -> dict[str, list[Any]]:
    """Outlines ops that the functions of module `root` repeat often: single ops, and fills of one buffer.

    Only ops on memrefs outside of loops count. Returns the locations of the calls of each function.
    """
    calls = KernelCalls(root, locations, pack_weights=False)
    blocks = [function.regions[0].blocks[0] for function in root.regions[0].blocks[0] if _has_body(function)]
    runs = [(run, run.key) for block in blocks for run in _runs(block)]
    count = Counter(key for _, key in runs)
    for run, key in runs:
        if count[key] >= _MIN_COUNT:
            _outline(run, key, calls)
    calls.finish()
    return calls.called()


def _outline(run: _Run, key: Hashable, calls: KernelCalls) -> None:
    def build(name: str, _: Sequence[Any]) -> func.FuncOp:
        return _function(name, run)

    symbol = f"repeated_{run.last.name.rpartition('.')[2]}"
    calls.call(run.last, key, symbol, run.operands, calls.locations.union([op.location for op in run.ops]), build)
    for op in reversed(run.ops):
        op.erase()


def _function(name: str, run: _Run) -> func.FuncOp:
    """Emits a private function of the run's operands with its ops, at the insertion point."""
    function = func.FuncOp(name, ([value.type for value in run.operands], []), visibility="private")
    entry = function.add_entry_block()
    known = dict(zip(run.operands, entry.arguments, strict=True))
    with ir.InsertionPoint(entry):
        for op in run.ops:
            for value in _outer_values(op):
                if value not in known:
                    known[value] = value.owner.clone().operation.results[0]
            copy = op.clone().operation
            for inner in (copy, *collect(copy)):
                for number, value in enumerate(inner.operands):
                    inner.operands[number] = known.get(value, value)
            known |= zip(op.results, copy.results, strict=True)
        func.ReturnOp([])
    return function


def _outer_values(op: Any) -> list[Any]:
    """Returns the values from outside of `op` that it or its body uses."""
    inside = collect(op)
    own = {value for inner in inside for value in inner.results}
    own |= {argument for region in op.regions for block in region.blocks for argument in block.arguments}
    return [value for each in (op, *inside) for value in each.operands if value not in own]


def _has_body(op: Any) -> bool:
    return bool(op.operation.name == "func.func" and len(op.regions[0].blocks))


def _runs(block: Any) -> Iterator[_Run]:
    """Yields the runs of a function's body that can be outlined."""
    fills: list[_Run] = []
    for op in [op.operation for op in block.operations]:
        if op.name in VIEWS:
            continue
        run = _run(op) if op.name in KINDS and not len(op.results) else None
        joins = fills and run is not None and run.last.name == _FILL and run.operands == fills[0].operands
        if not joins:
            yield from _join_fills(fills)
            fills = []
        if run is not None and (joins or run.last.name == _FILL):
            fills.append(run)
        elif run is not None:
            yield run


def _join_fills(fills: Sequence[_Run]) -> Iterator[_Run]:
    if fills:
        yield _Run(tuple(op for run in fills for op in run.ops), fills[0].operands)


def _run(op: Any) -> _Run | None:
    """Returns the run of `op` alone, with the view that it fills.

    Returns `None` if it needs other values than memrefs and constants.
    """
    ops: tuple[Any, ...] = (op,)
    values = [value for value in _outer_values(op) if not _is_constant(value)]
    if op.name == _FILL and len(values) == 1 and _is_part(values[0]):
        view = values[0].owner.operation
        ops, values = (view, op), [view.operands[0]]
    operands = tuple(dict.fromkeys(values))
    return _Run(ops, operands) if all(_is_passed_whole(value.type) for value in operands) else None


def _is_constant(value: Any) -> bool:
    return isinstance(value, ir.OpResult) and value.owner.name == _CONSTANT


def _is_part(value: Any) -> bool:
    """True if `value` is a static subview with one use."""
    made = isinstance(value, ir.OpResult) and value.owner.name == _VIEW and len(value.owner.operands) == 1
    return bool(made and len(list(value.uses)) == 1)


def _is_passed_whole(type_: Any) -> bool:
    """True if a value of `type_` is a memref that is passed to calls as it is."""
    try:
        return isinstance(type_, ir.MemRefType) and argument_types([type_]) == [type_]
    except UnsupportedError:
        return False
