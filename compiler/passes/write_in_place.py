"""`write-in-place`: makes element-wise ops, copies and calls overwrite an operand that is not read again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir, memref
from buddy.compiler.mlir.walk import (
    accesses,
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
_KINDS = (_GENERIC, "linalg.copy", "memref.copy")
# Views of all elements of the source in the same order.
_RESHAPES = ("memref.collapse_shape", "memref.expand_shape")


@register
@dataclass(frozen=True)
class WriteInPlace(MlirPass):
    """An op reads element `i` of the operand before it writes element `i` of the result, so both may be one buffer.

    The same applies to an operand and a result of a function that finishes reading the one before it writes the other.
    """

    name: ClassVar[str] = "write-in-place"
    summary: ClassVar[str] = "element-wise ops, copies and calls overwrite an operand that is not read again"

    def run(self, root: Any, context: PassContext) -> None:
        for op in find_ops(root, *_KINDS):
            if not write_over(op, pairs(op)):
                kept = "written to a separate buffer: no operand" if op.name == _GENERIC else "copied: its source"
                context.remark(self.name, op.location, f"{kept} may be overwritten")
                continue
            if op.name == _GENERIC:
                context.remark(self.name, op.location, "the result overwrites an operand")
            else:
                context.remark(self.name, op.location, "no copy: nothing else reads its source")
                op.erase()
        functions = _Functions({symbol_of(op): op.operation for op in root.regions[0].blocks[0] if is_function(op)})
        # Callees first: the arguments that may share a buffer must not change afterwards.
        for op in functions.calls():
            while write_over(op, functions.pairs(op)):
                context.remark(self.name, op.location, f"the result of {callee_of(op)} overwrites an operand")


def write_over(op: Any, candidates: Iterable[tuple[Any, Any]]) -> bool:
    """Merges the first pair of operand and result in `candidates` that may share a buffer.

    Returns whether there is one.
    """
    found = next((pair for pair in candidates if _may_share_buffer(op, *pair)), None)
    if found is not None:
        _merge(*map(root_of, found))
    return found is not None


def is_function(op: Any) -> bool:
    return bool(op.operation.name == "func.func")


@dataclass
class _Functions:
    """The functions of a module, and which of their arguments may share a buffer."""

    functions: dict[str, Any]
    known: dict[tuple[str, int, int], bool] = field(default_factory=dict)

    def calls(self) -> list[Any]:
        """Returns the calls of functions with a body, those in callees first."""
        order: dict[str, list[Any]] = {}

        def visit(name: str) -> None:
            if name in order:
                return
            order[name] = []
            found = [op for op in calls_in(self.functions[name]) if self._body(callee_of(op))]
            for op in found:
                visit(callee_of(op))
            order[name] = order.pop(name) + found  # after its callees

        for name in self.functions:
            visit(name)
        return [op for found in order.values() for op in found]

    def pairs(self, call: Any) -> Iterator[tuple[Any, Any]]:
        """Yields the operands and results of `call` where the callee reads the one only before it writes the other."""
        values, body = list(call.operands), self._body(callee_of(call))
        arguments = list(body.arguments) if body is not None else []
        for j, result in enumerate(values[: len(arguments)]):
            for i, value in enumerate(values[: len(arguments)]):
                alike = is_unaliased(arguments[j]) and not is_unaliased(arguments[i]) and value.type == result.type
                if alike and _is_passed_once(value, values) and self._follows(callee_of(call), i, j):
                    yield value, result

    def _body(self, name: str) -> Any | None:
        function = self.functions.get(name)
        return function.regions[0].blocks[0] if function is not None and len(function.regions[0].blocks) else None

    def _follows(self, name: str, i: int, j: int) -> bool:
        """True if function `name` accesses argument `i` for the last time before it first accesses argument `j`."""
        if (name, i, j) not in self.known:
            self.known[name, i, j] = False  # for recursive functions
            body = self._body(name)
            self.known[name, i, j] = body is not None and self._one_follows(body.arguments[i], body.arguments[j])
        return self.known[name, i, j]

    def _one_follows(self, before: Any, after: Any) -> bool:
        block = before.owner
        positions = {op.operation: number for number, op in enumerate(block.operations)}
        users = [*accesses(before), *accesses(after)]
        reads = {_enclosing_op(user, block) for user in accesses(before)}
        writes = {_enclosing_op(user, block) for user in accesses(after)}
        if not reads or not writes or None in reads | writes or any(map(aliases_operand, users)):
            return False
        last, first = max(positions[op] for op in reads), min(positions[op] for op in writes)
        return last < first or (last == first and self._does_both(block.operations[last].operation, before, after))

    def _does_both(self, op: Any, before: Any, after: Any) -> bool:
        """True if `op` uses both whole buffers, and they may share a buffer in it too."""
        if op.name not in (_GENERIC, _CALL) or (op.name == _CALL and self._body(callee_of(op)) is None):
            return False
        found = pairs(op) if op.name == _GENERIC else self.pairs(op)
        return any(
            (root_of(value), root_of(result)) == (before, after) and value.type == result.type
            and _is_whole(value) and _is_whole(result) for value, result in found
        )  # fmt: skip


def _is_passed_once(value: Any, values: Sequence[Any]) -> bool:
    memrefs = [other for other in values if isinstance(other.type, ir.MemRefType)]
    return value in memrefs and sum(root_of(other) == root_of(value) for other in memrefs) == 1


def pairs(op: Any) -> Iterator[tuple[Any, Any]]:
    """Yields pairs of an operand of `op` and its only result where each iteration uses the same element of both."""
    values = list(op.operands)
    if op.name != _GENERIC:
        yield values[0], values[1]
        return
    inputs, outputs = ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])
    plain = all(isinstance(value.type, ir.MemRefType) for value in values)
    reduces = any("reduction" in str(kind) for kind in op.attributes["iterator_types"])
    if outputs != 1 or reduces or not plain:
        return
    maps = indexing_maps(op)
    for value, map_ in zip(values[:inputs], maps, strict=False):
        if map_ == maps[-1] and _is_passed_once(value, values):
            yield value, values[-1]


def _may_share_buffer(op: Any, operand: Any, result: Any) -> bool:
    """True if after `op` the operand's buffer is unused, before it the result's, and both have the same layout."""
    source, target = root_of(operand), root_of(result)
    if operand.type != result.type or not (_is_whole(operand) and _is_whole(result)):
        return False
    if not ir.MemRefType(operand.type).has_static_shape:
        return False  # the sizes of one may be computed after the other
    if not is_allocated(source) or not is_unaliased(target) or source.owner.operation.block != op.block:
        return False
    if isinstance(target, ir.OpResult) and target.owner.operation.block != op.block:
        return False
    before, after = list(accesses(source)), list(accesses(target))
    if any(map(aliases_operand, (*before, *after))):
        return False  # an alias may be read at any time
    return all(user == op or is_before(user, op) for user in before) and all(
        user == op or is_after(user, op) for user in after
    )


def _enclosing_op(user: Any, block: Any) -> Any | None:
    """Returns the op of `block` that is `user` or encloses it; `None` if `block` has no such op."""
    while user.block != block:
        if user.name in ("func.func", "builtin.module"):
            return None
        user = user.parent.operation
    return user


def is_before(user: Any, op: Any) -> bool:
    found = _enclosing_op(user, op.block)
    return found is not None and found != op and bool(found.is_before_in_block(op))


def is_after(user: Any, op: Any) -> bool:
    found = _enclosing_op(user, op.block)
    return found is not None and found != op and bool(op.is_before_in_block(found))


def _is_whole(value: Any) -> bool:
    """True if `value` is its whole buffer, perhaps reshaped."""
    while isinstance(value, ir.OpResult) and value.owner.name in _RESHAPES:
        value = value.owner.operands[0]
    return bool(value == root_of(value))


def is_allocated(root: Any) -> bool:
    return isinstance(root, ir.OpResult) and root.owner.name == "memref.alloc"


def _merge(source: Any, target: Any) -> None:
    """Replaces the allocation `source` by `target`, whose own allocation moves before it."""
    allocation = source.owner.operation
    if isinstance(target, ir.OpResult):
        target.owner.operation.move_before(allocation)
    with ir.InsertionPoint(allocation), allocation.location:
        view = target
        if target.type != source.type:
            view = _reshaped(target, source.type)
    source.replace_all_uses_with(view)
    allocation.erase()


def _reshaped(value: Any, type_: Any) -> Any:
    strides, _ = type_.get_strides_and_offset()
    return memref.reinterpret_cast(type_, value, [], [], [], [0], list(type_.shape), list(strides))
