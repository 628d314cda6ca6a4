"""`read-in-place`: removes copies that are only read; their readers read the source instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from buddy.compiler.codegen.calling_convention import entry_of
from buddy.compiler.mlir.bindings import ir, memref
from buddy.compiler.mlir.walk import (
    accesses,
    aliases_operand,
    callee_of,
    element_bytes,
    find_ops,
    is_unaliased,
    root_of,
    symbol_of,
)
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import UnsupportedError, as_bytes, layout_of, part
from buddy.compiler.passes.write_in_place import is_after, is_allocated, is_before

_COPIES = ("linalg.copy", "memref.copy")
_READS = frozenset(
    ("memref.load", "memref.prefetch", "vector.load", "vector.maskedload", "vector.gather", "vector.transfer_read")
)


@register
@dataclass(frozen=True)
class ReadInPlace(MlirPass):
    """Functions take dense buffers without an offset, so bufferization copies a slice of a tensor for each call.

    If the slice is dense and not written meanwhile, a pointer to its start is passed instead.
    """

    name: ClassVar[str] = "read-in-place"
    summary: ClassVar[str] = "remove copies that are only read; pass a dense slice by the pointer to its start"

    def run(self, root: Any, context: PassContext) -> None:
        readers = _Readers({symbol_of(op): op.operation for op in root.regions[0].blocks[0] if _is_function(op)})
        entry = entry_of(root)
        for op in find_ops(root, *_COPIES):
            source, target = op.operands
            offset = _dense(source, target, entry)
            if not _is_only_read(op, target, readers):
                reason = "its target is written, or is not a separate buffer"
            elif not _source_is_unchanged(op, source, readers):
                reason = "its source may be written while the copy is in use"
            else:
                reason = (
                    "its source is not dense, or has an offset that no pointer can express" if offset is None else ""
                )
            if offset is None or reason:
                context.remark(self.name, op.location, f"copied: {reason}")
                continue
            context.remark(self.name, op.location, "no copy: its readers read the source")
            allocation = target.owner.operation
            target.replace_all_uses_except(_view_at_start(op, source, target.type, offset, entry), op)
            op.erase()
            allocation.erase()


def _is_function(op: Any) -> bool:
    return bool(op.operation.name == "func.func")


@dataclass
class _Readers:
    """Determines which ops of a module only read a buffer; for calls, by analysing the callee."""

    functions: dict[str, Any]
    known: dict[tuple[str, int], bool] = field(default_factory=dict)
    only_reading: dict[str, bool] = field(default_factory=dict)

    def arguments_only_read(self, function: Any) -> bool:
        """True if `function` only reads its arguments; removing a copy does not change that."""
        name = symbol_of(function)
        if name not in self.only_reading:
            given = function.regions[0].blocks[0].arguments
            shared = [a for a in given if isinstance(a.type, ir.MemRefType) and not is_unaliased(a)]
            self.only_reading[name] = all(map(self.only_read, shared))
        return self.only_reading[name]

    def only_read(self, value: Any) -> bool:
        return all(self.reads(user, number) for user, number in _uses(value))

    def reads(self, op: Any, number: int) -> bool:
        """True if `op` does not write to the buffer that is its operand `number`."""
        if op.name in _READS:
            return True
        if op.name == "func.call":
            return self._callee_reads(callee_of(op), number)
        if op.name.startswith("linalg.") and "operandSegmentSizes" in op.attributes:
            return number < int(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[0])
        return op.name in ("memref.copy", "linalg.transpose", "linalg.broadcast") and number == 0

    def _callee_reads(self, name: str, number: int) -> bool:
        function = self.functions.get(name)
        if function is None or not function.regions[0].blocks:
            return False
        if (name, number) not in self.known:
            self.known[name, number] = False  # for recursive functions
            self.known[name, number] = self.only_read(function.regions[0].blocks[0].arguments[number])
        return self.known[name, number]


def _uses(value: Any) -> Iterator[tuple[Any, int]]:
    """Yields the ops that access the memory of `value`, with the operand number."""
    users = set(accesses(value))
    for user in users:
        for number, operand in enumerate(user.operands):
            if isinstance(operand.type, ir.MemRefType) and root_of(operand) == value:
                yield user, number


def _is_only_read(op: Any, target: Any, readers: _Readers) -> bool:
    """True if `target` is a separate buffer that the copy `op` fills and later ops only read."""
    if not is_allocated(target) or target.owner.operation.block != op.block:
        return False
    uses = [(user, number) for user, number in _uses(target) if user != op]
    return all(is_after(user, op) and readers.reads(user, number) for user, number in uses)


def _source_is_unchanged(op: Any, source: Any, readers: _Readers) -> bool:
    """True if nothing after the copy `op` writes to the buffer of `source`."""
    root = root_of(source)
    if isinstance(root, ir.BlockArgument):
        # Two arguments may be the same tensor; out-parameters do not alias.
        if root.owner.owner.operation.name != "func.func" or is_unaliased(root):
            return False
        return readers.arguments_only_read(root.owner.owner.operation)
    if not is_allocated(root):
        return False
    return all(readers.reads(user, n) or (is_before(user, op) and not aliases_operand(user)) for user, n in _uses(root))


def _dense(source: Any, target: Any, entry: Any) -> int | None:
    """Returns the byte offset of `source` in its root, if it has the layout of `target` and can be pointed to."""
    try:
        found, wanted = layout_of(source.type), layout_of(target.type)
    except UnsupportedError:
        return None
    pairs = zip(found.shape, found.strides, wanted.strides, strict=True)
    if found.offset is None or wanted.offset != 0 or any(size > 1 and a != b for size, a, b in pairs):
        return None
    if found.offset == 0:
        return 0
    root = root_of(source)
    movable = isinstance(root, ir.BlockArgument) and entry is not None and root.owner.owner.operation == entry
    before = _bytes_before(source) if movable and root.type.has_static_shape else None
    return None if before is None else before + found.offset * element_bytes(source.type.element_type)


def _bytes_before(value: Any) -> int | None:
    """Returns the bytes of an argument before the base that the offset of `value`, a view of it, is relative to.

    Each `memref.view` starts a new base; `None` if one of them has a dynamic byte shift.
    """
    before = 0
    while isinstance(value, ir.OpResult):
        if value.owner.name == "memref.view":
            shift = value.owner.operands[1]
            if not isinstance(shift, ir.OpResult) or shift.owner.name != "arith.constant":
                return None
            before += int(ir.IntegerAttr(shift.owner.attributes["value"]).value)
        value = value.owner.operands[0]
    return before


def _view_at_start(op: Any, source: Any, type_: Any, offset: int, entry: Any) -> Any:
    """Returns `source`, at byte `offset` of its root or without offset, as a memref that has no offset."""
    with ir.InsertionPoint(op), op.location:
        if offset:
            root = root_of(source)
            memory = root if _is_bytes(root) else as_bytes(entry, root)
            return part(memory, offset, type_)
        if source.type == type_:
            return source
        strides, _ = type_.get_strides_and_offset()
        return memref.reinterpret_cast(type_, source, [], [], [], [0], list(type_.shape), list(strides))


def _is_bytes(root: Any) -> bool:
    return any(use.owner.operation.name == "memref.view" for use in root.uses)
