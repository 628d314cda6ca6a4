"""`write-in-place`: makes element-wise ops, copies and calls overwrite an operand that is not read again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir, memref
from buddy.compiler.mlir.walk import (
    accessing_ops,
    aliases_operand,
    callee_of,
    calls_in,
    find_ops,
    is_unaliased,
    root_of,
    symbol_of,
)
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.contraction import indexing_maps

_GENERIC, _CALL = "linalg.generic", "func.call"
_ELEMENTWISE_OPS = (_GENERIC, "linalg.copy", "memref.copy")
# Views of all elements of the source in the same order.
_RESHAPES = ("memref.collapse_shape", "memref.expand_shape")


@register
@dataclass(frozen=True)
class WriteInPlace(MlirPass):
    """Merges the buffers of an operand and a result: the op reads each element before it writes that element.

    Also merges the buffers of a call, if the function reads the operand for the last time before it writes the result.
    """

    name: ClassVar[str] = "write-in-place"
    summary: ClassVar[str] = "make element-wise ops, copies and calls overwrite an operand that is not read again"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        for op in find_ops(root, *_ELEMENTWISE_OPS):
            if not share_buffer(op, elementwise_pairs(op)):
                result = "written to a separate buffer: no operand" if op.name == _GENERIC else "copied: its source"
                context.remark(self.name, op.location, f"{result} may be overwritten")
                continue
            if op.name == _GENERIC:
                context.remark(self.name, op.location, "the result overwrites an operand")
            else:
                context.remark(self.name, op.location, "no copy: nothing else reads its source")
                op.erase()
        functions = _Functions({symbol_of(op): op.operation for op in root.regions[0].blocks[0] if is_function(op)})
        # Callees first: a change in a callee changes which of its arguments may share a buffer.
        for op in functions.calls():
            while share_buffer(op, functions.call_pairs(op)):
                context.remark(self.name, op.location, f"the result of {callee_of(op)} overwrites an operand")


def share_buffer(op: ir.Operation, candidates: Iterable[tuple[ir.Value, ir.Value]]) -> bool:
    """Merges the buffers of the first (operand, result) in `candidates` that may share a buffer.

    Returns `False` if no pair may.
    """
    for operand, result in candidates:
        if _may_share_buffer(op, operand, result):
            _merge(root_of(operand), root_of(result))
            return True
    return False


def is_function(op: ir.Operation) -> bool:
    return bool(op.operation.name == "func.func")


@dataclass
class _Functions:
    """The functions of a module, and which of their arguments may share a buffer.

    `read_first_results` caches results of `_is_read_first` by function and numbers of the arguments.
    """

    functions: dict[str, Any]
    read_first_results: dict[tuple[str, int, int], bool] = field(default_factory=dict)

    def calls(self) -> list[ir.Operation]:
        """Returns the calls of functions with a body; the calls in a callee are before the calls in its callers."""
        calls_by_caller: dict[str, list[Any]] = {}

        def visit(name: str) -> None:
            if name in calls_by_caller:
                return
            calls_by_caller[name] = []  # ends the recursion if a function calls itself
            calls = [op for op in calls_in(self.functions[name]) if self._body_of(callee_of(op))]
            for op in calls:
                visit(callee_of(op))
            # The order of keys is the order of insertion: the caller moves behind its callees.
            del calls_by_caller[name]
            calls_by_caller[name] = calls

        for name in self.functions:
            visit(name)
        return [op for calls in calls_by_caller.values() for op in calls]

    def call_pairs(self, call: ir.Operation) -> Iterator[tuple[ir.Value, ir.Value]]:
        """Yields (operand, result) of `call` if the callee reads the operand only before it writes the result."""
        values, body = list(call.operands), self._body_of(callee_of(call))
        arguments = list(body.arguments) if body is not None else []
        # Out-parameters are unaliased; other arguments are inputs.
        for j, result in enumerate(values[: len(arguments)]):
            for i, value in enumerate(values[: len(arguments)]):
                is_input_and_result = is_unaliased(arguments[j]) and not is_unaliased(arguments[i])
                if not is_input_and_result or value.type != result.type or not _is_passed_once(value, values):
                    continue
                if self._is_read_first(callee_of(call), i, j):
                    yield value, result

    def _body_of(self, name: str) -> ir.Block | None:
        """Returns the first block of a function; `None` if the module has no function `name` with a body."""
        function = self.functions.get(name)
        return function.regions[0].blocks[0] if function is not None and len(function.regions[0].blocks) else None

    def _is_read_first(self, name: str, i: int, j: int) -> bool:
        """True if function `name` accesses argument `i` for the last time before it first accesses argument `j`.

        Both accesses may be by the same op, if it may write its result over its operand.
        """
        key = name, i, j
        if key not in self.read_first_results:
            self.read_first_results[key] = False  # ends the recursion if the function calls itself
            body = self._body_of(name)
            if body is not None:
                self.read_first_results[key] = self._compare_accesses(body.arguments[i], body.arguments[j])
        return self.read_first_results[key]

    def _compare_accesses(self, read: ir.Value, written: ir.Value) -> bool:
        """True if all accesses to the argument `read` are before those to the argument `written`."""
        block = read.owner
        positions = {op.operation: number for number, op in enumerate(block.operations)}
        users = [*accessing_ops(read), *accessing_ops(written)]
        readers = {_enclosing_op(user, block) for user in accessing_ops(read)}
        writers = {_enclosing_op(user, block) for user in accessing_ops(written)}
        if not readers or not writers or None in readers | writers or any(map(aliases_operand, users)):
            return False
        last, first = max(positions[op] for op in readers), min(positions[op] for op in writers)
        return last < first or (last == first and self._may_overwrite(block.operations[last].operation, read, written))

    def _may_overwrite(self, op: ir.Operation, read: ir.Value, written: ir.Value) -> bool:
        """True if `op` accesses the whole buffers `read` and `written`, which may be one buffer for this op."""
        if op.name not in (_GENERIC, _CALL) or (op.name == _CALL and self._body_of(callee_of(op)) is None):
            return False
        pairs = elementwise_pairs(op) if op.name == _GENERIC else self.call_pairs(op)
        return any(
            (root_of(value), root_of(result)) == (read, written)
            and value.type == result.type
            and _is_whole(value)
            and _is_whole(result)
            for value, result in pairs
        )


def _is_passed_once(value: ir.Value, values: Sequence[ir.Value]) -> bool:
    """True if `value` is a memref, and no other of the operands `values` is a view of its buffer."""
    memrefs = [other for other in values if isinstance(other.type, ir.MemRefType)]
    return value in memrefs and sum(root_of(other) == root_of(value) for other in memrefs) == 1


def elementwise_pairs(op: ir.Operation) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yields (operand, result) of `op`, which has one result, if each iteration uses the same element of both."""
    values = list(op.operands)
    if op.name != _GENERIC:
        yield values[0], values[1]
        return
    inputs, outputs = ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])
    has_memrefs_only = all(isinstance(value.type, ir.MemRefType) for value in values)
    is_reduction = any("reduction" in str(kind) for kind in op.attributes["iterator_types"])
    if outputs != 1 or is_reduction or not has_memrefs_only:
        return
    maps = indexing_maps(op)
    for value, map_ in zip(values[:inputs], maps, strict=False):
        if map_ == maps[-1] and _is_passed_once(value, values):
            yield value, values[-1]


def _may_share_buffer(op: ir.Operation, operand: ir.Value, result: ir.Value) -> bool:
    """True if the result of `op` may be written to the buffer of its operand.

    Both must have the same layout, no op after `op` may use the operand's buffer, and none before it the result's.
    """
    source, target = root_of(operand), root_of(result)
    if operand.type != result.type or not (_is_whole(operand) and _is_whole(result)):
        return False
    if not ir.MemRefType(operand.type).has_static_shape:
        return False  # the sizes of the result may be computed after the operand is allocated
    if not is_allocated(source) or not is_unaliased(target) or source.owner.operation.block != op.block:
        return False
    if isinstance(target, ir.OpResult) and target.owner.operation.block != op.block:
        return False
    source_users, target_users = list(accessing_ops(source)), list(accessing_ops(target))
    if any(map(aliases_operand, (*source_users, *target_users))):
        return False  # an alias may be read at any time
    return all(user == op or is_before(user, op) for user in source_users) and all(
        user == op or is_after(user, op) for user in target_users
    )


def _enclosing_op(user: ir.Operation, block: ir.Block) -> ir.Operation | None:
    """Returns the op of `block` that is `user` or encloses it; `None` if `block` has no such op."""
    while user.block != block:
        if user.name in ("func.func", "builtin.module"):
            return None
        user = user.parent.operation
    return user


def is_before(user: ir.Operation, op: ir.Operation) -> bool:
    """True if `user`, or the op in the block of `op` that encloses it, is before `op`."""
    enclosing = _enclosing_op(user, op.block)
    return enclosing is not None and enclosing != op and bool(enclosing.is_before_in_block(op))


def is_after(user: ir.Operation, op: ir.Operation) -> bool:
    """True if `user`, or the op in the block of `op` that encloses it, is after `op`."""
    enclosing = _enclosing_op(user, op.block)
    return enclosing is not None and enclosing != op and bool(op.is_before_in_block(enclosing))


def _is_whole(value: ir.Value) -> bool:
    """True if `value` is a whole buffer or a reshape of one."""
    while isinstance(value, ir.OpResult) and value.owner.name in _RESHAPES:
        value = value.owner.operands[0]
    return bool(value == root_of(value))


def is_allocated(root: ir.Value) -> bool:
    """True if the buffer `root` is the result of an allocation."""
    return isinstance(root, ir.OpResult) and root.owner.name == "memref.alloc"


def _merge(source: ir.Value, target: ir.Value) -> None:
    """Replaces the buffer `source` by the buffer `target`, and erases its allocation.

    If `target` is allocated too, its allocation is moved to the position of the erased one.
    """
    allocation = source.owner.operation
    if isinstance(target, ir.OpResult):
        target.owner.operation.move_before(allocation)
    with ir.InsertionPoint(allocation), allocation.location:
        view = target if target.type == source.type else _reinterpret(target, source.type)
    source.replace_all_uses_with(view)
    allocation.erase()


def _reinterpret(value: ir.Value, type_: ir.Type) -> ir.Value:
    """Returns a view of the memref `value` with the static type `type_`."""
    strides, _ = type_.get_strides_and_offset()
    return memref.reinterpret_cast(type_, value, [], [], [], [0], list(type_.shape), list(strides))
