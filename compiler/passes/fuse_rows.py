"""`fuse-rows`: fuses consecutive row-wise ops (softmax, normalisations) into one loop over rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import NO_ACCESS, VIEWS, collect, enclosing_entry_block
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.emit import KernelEmitter
from buddy.compiler.passes.kernels.epilogue import EPILOGUE, PROLOGUE
from buddy.compiler.passes.kernels.rows.kernel import (
    Bounds,
    OperandAccess,
    RowOp,
    conflict,
    leading_rows,
    refine_bounds,
    row_bytes,
    split_rows,
)
from buddy.compiler.passes.kernels.rows.stages import RowLoop, RowStage, stages_of
from buddy.compiler.passes.kernels.structured import KINDS, Structured, structure_of


@register
@dataclass(frozen=True)
class FuseRows(MlirPass):
    """Around each reduction, fuses neighbours with the same outer loops, if no row needs another row's values.

    Temporaries that are used within a row shrink to one row. `max_row_kib` is the size from which a row counts as too
    long for the cache; 0 means half of the L2 cache.
    """

    name: ClassVar[str] = "fuse-rows"
    summary: ClassVar[str] = "softmax, norms and their neighbours become one loop over rows that stay in cache"

    max_row_kib: int = 0

    def run(self, root: Any, context: PassContext) -> None:
        limit = self.max_row_kib << 10 or context.target.l2 // 2
        blocks = {op.block: op for op in collect(root) if op.name in KINDS}
        for block, op in blocks.items():
            if (around := enclosing_entry_block(op)) is None:
                continue
            entry, shared = around
            for run in _runs(block):
                for group in _groups(run, limit, context):
                    _fuse(KernelEmitter(entry, shared), group, context)


@dataclass
class _Op:
    """A structured op and its position among its neighbours."""

    op: Any
    structured: Structured
    taken: bool = False

    @property
    def reduces(self) -> bool:
        return bool(self.structured.reductions)


@dataclass
class _Group:
    """Neighbours that become one loop over `bounds[-1]` rows."""

    members: list[_Op]
    bounds: Bounds
    rows: list[RowOp] = field(default_factory=list)


def _runs(block: Any) -> list[list[_Op]]:
    """Returns the structured ops of a block, divided where another op may access memory."""
    runs: list[list[_Op]] = [[]]
    for op in block.operations:
        operation = op.operation
        found = _analyse(operation)
        if found is not None:
            runs[-1].append(_Op(operation, found))
        elif operation.name not in NO_ACCESS and not operation.name.startswith("arith."):
            runs.append([])
    return [run for run in runs if len(run) > 1]


def _analyse(op: Any) -> Structured | None:
    """Returns the loops of `op`, or `None` if it is not a structured op, does nothing, or belongs to a kernel."""
    if op.name not in KINDS or EPILOGUE in op.attributes or PROLOGUE in op.attributes:
        return None
    try:
        found = structure_of(op)
    except UnsupportedError:
        return None
    nothing = any(loop.size == 0 for loop in found.loops)
    return None if nothing or _is_product(found) else found


def _is_product(op: Structured) -> bool:
    """True if two inputs vary along a reduction, as in matmuls and convolutions, which have their own kernels."""
    return any(sum(op.reads(i) and bool(loop.strides[i]) for i in range(op.inputs)) > 1 for loop in op.reductions)


def _groups(run: Sequence[_Op], limit: int, context: PassContext) -> Iterator[_Group]:
    for position, anchor in enumerate(run):
        if not anchor.reduces or anchor.taken:
            continue
        try:
            group = _grow_group(run, position, limit)
        except UnsupportedError as reason:
            context.remark(FuseRows.name, anchor.op.location, f"{anchor.op.name} not fused by rows: {reason}")
            continue
        for member in group.members:
            member.taken = True
        yield group


def _grow_group(run: Sequence[_Op], position: int, limit: int) -> _Group:
    """Returns the group around the reduction at `position`.

    Raises `UnsupportedError` with the reason.
    """
    anchor = run[position]
    count = leading_rows(anchor.structured)
    if count == 1:
        raise UnsupportedError("it has a single row")
    bounds = refine_bounds((1, count), anchor.structured)
    assert bounds is not None
    group = _Group([anchor], bounds, [split_rows(anchor.structured, bounds)])
    if row_bytes(group.rows[0]) > limit:
        raise UnsupportedError(f"a row of {row_bytes(group.rows[0])} bytes does not stay in cache")
    reason = ""
    for side in (range(position - 1, -1, -1), range(position + 1, len(run))):
        for number in side:
            reason_not_added = _try_add(group, run[number], number < position, limit)
            if reason_not_added:
                reason = reason or reason_not_added
                break
    _trim(group)
    if not _shares_rows(group):
        raise UnsupportedError(f"no neighbour has the same rows{f' ({reason})' if reason else ''}")
    return group


def _try_add(group: _Group, op: _Op, first: bool, limit: int) -> str:
    """Adds `op` to `group`, as its first or last member. Returns "", or the reason why it was not added."""
    if op.taken:
        return "the neighbour belongs to another loop"
    bounds = refine_bounds(group.bounds, op.structured)
    if bounds is None:
        return "the neighbour has other outer loops"
    try:
        rows = [split_rows(member.structured, bounds) for member in group.members]
        new = split_rows(op.structured, bounds)
    except UnsupportedError as reason:
        return str(reason)
    if row_bytes(new) > limit:
        return "the neighbour's rows do not stay in cache"
    found = next((text for other in (*rows, new) if (text := conflict(new, other, bounds))), "")
    if not found:
        place = 0 if first else len(rows)
        group.bounds, group.rows = bounds, [*rows[:place], new, *rows[place:]]
        group.members.insert(place, op)
    return found


def _trim(group: _Group) -> None:
    """Drops ops at both ends that share no written buffer with any of the others."""
    for end in (0, -1):
        while len(group.members) > 1 and not _connected(group, end):
            del group.members[end], group.rows[end]


def _connected(group: _Group, end: int) -> bool:
    own = group.rows[end]
    others = [op for op in group.rows if op is not own]
    return any(
        a.root == b.root and (a.written or b.written) for a in own.accesses for op in others for b in op.accesses
    )


def _shares_rows(group: _Group) -> bool:
    """True if two ops access the same rows of a buffer."""
    walked = [{access.root for access in op.accesses if any(access.inner)} for op in group.rows]
    return any(a & b for i, a in enumerate(walked) for b in walked[i + 1 :])


# ---- rewriting -------------------------------------------------------------------------------------------------------


def _fuse(e: KernelEmitter, group: _Group, context: PassContext) -> None:
    ops = [member.op for member in group.members]
    temporary = _temporaries(group)
    rows, placed = _place_temporaries(group.rows, temporary, group.bounds)
    scratch = [root for root in temporary if root not in placed]
    stages = stages_of(rows, scratch)
    unstored = {root for stage in stages for root in stage.unstored}
    scratch = [root for root in scratch if root not in unstored]
    location = context.locations.union([op.location for op in ops])
    with ir.InsertionPoint(ops[-1]), location:
        loop = RowLoop(e, group.bounds, stages, scratch)
        loop.emit([_stage_location(stage, context) for stage in stages])
    text = f"{len(ops)} ops in one loop over {group.bounds[-1]} rows, {len(stages)} stages"
    if temporary:
        text += f", {len(temporary)} temporaries of one row each"
    context.remark(FuseRows.name, location, text)
    for op in ops:
        op.erase()
    for root in temporary:
        _erase_dead(root)


def _stage_location(stage: RowStage, context: PassContext) -> Any:
    return context.locations.union([op.op.op.location for op in stage.ops])


def _temporaries(group: _Group) -> list[Any]:
    """Returns the allocations that only the group's ops use."""
    ops = {member.op for member in group.members}
    roots = list(dict.fromkeys(access.root for op in group.rows for access in op.accesses if access.written))
    return [root for root in roots if _allocated(root) and all(user in ops for user in _users(root))]


def _allocated(root: Any) -> bool:
    return isinstance(root, ir.OpResult) and root.owner.name == "memref.alloc"


def _users(value: Any) -> Iterator[Any]:
    for use in value.uses:
        owner = use.owner.operation
        if owner.name in VIEWS:
            yield from _users(owner.results[0])
        else:
            yield owner


def _erase_dead(value: Any) -> None:
    for use in list(value.uses):
        _erase_dead(use.owner.operation.results[0])
    value.owner.operation.erase()


def _place_temporaries(rows: list[RowOp], temporary: list[Any], bounds: Bounds) -> tuple[list[RowOp], set[Any]]:
    """Stores a temporary in the rows of the result that is computed from it last, if possible.

    Returns the ops, and the temporaries that were placed.
    """
    placed: set[Any] = set()
    for root in temporary:
        found = _find_result_row(rows, root, temporary)
        if found is None:
            continue
        own, result = found
        rows = [_redirect(op, own, result) for op in rows]
        placed.add(root)
    return rows, placed


def _find_result_row(rows: list[RowOp], root: Any, temporary: list[Any]) -> tuple[OperandAccess, OperandAccess] | None:
    """Returns the last access to `root`, and the access to an unused result of the same shape, which may hold it."""
    touching = [i for i, op in enumerate(rows) if any(access.root == root for access in op.accesses)]
    last = rows[touching[-1]]
    own = next(access for access in last.accesses if access.root == root)
    if last.op.reductions or own.written or not any(own.inner) or not _dense(last, own):
        return None
    everywhere = [access for op in rows for access in op.accesses if access.root == root]
    if any((access.offset, access.inner, access.span) != (own.offset, own.inner, own.span) for access in everywhere):
        return None
    for result in last.accesses:
        if result.written and result.root not in temporary and _same_layout(own, result):
            before = (access.root for op in rows[: touching[-1]] for access in op.accesses)
            if result.root not in before and sum(access.root == result.root for access in last.accesses) == 1:
                return own, result
    return None


def _dense(op: RowOp, access: OperandAccess) -> bool:
    return access.span == math.prod(loop.size for loop in op.inner) and all(access.inner)


def _same_layout(own: OperandAccess, result: OperandAccess) -> bool:
    return own.inner == result.inner and own.value.type.element_type == result.value.type.element_type


def _redirect(op: RowOp, own: OperandAccess, result: OperandAccess) -> RowOp:
    """Returns `op` with accesses to `own` redirected to the rows of `result`."""
    accesses = tuple(
        replace(access, value=result.value, root=result.root, offset=result.offset, rows=result.rows)
        if access.root == own.root
        else access
        for access in op.accesses
    )
    return replace(op, accesses=accesses)
