"""`fuse-rows`: fuses consecutive row-wise ops (softmax, normalisations) into one loop over rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import NON_ACCESSING_OPS, VIEW_OPS, enclosing_entry_block, nested_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.emit import KernelEmitter
from buddy.compiler.passes.kernels.epilogue import EPILOGUE, PROLOGUE
from buddy.compiler.passes.kernels.rows.fusion import (
    Bounds,
    OperandAccess,
    RowLoop,
    RowOp,
    RowStage,
    leading_rows,
    refine_bounds,
    row_bytes,
    row_conflict,
    split_rows,
    stages_of,
)
from buddy.compiler.passes.kernels.structured import STRUCTURED_OPS, StructuredOp, structure_of
from buddy.compiler.passes.write_in_place import is_allocated


@register
@dataclass(frozen=True)
class FuseRows(MlirPass):
    """Fuses each reduction with neighbours that have the same outer loops, if no row needs values of another row.

    A temporary buffer that only the fused ops use shrinks to one row. Ops are not fused if one of their rows has more
    than `max_row_kib` KiB, and would not stay in cache; 0 means half of the L2 cache.
    """

    name: ClassVar[str] = "fuse-rows"
    summary: ClassVar[str] = "fuse softmax, norms and their neighbours into one loop over rows that stay in cache"

    max_row_kib: int = 0

    def run(self, root: ir.Operation, context: PassContext) -> None:
        limit = self.max_row_kib << 10 or context.target.l2 // 2
        blocks = {op.block: op for op in nested_ops(root) if op.name in STRUCTURED_OPS}
        for block, op in blocks.items():
            if (enclosing := enclosing_entry_block(op)) is None:
                continue
            entry, is_parallel = enclosing
            for run in _runs(block):
                for group in _form_groups(run, limit, context):
                    _fuse(KernelEmitter(entry, is_parallel), group, context)


@dataclass
class _Op:
    """A structured op, and whether it belongs to a group."""

    op: Any
    structured: StructuredOp
    is_grouped: bool = False

    @property
    def is_reduction(self) -> bool:
        return bool(self.structured.reductions)


@dataclass
class _Group:
    """Neighbouring ops that become one loop over `bounds[-1]` rows. `row_ops` has each member, split at `bounds`."""

    members: list[_Op]
    bounds: Bounds
    row_ops: list[RowOp] = field(default_factory=list)


def _runs(block: ir.Block) -> list[list[_Op]]:
    """Returns runs of two or more structured ops of a block, without other ops between them that may access memory."""
    runs: list[list[_Op]] = [[]]
    for op in block.operations:
        operation = op.operation
        structured = _fusable_structure(operation)
        if structured is not None:
            runs[-1].append(_Op(operation, structured))
        elif operation.name not in NON_ACCESSING_OPS and not operation.name.startswith("arith."):
            runs.append([])
    return [run for run in runs if len(run) > 1]


def _fusable_structure(op: ir.Operation) -> StructuredOp | None:
    """Returns the structure of `op`; `None` if it cannot be fused.

    An op cannot be fused if it is not structured, is a contraction, has a loop without iterations, or belongs to a
    kernel as a prologue or epilogue.
    """
    if op.name not in STRUCTURED_OPS or EPILOGUE in op.attributes or PROLOGUE in op.attributes:
        return None
    try:
        structured = structure_of(op)
    except UnsupportedError:
        return None
    is_empty = any(loop.size == 0 for loop in structured.loops)
    return None if is_empty or _is_contraction(structured) else structured


def _is_contraction(op: StructuredOp) -> bool:
    """True if two inputs vary along a reduction, as in matmuls and convolutions, which have their own kernels."""
    return any(sum(op.reads(i) and bool(loop.strides[i]) for i in range(op.inputs)) > 1 for loop in op.reductions)


def _form_groups(run: Sequence[_Op], limit: int, context: PassContext) -> Iterator[_Group]:
    """Yields groups of ops to fuse, whose rows have at most `limit` bytes; each op is in at most one group."""
    for position, reduction in enumerate(run):
        if not reduction.is_reduction or reduction.is_grouped:
            continue
        try:
            group = _grow_group(run, position, limit)
        except UnsupportedError as reason:
            context.remark(FuseRows.name, reduction.op.location, f"{reduction.op.name} not fused by rows: {reason}")
            continue
        for member in group.members:
            member.is_grouped = True
        yield group


def _grow_group(run: Sequence[_Op], position: int, limit: int) -> _Group:
    """Returns the reduction at `position` with all neighbours that can be fused with it.

    Raises `UnsupportedError` with the reason if no neighbour can be fused.
    """
    reduction = run[position]
    row_count = leading_rows(reduction.structured)
    if row_count == 1:
        raise UnsupportedError("it has a single row")
    bounds = refine_bounds((1, row_count), reduction.structured)
    assert bounds is not None
    group = _Group([reduction], bounds, [split_rows(reduction.structured, bounds)])
    if row_bytes(group.row_ops[0]) > limit:
        raise UnsupportedError(f"a row of {row_bytes(group.row_ops[0])} bytes does not stay in cache")
    reason = ""
    # Backward and then forward from the reduction, each up to the first op that cannot be added.
    for candidates in (range(position - 1, -1, -1), range(position + 1, len(run))):
        for candidate in candidates:
            reason_not_added = _try_add(group, run[candidate], candidate < position, limit)
            if reason_not_added:
                reason = reason or reason_not_added
                break
    _trim(group)
    if not _shares_rows(group):
        raise UnsupportedError(f"no neighbour has the same rows{f' ({reason})' if reason else ''}")
    return group


def _try_add(group: _Group, op: _Op, is_before: bool, limit: int) -> str:
    """Adds `op` to `group`: as its first member if it `is_before` the group, otherwise as its last.

    All members are split again at the bounds that `op` refines. Returns "", or the reason why the op was not added.
    """
    if op.is_grouped:
        return "the neighbour belongs to another loop"
    bounds = refine_bounds(group.bounds, op.structured)
    if bounds is None:
        return "the neighbour has other outer loops"
    try:
        row_ops = [split_rows(member.structured, bounds) for member in group.members]
        new_row_op = split_rows(op.structured, bounds)
    except UnsupportedError as reason:
        return str(reason)
    if row_bytes(new_row_op) > limit:
        return "the neighbour's rows do not stay in cache"
    reason_not_added = next(
        (text for other in (*row_ops, new_row_op) if (text := row_conflict(new_row_op, other, bounds))), ""
    )
    if not reason_not_added:
        index = 0 if is_before else len(row_ops)
        group.bounds, group.row_ops = bounds, [*row_ops[:index], new_row_op, *row_ops[index:]]
        group.members.insert(index, op)
    return reason_not_added


def _trim(group: _Group) -> None:
    """Drops ops at both ends of the group that share no written buffer with any other member."""
    for end in (0, -1):
        while len(group.members) > 1 and not _is_connected(group, end):
            del group.members[end], group.row_ops[end]


def _is_connected(group: _Group, end: int) -> bool:
    """True if the op at `end` (0 or -1) and another member access the same buffer, and one of them writes it."""
    end_op = group.row_ops[end]
    other_accesses = [access for op in group.row_ops if op is not end_op for access in op.accesses]
    return any(
        access.buffer == other.buffer and (access.written or other.written)
        for access in end_op.accesses
        for other in other_accesses
    )


def _shares_rows(group: _Group) -> bool:
    """True if two ops access rows of more than one element in the same buffer."""
    buffers = [{access.buffer for access in op.accesses if any(access.inner_strides)} for op in group.row_ops]
    return any(not first.isdisjoint(second) for first, second in combinations(buffers, 2))


# ---- rewriting -------------------------------------------------------------------------------------------------------


def _fuse(e: KernelEmitter, group: _Group, context: PassContext) -> None:
    """Replaces the ops of `group` by one loop over rows."""
    ops = [member.op for member in group.members]
    temporaries = _temporaries(group)
    row_ops, placed = _place_temporaries(group.row_ops, temporaries)
    scratch = [root for root in temporaries if root not in placed]
    stages = stages_of(row_ops, scratch)
    unstored = {root for stage in stages for root in stage.unstored}
    scratch = [root for root in scratch if root not in unstored]
    location = context.locations.union([op.location for op in ops])
    with ir.InsertionPoint(ops[-1]), location:
        loop = RowLoop(e, group.bounds, stages, scratch)
        loop.emit([_stage_location(stage, context) for stage in stages])
    text = f"{len(ops)} ops in one loop over {group.bounds[-1]} rows, {len(stages)} stages"
    if temporaries:
        text += f", {len(temporaries)} temporaries of one row each"
    context.remark(FuseRows.name, location, text)
    for op in ops:
        op.erase()
    for root in temporaries:
        _erase_with_views(root)


def _stage_location(stage: RowStage, context: PassContext) -> ir.Location:
    return context.locations.union([op.structured.op.location for op in stage.ops])


def _temporaries(group: _Group) -> list[ir.Value]:
    """Returns the allocations that only the group's ops use."""
    ops = {member.op for member in group.members}
    roots = list(dict.fromkeys(access.buffer for op in group.row_ops for access in op.accesses if access.written))
    return [root for root in roots if is_allocated(root) and all(user in ops for user in _users(root))]


def _users(value: ir.Value) -> Iterator[ir.Operation]:
    """Yields the ops that use a buffer, directly or through views."""
    for use in value.uses:
        owner = use.owner.operation
        if owner.name in VIEW_OPS:
            yield from _users(owner.results[0])
        else:
            yield owner


def _erase_with_views(value: ir.Value) -> None:
    """Erases a buffer that is used by nothing but views, and the views."""
    for use in list(value.uses):
        _erase_with_views(use.owner.operation.results[0])
    value.owner.operation.erase()


def _place_temporaries(row_ops: list[RowOp], temporaries: list[ir.Value]) -> tuple[list[RowOp], set[ir.Value]]:
    """Stores each temporary in the rows of a result of the last op that reads it, if possible.

    Returns the ops with the accesses redirected, and the temporaries that need no memory of their own.
    """
    placed: set[Any] = set()
    for root in temporaries:
        accesses = _find_result_row(row_ops, root, temporaries)
        if accesses is None:
            continue
        temporary, result = accesses
        row_ops = [_redirect(op, temporary, result) for op in row_ops]
        placed.add(root)
    return row_ops, placed


def _find_result_row(
    row_ops: list[RowOp], root: ir.Value, temporaries: list[ir.Value]
) -> tuple[OperandAccess, OperandAccess] | None:
    """Returns the last access to the temporary `root`, and the same op's access to a result that may hold it.

    The result has the same layout, and no op accesses it before. Returns `None` if there is no such result.
    """
    last_index = max(i for i, op in enumerate(row_ops) if any(access.buffer == root for access in op.accesses))
    last = row_ops[last_index]
    temporary = next(access for access in last.accesses if access.buffer == root)
    if (
        last.structured.reductions
        or temporary.written
        or not any(temporary.inner_strides)
        or not _is_dense(last, temporary)
    ):
        return None
    element_range = temporary.offset, temporary.inner_strides, temporary.span
    all_accesses = [access for op in row_ops for access in op.accesses if access.buffer == root]
    if any((access.offset, access.inner_strides, access.span) != element_range for access in all_accesses):
        return None
    for result in last.accesses:
        if result.written and result.buffer not in temporaries and _has_same_layout(temporary, result):
            accessed_before = (access.buffer for op in row_ops[:last_index] for access in op.accesses)
            if (
                result.buffer not in accessed_before
                and sum(access.buffer == result.buffer for access in last.accesses) == 1
            ):
                return temporary, result
    return None


def _is_dense(op: RowOp, access: OperandAccess) -> bool:
    """True if `access` covers a range of elements without gaps or repetition."""
    return access.span == math.prod(loop.size for loop in op.inner_loops) and all(access.inner_strides)


def _has_same_layout(a: OperandAccess, b: OperandAccess) -> bool:
    return a.inner_strides == b.inner_strides and a.value.type.element_type == b.value.type.element_type


def _redirect(op: RowOp, temporary: OperandAccess, result: OperandAccess) -> RowOp:
    """Returns `op` with all accesses to the buffer of `temporary` redirected to the rows of `result`."""
    accesses = tuple(
        replace(access, value=result.value, buffer=result.buffer, offset=result.offset, row_strides=result.row_strides)
        if access.buffer == temporary.buffer
        else access
        for access in op.accesses
    )
    return replace(op, accesses=accesses)
