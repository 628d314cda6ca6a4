"""`read-in-place`: removes copies that are only read; their readers read the source instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from buddy.compiler.codegen.calling_convention import entry_of
from buddy.compiler.mlir.bindings import ir, memref
from buddy.compiler.mlir.walk import (
    accessing_ops,
    aliases_operand,
    callee_of,
    constant_of,
    element_bytes,
    find_ops,
    is_unaliased,
    root_of,
    symbol_of,
)
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import UnsupportedError, byte_view, layout_of, retype_as_bytes
from buddy.compiler.passes.write_in_place import is_after, is_allocated, is_before, is_function

_COPIES = ("linalg.copy", "memref.copy")
_READS = frozenset(
    ("memref.load", "memref.prefetch", "vector.load", "vector.maskedload", "vector.gather", "vector.transfer_read")
)


@register
@dataclass(frozen=True)
class ReadInPlace(MlirPass):
    """Removes copies whose source is not written while they are in use.

    Functions take dense buffers without an offset, so bufferization copies a slice of a tensor for each call. If the
    slice is dense, a pointer to its start is passed instead.
    """

    name: ClassVar[str] = "read-in-place"
    summary: ClassVar[str] = "remove copies that are only read; pass a dense slice by the pointer to its start"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        readers = _Readers({symbol_of(op): op.operation for op in root.regions[0].blocks[0] if is_function(op)})
        entry = entry_of(root)
        for op in find_ops(root, *_COPIES):
            source, target = op.operands
            offset = _offset_of_source(source, target, entry)
            reason = ""
            if not _is_only_read(op, target, readers):
                reason = "its target is written, or is not a separate buffer"
            elif not _is_source_unchanged(op, source, readers):
                reason = "its source may be written while the copy is in use"
            elif offset is None:
                reason = "its source is not dense, or has an offset that no pointer can express"
            if offset is None or reason:
                context.remark(self.name, op.location, f"copied: {reason}")
                continue
            context.remark(self.name, op.location, "no copy: its readers read the source")
            allocation = target.owner.operation
            target.replace_all_uses_except(_view_at_start(op, source, target.type, offset, entry), op)
            op.erase()
            allocation.erase()


@dataclass
class _Readers:
    """Determines which ops of a module only read a buffer; for calls, by analysing the callee.

    The results are cached: for (function, number) of an argument, and for all arguments of a function.
    """

    functions: dict[str, Any]
    only_read_arguments: dict[tuple[str, int], bool] = field(default_factory=dict)
    read_only_functions: dict[str, bool] = field(default_factory=dict)

    def only_reads_arguments(self, function: ir.Operation) -> bool:
        """True if `function` does not write to its arguments, except out-parameters.

        The cached result stays valid, since the removal of a copy adds no writes.
        """
        name = symbol_of(function)
        if name not in self.read_only_functions:
            arguments = function.regions[0].blocks[0].arguments
            buffers = [
                argument
                for argument in arguments
                if isinstance(argument.type, ir.MemRefType) and not is_unaliased(argument)
            ]
            self.read_only_functions[name] = all(map(self.is_only_read, buffers))
        return self.read_only_functions[name]

    def is_only_read(self, value: ir.Value) -> bool:
        """True if no op writes to the buffer `value`."""
        return all(self.only_reads(user, number) for user, number in _uses(value))

    def only_reads(self, op: ir.Operation, number: int) -> bool:
        """True if `op` reads the buffer that is its operand `number`, and does not write to it."""
        if op.name in _READS:
            return True
        if op.name == "func.call":
            return self._callee_only_reads(callee_of(op), number)
        if op.name.startswith("linalg.") and "operandSegmentSizes" in op.attributes:
            return number < int(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[0])
        return op.name in ("memref.copy", "linalg.transpose", "linalg.broadcast") and number == 0

    def _callee_only_reads(self, name: str, number: int) -> bool:
        """True if function `name` does not write to its argument `number`; false if its body is not known."""
        function = self.functions.get(name)
        if function is None or not function.regions[0].blocks:
            return False
        key = name, number
        if key not in self.only_read_arguments:
            self.only_read_arguments[key] = False  # ends the recursion if the function calls itself
            self.only_read_arguments[key] = self.is_only_read(function.regions[0].blocks[0].arguments[number])
        return self.only_read_arguments[key]


def _uses(value: ir.Value) -> Iterator[tuple[ir.Operation, int]]:
    """Yields the ops that access the memory of the buffer `value`, each with the number of the operand."""
    users = set(accessing_ops(value))
    for user in users:
        for number, operand in enumerate(user.operands):
            if isinstance(operand.type, ir.MemRefType) and root_of(operand) == value:
                yield user, number


def _is_only_read(op: ir.Operation, target: ir.Value, readers: _Readers) -> bool:
    """True if `target` is a separate buffer that the copy `op` fills and later ops only read."""
    if not is_allocated(target) or target.owner.operation.block != op.block:
        return False
    uses = [(user, number) for user, number in _uses(target) if user != op]
    return all(is_after(user, op) and readers.only_reads(user, number) for user, number in uses)


def _is_source_unchanged(op: ir.Operation, source: ir.Value, readers: _Readers) -> bool:
    """True if nothing after the copy `op` writes to the buffer of `source`."""
    root = root_of(source)
    if isinstance(root, ir.BlockArgument):
        # Two arguments may be the same tensor; out-parameters do not alias.
        if root.owner.owner.operation.name != "func.func" or is_unaliased(root):
            return False
        return readers.only_reads_arguments(root.owner.owner.operation)
    if not is_allocated(root):
        return False
    return all(
        readers.only_reads(user, number) or (is_before(user, op) and not aliases_operand(user))
        for user, number in _uses(root)
    )


def _offset_of_source(source: ir.Value, target: ir.Value, entry: ir.Operation | None) -> int | None:
    """Returns the byte offset of `source` in its buffer.

    Returns `None` if `source` does not have the layout of `target`, or if it has an offset and is not a view of an
    argument of the function `entry`.
    """
    try:
        layout, target_layout = layout_of(source.type), layout_of(target.type)
    except UnsupportedError:
        return None
    dims = zip(layout.shape, layout.strides, target_layout.strides, strict=True)
    has_other_strides = any(size > 1 and stride != target_stride for size, stride, target_stride in dims)
    if layout.offset is None or target_layout.offset != 0 or has_other_strides:
        return None
    if layout.offset == 0:
        return 0
    root = root_of(source)
    is_argument = isinstance(root, ir.BlockArgument) and entry is not None and root.owner.owner.operation == entry
    base_bytes = _bytes_before_base(source) if is_argument and root.type.has_static_shape else None
    return None if base_bytes is None else base_bytes + layout.offset * element_bytes(source.type.element_type)


def _bytes_before_base(value: ir.Value) -> int | None:
    """Returns the byte offset of the base of `value` in its buffer; the offset in its type is relative to this base.

    Each `memref.view` starts a new base. Returns `None` if one of them has a dynamic byte shift.
    """
    base_offset = 0
    while isinstance(value, ir.OpResult):
        if value.owner.name == "memref.view":
            shift = constant_of(value.owner.operands[1])
            if shift is None:
                return None
            base_offset += int(ir.IntegerAttr(shift).value)
        value = value.owner.operands[0]
    return base_offset


def _view_at_start(
    op: ir.Operation, source: ir.Value, type_: ir.Type, offset: int, entry: ir.Operation | None
) -> ir.Value:
    """Returns `source`, which is at byte `offset` of its buffer, as a memref of `type_`, which has no offset."""
    with ir.InsertionPoint(op), op.location:
        if offset:
            root = root_of(source)
            if _is_viewed_as_bytes(root):
                return byte_view(root, offset, type_)
            assert isinstance(root, ir.BlockArgument)
            assert entry is not None
            return byte_view(retype_as_bytes(entry, root), offset, type_)
        if source.type == type_:
            return source
        strides, _ = type_.get_strides_and_offset()
        return memref.reinterpret_cast(type_, source, [], [], [], [0], list(type_.shape), list(strides))


def _is_viewed_as_bytes(root: ir.Value) -> bool:
    """True if `root` is a buffer of bytes, with a `memref.view` for each buffer in it."""
    return any(use.owner.operation.name == "memref.view" for use in root.uses)
