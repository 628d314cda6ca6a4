"""Where a function's buffers live: one arena a function, in which buffers that do not live together share room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.bindings import arith, ir, memref
from buddy.compiler.passes.base import MlirPass, PassContext, register

ALIGNMENT = 64

_VIEWS = (
    "memref.cast", "memref.collapse_shape", "memref.expand_shape", "memref.reinterpret_cast", "memref.reshape",
    "memref.subview", "memref.transpose", "memref.view",
)  # fmt: skip


@dataclass(frozen=True)
class Buffer:
    """An allocation: its size in bytes, and the positions in the block of its first and last use."""

    op: Any
    size: int
    first: int
    last: int


@register
@dataclass(frozen=True)
class PlanMemory(MlirPass):
    """Without `arena` each buffer is freed after its last use. Without the pass, buffers are never freed."""

    name = "plan-memory"
    summary = "one arena per function for all its buffers, reused by liveness; without it, buffers are never freed"
    arena: bool = True

    def run(self, root: Any, context: PassContext) -> None:
        for function in root.regions[0].blocks[0]:
            operation = function.operation
            if operation.name != "func.func" or not operation.regions[0].blocks:
                continue
            buffers = list(_buffers(operation.regions[0].blocks[0]))
            if not buffers:
                continue
            size = _to_arena(operation, buffers) if self.arena else _freed_after_use(operation, buffers)
            total = sum(buffer.size for buffer in buffers)
            context.remark(self.name, operation.location, f"{len(buffers)} buffers, {total} bytes, in {size}")


def _buffers(block: Any) -> Iterator[Buffer]:
    """The static allocations of a block that nothing frees yet."""
    positions = {op.operation: i for i, op in enumerate(block.operations)}
    for op in block.operations:
        if op.operation.name != "memref.alloc":
            continue
        kind = ir.MemRefType(op.operation.results[0].type)
        uses = list(_users(op.operation.results[0]))
        if not kind.has_static_shape or any(user.name == "memref.dealloc" for user in uses):
            continue
        found = [positions[_in_block(user, block)] for user in uses]
        start = positions[op.operation]
        yield Buffer(op.operation, _bytes(kind), min(found, default=start), max(found, default=start))


def _bytes(kind: Any) -> int:
    total = _element_bytes(kind.element_type)
    for size in kind.shape:
        total *= size
    return total


def _element_bytes(element: Any) -> int:
    if isinstance(element, ir.IndexType):
        return 8
    if isinstance(element, ir.ComplexType):
        return 2 * _element_bytes(element.element_type)
    return max(1, element.width // 8)


def _users(value: Any) -> Iterator[Any]:
    """The ops that read or write the memory behind `value`, through views too."""
    for use in value.uses:
        owner = use.owner.operation
        yield owner
        if owner.name in _VIEWS:
            for result in owner.results:
                yield from _users(result)


def _in_block(op: Any, block: Any) -> Any:
    """The op of `block` that holds `op`."""
    while op.block != block:
        op = op.parent.operation
    return op


def _offsets(buffers: Sequence[Buffer]) -> tuple[list[int], int]:
    """Byte offsets, and the arena's size: the largest first, each at the lowest place free while it lives."""
    offsets = [0] * len(buffers)
    placed: list[int] = []
    for i in sorted(range(len(buffers)), key=lambda i: -buffers[i].size):
        busy = sorted((offsets[j], offsets[j] + buffers[j].size) for j in placed if _overlap(buffers[i], buffers[j]))
        offset = 0
        for start, end in busy:
            if offset + buffers[i].size <= start:
                break
            offset = max(offset, -(-end // ALIGNMENT) * ALIGNMENT)
        offsets[i] = offset
        placed.append(i)
    return offsets, max(offset + buffer.size for offset, buffer in zip(offsets, buffers, strict=True))


def _overlap(a: Buffer, b: Buffer) -> bool:
    return a.first <= b.last and b.first <= a.last


def _to_arena(function: Any, buffers: Sequence[Buffer]) -> int:
    offsets, size = _offsets(buffers)
    block = function.regions[0].blocks[0]
    with ir.InsertionPoint.at_block_begin(block), function.location:
        kind = ir.MemRefType.get([size], ir.IntegerType.get_signless(8))
        alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), ALIGNMENT)
        arena = memref.AllocOp(kind, [], [], alignment=alignment).result
    for buffer, offset in zip(buffers, offsets, strict=True):
        with ir.InsertionPoint(buffer.op), buffer.op.location:
            shift = arith.constant(ir.IndexType.get(), offset)
            view = memref.ViewOp(buffer.op.results[0].type, arena, shift, [])
        buffer.op.results[0].replace_all_uses_with(view.result)
        buffer.op.erase()
    _free(block, len(block.operations) - 1, arena)
    return size


def _freed_after_use(function: Any, buffers: Sequence[Buffer]) -> int:
    block = function.regions[0].blocks[0]
    for buffer in sorted(buffers, key=lambda found: -found.last):
        _free(block, buffer.last + 1, buffer.op.results[0])
    return sum(buffer.size for buffer in buffers)


def _free(block: Any, position: int, value: Any) -> None:
    """Free `value` before op number `position`."""
    before = block.operations[position].operation
    with ir.InsertionPoint(before), before.location:
        memref.DeallocOp(value)
