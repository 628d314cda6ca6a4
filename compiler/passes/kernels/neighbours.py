"""Finds the ops around a contraction or convolution that its kernel absorbs: prologue, epilogue, fill with zeros.

`fuse-epilogues` has marked the prologue and the epilogue, and moved them next to the contraction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import root_of, zero_fill_before
from buddy.compiler.passes.kernels.access import Loop, SizeAndStride, UnsupportedError, is_used
from buddy.compiler.passes.kernels.epilogue import (
    EPILOGUE,
    PROLOGUE,
    EpilogueOp,
    ResultSpec,
    is_marked,
    match_stage,
    operand_number,
    split_strides,
)
from buddy.compiler.passes.kernels.weights import drop_dead_views

_RESULT = 2  # the number of the operand of a contraction that is its result, C


class _HasLoops(Protocol):
    @property
    def loops(self) -> tuple[Loop, ...]: ...


# A contraction or convolution: it has loops over C, with vectors along the last one.
Product = TypeVar("Product", bound=_HasLoops)
# Splits the loops of a product at the given strides in C, where possible.
Split = Callable[[Product, Sequence[int]], Product]


@dataclass(frozen=True)
class FusedNeighbours(Generic[Product]):
    """The ops that the kernel of `contraction` absorbs, and `spec`, which describes them for the kernel.

    `notes` describe the ops for a remark. `locations` are those of the ops in `absorbed`, except a fill with zeros.
    """

    contraction: Product
    spec: ResultSpec
    absorbed: tuple[Any, ...]
    notes: tuple[str, ...]
    locations: tuple[Any, ...] = field(default=())

    def erase(self) -> None:
        """Erases the absorbed ops, and the views and allocations that only they used."""
        for op in self.absorbed:
            operands = [value for value in op.operands if isinstance(value.type, ir.MemRefType)]
            op.erase()
            for value in operands:
                drop_unused(value)


def find_neighbours(op: ir.Operation, contraction: Product, split: Split[Product]) -> FusedNeighbours[Product]:
    """Returns the ops around `op` (on memrefs) that its kernel absorbs.

    Does not erase them, since the kernel may still be rejected. The loops of the returned contraction are those of
    `contraction`, split by `split` where an absorbed op requires it.
    """
    result, notes, absorbed = op.operands[_RESULT], list[str](), list[Any]()
    stages: dict[str, EpilogueOp | None] = {PROLOGUE: None, EPILOGUE: None}
    for mark, neighbour in ((PROLOGUE, _prologue_of(op)), (EPILOGUE, _epilogue_of(op))):
        if neighbour is None:
            continue
        try:
            contraction, stages = _add_stage(split, contraction, stages, mark, neighbour, result)
        except UnsupportedError as reason:
            notes.append(f"{neighbour.name} not fused: {reason}")
            del neighbour.attributes[mark]
            continue
        absorbed.append(neighbour)
        notes.append(_describe(mark, neighbour))
    fill = None if stages[PROLOGUE] else zero_fill_before(op, result)
    accumulate = fill is None and stages[PROLOGUE] is None
    if accumulate:
        notes.append("adds to C")
    strides = tuple(loop.strides[_RESULT] for loop in contraction.loops)
    spec = ResultSpec(strides, accumulate, stages[PROLOGUE], stages[EPILOGUE])
    locations = tuple(neighbour.location for neighbour in absorbed)
    if fill is not None:
        absorbed.append(fill)
    return FusedNeighbours(contraction, spec, tuple(absorbed), tuple(notes), locations)


def _extents(contraction: _HasLoops) -> list[SizeAndStride]:
    """Returns size and stride in C of each loop."""
    return [(loop.size, loop.strides[_RESULT]) for loop in contraction.loops]


def _add_stage(
    split: Split[Product],
    contraction: Product,
    stages: dict[str, EpilogueOp | None],
    mark: str,
    op: ir.Operation,
    result: ir.Value,
) -> tuple[Product, dict[str, EpilogueOp | None]]:
    """Adds `op`, which has the attribute `mark` and accesses `result`, to the stages.

    Returns the contraction, its loops split as `op` requires, and all stages in terms of these loops.
    """
    kernel_operand = operand_number(op, result)
    contraction = split(contraction, split_strides(op, kernel_operand))
    matched = {mark: match_stage(op, kernel_operand, _extents(contraction))}
    for other_mark, stage in stages.items():
        if stage is not None:
            matched[other_mark] = match_stage(stage.op.op, stage.kernel_operand, _extents(contraction))
    return contraction, {**stages, **matched}


def _describe(mark: str, op: ir.Operation) -> str:
    """Returns the note for a remark on a fused op, such as "epilogue of linalg.generic (2 scalar ops)"."""
    count = len(op.regions[0].blocks[0].operations) - 1
    phrase = "starts from" if mark == PROLOGUE else "epilogue of"
    return f"{phrase} {op.name}" + (f" ({count} scalar op{'s' if count != 1 else ''})" if count else "")


def _epilogue_of(op: ir.Operation) -> ir.Operation | None:
    """Returns the op that is marked as an epilogue and reads the result of `op`, or `None`."""
    result = op.operands[_RESULT]
    return next((user for user in _users(root_of(result)) if is_marked(user, EPILOGUE, result)), None)


def _prologue_of(op: ir.Operation) -> ir.Operation | None:
    """Returns the last op before `op` that uses its result buffer, if it is marked as a prologue; else `None`."""
    previous = None
    for user in _users(root_of(op.operands[_RESULT])):
        is_nearer = previous is None or previous.is_before_in_block(user)
        if user.block == op.block and user != op and user.is_before_in_block(op) and is_nearer:
            previous = user
    return previous if previous is not None and is_marked(previous, PROLOGUE, op.operands[_RESULT]) else None


def _users(value: ir.Value) -> Sequence[ir.Operation]:
    """Returns the ops that use `value`, also through views of it."""
    users: list[Any] = []
    for use in value.uses:
        owner = use.owner.operation
        if owner.name.startswith("memref.") and len(owner.results) == 1:
            users += _users(owner.results[0])
        else:
            users.append(owner)
    return users


def drop_unused(value: ir.Value) -> None:
    """Erases the views that produce `value`, and the allocation of its buffer, if they are unused."""
    root = root_of(value)
    drop_dead_views(value)
    is_allocation = isinstance(root, ir.OpResult) and root.owner.name == "memref.alloc"
    if is_allocation and not is_used(root):
        root.owner.erase()
