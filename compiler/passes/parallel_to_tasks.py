"""`parallel-to-tasks`: outlines a parallel loop as a task: a function that runs a range of the loop's iterations.

A task has the arguments `(begin, end, captures...)`: the range, with iterations numbered in row-major order, and the
values that the loop reads. A memref with dynamic offset, sizes or strides is passed as its base and these numbers,
because calls pass buffers as bare pointers. The loop becomes one call of the task with all iterations, which is correct
on one thread; `convert-tasks-to-llvm` divides the range among threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import arith, func, ir, memref, scf
from buddy.compiler.mlir.walk import (
    callee_of,
    calls_in,
    constant_of,
    has_identity_layout,
    nested_ops,
    symbol_of,
    unique_symbol,
)
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, ceil_div
from buddy.compiler.protocol.recipe import MAX_THREADS

# Attribute of a task: the number of threads among which the range of each call is divided.
THREADS_ATTRIBUTE = "buddy.threads"


@register
@dataclass(frozen=True)
class ParallelToTasks(MlirPass):
    """Outlines the outermost parallel loops as tasks for `threads` threads (0: the recipe's number).

    With one thread, no loop is outlined.
    """

    name: ClassVar[str] = "parallel-to-tasks"
    summary: ClassVar[str] = "outline loops whose iterations are independent, so that threads share them"

    threads: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.threads <= MAX_THREADS:
            raise ValueError(f"{self.name}: threads must be 0 (the recipe's) to {MAX_THREADS}, not {self.threads}")

    def run(self, root: ir.Operation, context: PassContext) -> None:
        threads = self.threads or context.threads
        if threads <= 1:
            return
        loops = _outermost_loops(root)
        called_in_loops = _functions_called_in(root, loops)
        for op in loops:
            try:
                if symbol_of(_function_around(op)) in called_in_loops:
                    raise UnsupportedError("its function is called in a parallel loop")
                trip_count = _outline(root, op, threads)
            except UnsupportedError as reason:
                context.remark(self.name, op.location, f"a loop stays on one thread: {reason}")
                continue
            context.remark(self.name, op.location, f"{trip_count} iterations shared by {threads} threads")
            op.erase()


def _outermost_loops(root: ir.Operation) -> list[ir.Operation]:
    """Returns the parallel loops that are not nested in another parallel loop."""
    loops: list[Any] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name != "scf.parallel":
            return ir.WalkResult.ADVANCE
        loops.append(op.operation)
        return ir.WalkResult.SKIP

    root.walk(visit, ir.WalkOrder.PRE_ORDER)
    return loops


def _functions_called_in(root: ir.Operation, loops: Sequence[ir.Operation]) -> set[str]:
    """Returns the functions that are called in `loops`, directly or by another function."""
    functions = {symbol_of(op.operation): op for op in root.regions[0].blocks[0] if op.operation.name == "func.func"}
    called: set[str] = set()
    pending = list(loops)
    while pending:
        for call in calls_in(pending.pop()):
            name = callee_of(call)
            if name in functions and name not in called:
                called.add(name)
                pending.append(functions[name])
    return called


@dataclass(frozen=True)
class _Range:
    """One dim of a parallel loop with static bounds: `size` iterations from `lower` on, in steps of `step`."""

    lower: int
    size: int
    step: int


def _outline(root: ir.Operation, op: ir.Operation, threads: int) -> int:
    """Adds a task for the loop `op` to the module, and a call of it before `op`; returns the number of iterations.

    The body of `op` is moved to the task, and constants that it reads are copied there. Raises `UnsupportedError`,
    before anything is changed, for a loop that cannot be a task.
    """
    ranges, index = _ranges(op), ir.IndexType.get()
    loop_ops = {op, *nested_ops(op)}
    captured = _captured_values(op, loop_ops)
    constants = [value for value in captured if _is_constant(value)]
    passed = [value for value in captured if not _is_constant(value)]
    argument_types = [index, index, *(type_ for value in passed for type_ in _argument_types(value.type))]
    parent = _function_around(op)
    name = unique_symbol(root, f"{symbol_of(parent)}_task")
    with ir.InsertionPoint(parent), op.location:
        task = func.FuncOp(name, (argument_types, []), visibility="private")
        task.operation.attributes[THREADS_ATTRIBUTE] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), threads)
        entry = task.add_entry_block([op.location] * len(argument_types))
    trip_count = math.prod(range_.size for range_ in ranges)
    with ir.InsertionPoint(op), op.location:
        e = KernelEmitter(_entry_block(parent))
        arguments = [argument for value in passed for argument in _arguments_of(value)]
        func.CallOp([], ir.FlatSymbolRefAttr.get(name), [e.value(0), e.value(trip_count), *arguments])
    with ir.InsertionPoint(entry), op.location:
        remaining = iter(entry.arguments[2:])
        replacements = {value: _rebuild(value.type, remaining) for value in passed}
        replacements |= {value: value.owner.clone().results[0] for value in constants}
        _move_body(op, entry, ranges)
        func.ReturnOp([])
    for inner in loop_ops - {op}:
        for i, value in enumerate(inner.operands):
            if value in replacements:
                inner.operands[i] = replacements[value]
    return trip_count


def _ranges(op: ir.Operation) -> list[_Range]:
    """Returns the dims of a parallel loop.

    Raises `UnsupportedError` if its bounds are dynamic, or if it has a reduction.
    """
    if len(op.results):
        raise UnsupportedError("it has a reduction")
    dims = len(op.operands) // 3
    numbers = [_constant_bound(value) for value in op.operands]
    bounds = zip(numbers[:dims], numbers[dims : 2 * dims], numbers[2 * dims :], strict=True)
    return [_Range(lower, max(0, ceil_div(upper - lower, step)), step) for lower, upper, step in bounds]


def _constant_bound(value: ir.Value) -> int:
    """Returns a bound or step as a number. Raises `UnsupportedError` if it is not a constant."""
    constant = constant_of(value)
    if constant is None:
        raise UnsupportedError("its bounds are dynamic")
    return int(ir.IntegerAttr(constant).value)


def _captured_values(loop: ir.Operation, loop_ops: set[ir.Operation]) -> list[ir.Value]:
    """Returns the values that ops in `loop` use and that are defined outside of it, in order of first use.

    `loop_ops` are the loop and all ops in it. The operands of `loop`, its bounds and steps, do not count.
    """
    blocks = {block for op in loop_ops for region in op.regions for block in region.blocks}
    captured: dict[Any, None] = {}
    for op in nested_ops(loop):
        for value in op.operands:
            owner = value.owner
            is_inside = owner in blocks if isinstance(owner, ir.Block) else owner.operation in loop_ops
            if not is_inside:
                captured.setdefault(value)
    return list(captured)


def _is_constant(value: ir.Value) -> bool:
    names = ("arith.constant", "memref.get_global")
    return isinstance(value, ir.OpResult) and value.owner.name in names


def _dynamic_numbers(type_: ir.Type) -> list[bool]:
    """Returns whether the offset, each size and each stride of a memref type are dynamic.

    Returns `[]` for another type, and for a memref of static shape without an offset, which is passed as it is. Raises
    `UnsupportedError` for a memref without strides.
    """
    if not isinstance(type_, ir.MemRefType):
        return []
    if has_identity_layout(type_) and type_.has_static_shape:
        return []
    is_strided = has_identity_layout(type_) or not isinstance(type_.layout, ir.AffineMapAttr)
    if 0 in type_.shape or not is_strided:
        raise UnsupportedError(f"it reads a {type_}, which has no strides")
    dynamic, rank = ir.ShapedType.get_dynamic_stride_or_offset(), len(type_.shape)
    strides, offset = type_.get_strides_and_offset()
    are_dynamic_sizes = (type_.is_dynamic_dim(dim) for dim in range(rank))
    return [offset == dynamic, *are_dynamic_sizes, *(stride == dynamic for stride in strides)]


def _argument_types(type_: ir.Type) -> list[ir.Type]:
    """Returns the types of the arguments for a value of `type_`.

    Raises `UnsupportedError` for a type that cannot be passed as pointers and numbers.
    """
    if not isinstance(type_, ir.MemRefType | ir.IndexType | ir.IntegerType | ir.FloatType):
        raise UnsupportedError(f"it reads a {type_} from outside")
    count = sum(_dynamic_numbers(type_))
    if not count:
        return [type_]
    return [ir.MemRefType.get([], type_.element_type, memory_space=type_.memory_space), *[ir.IndexType.get()] * count]


def _arguments_of(value: ir.Value) -> list[ir.Value]:
    """Emits and returns the arguments for `value`, of the types `_argument_types(value.type)`."""
    dynamic = _dynamic_numbers(value.type)
    if not any(dynamic):
        return [value]
    base, *numbers = memref.ExtractStridedMetadataOp(value).results
    return [base, *(number for number, is_dynamic in zip(numbers, dynamic, strict=True) if is_dynamic)]


def _rebuild(type_: ir.Type, arguments: Iterator[ir.Value]) -> ir.Value:
    """Takes the arguments for a value of `type_` from `arguments`, as `_arguments_of` returns them; emits the value."""
    dynamic, first = _dynamic_numbers(type_), next(arguments)
    if not any(dynamic):
        return first
    rank = len(type_.shape)
    strides, offset = type_.get_strides_and_offset()

    def take(are_dynamic: Sequence[bool]) -> list[ir.Value]:
        return [next(arguments) for is_dynamic in are_dynamic if is_dynamic]

    offset_values = take(dynamic[:1])
    size_values = take(dynamic[1 : 1 + rank])
    stride_values = take(dynamic[1 + rank :])
    return memref.reinterpret_cast(
        type_, first, offset_values, size_values, stride_values, [offset], list(type_.shape), list(strides)
    )


def _function_around(op: ir.Operation) -> ir.Operation:
    """Returns the function that `op` is in."""
    while op.name != "func.func":
        op = op.parent.operation
    return op


def _entry_block(function: ir.Operation) -> ir.Block:
    return function.regions[0].blocks[0]


def _move_body(op: ir.Operation, entry: ir.Block, ranges: Sequence[_Range]) -> None:
    """Emits a loop over the task's range, and moves the ops of the parallel loop `op` into it.

    The induction variables of `op` are computed from the number of the iteration.
    """
    e, source = KernelEmitter(entry), op.regions[0].blocks[0]
    loop = scf.ForOp(entry.arguments[0], entry.arguments[1], e.value(1))
    with ir.InsertionPoint(loop.body):
        indices = _indices(e, loop.induction_variable, ranges)
        terminator = scf.yield_([])
    for argument, index in zip(source.arguments, indices, strict=True):
        argument.replace_all_uses_with(e.value(index))
    for inner in list(source.operations)[:-1]:
        inner.operation.move_before(terminator)


def _indices(e: KernelEmitter, number: ir.Value, ranges: Sequence[_Range]) -> list[Index]:
    """Returns the value of each induction variable in iteration `number`; the last dim varies fastest."""
    indices: list[Index] = []
    for position, range_ in reversed(list(enumerate(ranges))):
        dim_iteration = number
        if position:
            size = e.value(range_.size)
            dim_iteration, number = arith.remui(number, size), arith.divui(number, size)
        indices.insert(0, e.add(e.mul(dim_iteration, range_.step), range_.lower))
    return indices
