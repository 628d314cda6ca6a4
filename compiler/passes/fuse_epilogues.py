"""`fuse-epilogues`: moves element-wise ops next to a contraction, so that its kernel can absorb them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import NON_ACCESSING_OPS, VIEW_OPS, nested_ops, root_of, surely_disjoint
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.contraction import is_contraction
from buddy.compiler.passes.kernels.epilogue import (
    EPILOGUE,
    PROLOGUE,
    check_single_use,
    check_stage,
    mark_stage,
    operand_number,
)
from buddy.compiler.passes.kernels.structured import STRUCTURED_OPS, analyse_vectorizable

_RESHAPES = frozenset({"memref.collapse_shape", "memref.expand_shape", "memref.cast"})


@register
@dataclass(frozen=True)
class FuseEpilogues(MlirPass):
    """Makes the only reader of a contraction's result its epilogue, and the result's initialiser its prologue.

    The pass marks both and moves them next to the contraction. A kernel then applies the epilogue to its sums while
    they are in registers, and starts from the prologue's values; without a kernel they stay ordinary ops. The options
    `epilogues` and `prologues` each enable one of the two.
    """

    name: ClassVar[str] = "fuse-epilogues"
    summary: ClassVar[str] = "move bias, residual, activation and cast next to the contraction that will apply them"

    epilogues: bool = True
    prologues: bool = True

    def run(self, root: ir.Operation, context: PassContext) -> None:
        for op in [op for op in nested_ops(root) if op.name.startswith("linalg.") and _is_product(op)]:
            for is_enabled, fuse in ((self.prologues, _fuse_prologue), (self.epilogues, _fuse_epilogue)):
                if not is_enabled:
                    continue
                try:
                    text = fuse(op)
                except UnsupportedError as reason:
                    text = f"{op.name}: {reason}"
                if text:
                    context.remark(self.name, op.location, text)


def _is_product(op: ir.Operation) -> bool:
    """True if `op` is a contraction or convolution on buffers."""
    return len(op.results) == 0 and len(op.operands) == 3 and ("conv" in op.name or is_contraction(op))


# ---- epilogues -------------------------------------------------------------------------------------------------------


def _fuse_epilogue(op: ir.Operation) -> str:
    """Marks the reader of the result of `op` as its epilogue, and moves `op` and its initialiser before the reader.

    Returns the text of the remark. Raises `UnsupportedError` with the reason if that is not possible.
    """
    result = op.operands[2]
    root = root_of(result)
    if not isinstance(root, ir.OpResult) or root.owner.name != "memref.alloc":
        raise UnsupportedError("its result is returned")
    users = _accesses(root)
    if users is None:
        raise UnsupportedError("its result is accessed through a partial view")
    initialiser = _initialiser(op, users)
    moved_ops = [op] if initialiser is None else [initialiser, op]
    readers = [user for user in users if user not in moved_ops]
    if len(readers) != 1:
        raise UnsupportedError(f"{len(readers)} ops read its result")
    reader = readers[0]
    if reader.name not in STRUCTURED_OPS or reader.block != op.block:
        raise UnsupportedError(f"{reader.name} reads its result")
    if EPILOGUE in reader.attributes:
        raise UnsupportedError(f"{reader.name}, which reads its result, is the epilogue of another op")
    sources = [*list(op.operands)[:2], *(_input_buffers(initialiser) if initialiser is not None else ())]
    _check_epilogue(op, reader, sources)
    _check_moves(op, reader, sources)
    for moved_op in moved_ops:
        moved_op.move_before(reader)
    mark_stage(reader, EPILOGUE, result)
    return f"{reader.name}, which reads the result, is its epilogue"


def _input_buffers(op: ir.Operation) -> list[ir.Value]:
    """Returns the input operands of `op` that are buffers."""
    return [value for value in list(op.operands)[: -_count_outputs(op)] if isinstance(value.type, ir.MemRefType)]


def _check_epilogue(op: ir.Operation, reader: ir.Operation, sources: list[ir.Value]) -> None:
    """Raises `UnsupportedError` unless a kernel that computes `op` from `sources` could also compute `reader`."""
    structured = analyse_vectorizable(reader)
    kernel_operand = operand_number(reader, op.operands[2])
    check_stage(structured)
    check_single_use(structured, kernel_operand)
    if kernel_operand >= structured.inputs:
        raise UnsupportedError("its result is changed in place")
    for output in structured.operands[structured.inputs :]:
        if not all(surely_disjoint(output, source) for source in sources):
            raise UnsupportedError(f"{reader.name} may overwrite its inputs")


def _check_moves(op: ir.Operation, reader: ir.Operation, sources: list[ir.Value]) -> None:
    """Raises `UnsupportedError` if an op between `op` and `reader` writes one of `sources`."""
    if not op.is_before_in_block(reader):
        raise UnsupportedError("an op before it reads its result buffer")
    for other in _ops_between(op, reader):
        if any(_may_write(other, source) for source in sources):
            raise UnsupportedError(f"{other.name} in between may overwrite its inputs")


# ---- prologues -------------------------------------------------------------------------------------------------------


def _fuse_prologue(op: ir.Operation) -> str:
    """Marks the op that initialises the result of `op` as its prologue, and moves it before `op`.

    Returns the text of the remark; "" if there is no such op, or if it is a fill, which a kernel absorbs anyway. Raises
    `UnsupportedError` with the reason if the op cannot be a prologue.
    """
    result = op.operands[2]
    users = _accesses(root_of(result))
    initialiser = _initialiser(op, users) if users is not None else None
    if initialiser is None or initialiser.name == "linalg.fill":
        return ""
    structured = analyse_vectorizable(initialiser)
    check_stage(structured)
    if structured.outputs != 1 or structured.reads(structured.inputs):
        raise UnsupportedError(f"{initialiser.name}, which initialises its sums, has other effects")
    inputs = structured.operands[: structured.inputs]
    if not all(surely_disjoint(value, result) for value in inputs):
        raise UnsupportedError(f"{initialiser.name}, which initialises its sums, may also read them")
    if any(_may_write(other, value) for other in _ops_between(initialiser, op) for value in inputs):
        raise UnsupportedError(
            f"an op after {initialiser.name}, which initialises its sums, may overwrite its operands"
        )
    initialiser.move_before(op)
    mark_stage(initialiser, PROLOGUE, result)
    return f"{initialiser.name}, which initialises the sums, is its prologue"


def _initialiser(op: ir.Operation, users: list[ir.Operation]) -> ir.Operation | None:
    """Returns the last op of `users` before `op`, if it is a structured op whose last operand is the result of `op`."""
    last: ir.Operation | None = None
    for user in users:
        if user.block == op.block and user != op and user.is_before_in_block(op):
            last = user if last is None or last.is_before_in_block(user) else last
    if last is None:
        return None
    if last.name not in STRUCTURED_OPS or root_of(last.operands[len(last.operands) - 1]) != root_of(op.operands[2]):
        return None
    return last


# ---- memory accesses -------------------------------------------------------------------------------------------------


def _accesses(root: ir.Value) -> list[ir.Operation] | None:
    """Returns the ops that read or write `root`, or `None` if it has a view that is more than a reshape."""
    users: list[Any] = []
    for use in root.uses:
        owner = use.owner.operation
        if owner.name in _RESHAPES:
            users_of_view = _accesses(owner.results[0])
            if users_of_view is None:
                return None
            users += [user for user in users_of_view if user not in users]
        elif owner.name in VIEW_OPS:
            return None
        elif owner not in users:
            users.append(owner)
    return users


def _ops_between(first: ir.Operation, last: ir.Operation) -> Iterator[ir.Operation]:
    """Yields the ops between `first` and `last`, which are in the same block in this order."""
    for op in last.block:
        other = op.operation
        if other == last:
            return
        if other != first and first.is_before_in_block(other):
            yield other


def _may_write(op: ir.Operation, buffer: ir.Value) -> bool:
    """True if `op` may write to `buffer`; the body of an op with regions is not analysed."""
    if op.name in NON_ACCESSING_OPS or op.name.startswith(("arith.", "math.")):
        return False
    memrefs = [value for value in op.operands if isinstance(value.type, ir.MemRefType)]
    if op.name.startswith("linalg."):
        memrefs = memrefs[-_count_outputs(op) :]
    elif len(op.regions):
        return True
    return not all(surely_disjoint(value, buffer) for value in memrefs)


def _count_outputs(op: ir.Operation) -> int:
    """Returns the number of outputs of a linalg op, which are its last operands."""
    if "operandSegmentSizes" in op.attributes:
        return int(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[1])
    return 1
