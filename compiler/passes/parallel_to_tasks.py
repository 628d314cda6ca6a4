"""`parallel-to-tasks`: outlines the body of a parallel loop as a function over a range of its iterations.

A task is `(begin, end, captures...)` over the loop's iterations in row-major order. The loop becomes one call of it
with all iterations, which is correct on any number of threads; `convert-tasks-to-llvm` divides the range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import arith, func, ir, scf
from buddy.compiler.mlir.walk import collect, unique_symbol
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import UnsupportedError, layout_of
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter
from buddy.compiler.protocol.recipe import MAX_THREADS

# Attribute of a task: the number of threads that share its calls.
THREADS = "buddy.threads"


@register
@dataclass(frozen=True)
class ParallelToTasks(MlirPass):
    """Outlines nothing for one thread. `threads` is the number of threads; 0 means that of the recipe."""

    name: ClassVar[str] = "parallel-to-tasks"
    summary: ClassVar[str] = "outline loops whose iterations are independent, so that threads share them"

    threads: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.threads <= MAX_THREADS:
            raise ValueError(f"{self.name}: threads must be 0 (the recipe's) to {MAX_THREADS}, not {self.threads}")

    def run(self, root: Any, context: PassContext) -> None:
        threads = self.threads or context.threads
        if threads <= 1:
            return
        loops = _outermost(root)
        shared = _called_from(root, loops)
        for op in loops:
            try:
                if _name_of(_function_around(op)) in shared:
                    raise UnsupportedError("its function is called in a parallel loop")
                trip = _outline(root, op, threads)
            except UnsupportedError as reason:
                context.remark(self.name, op.location, f"a loop stays on one thread: {reason}")
                continue
            context.remark(self.name, op.location, f"{trip} iterations shared by {threads} threads")
            op.erase()


def _outermost(root: Any) -> list[Any]:
    """Returns the parallel loops that are not nested in another."""
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name != "scf.parallel":
            return ir.WalkResult.ADVANCE
        found.append(op.operation)
        return ir.WalkResult.SKIP

    root.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def _name_of(function: Any) -> str:
    return str(ir.StringAttr(function.attributes["sym_name"]).value)


def _called_from(root: Any, loops: Sequence[Any]) -> set[str]:
    """Returns the functions that are called in `loops`, directly or not."""
    bodies = {_name_of(op.operation): op for op in root.regions[0].blocks[0] if op.operation.name == "func.func"}
    found: set[str] = set()
    places = list(loops)
    while places:
        for op in collect(places.pop()):
            name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value if op.name == "func.call" else ""
            if name in bodies and name not in found:
                found.add(name)
                places.append(bodies[name])
    return found


@dataclass(frozen=True)
class _Range:
    """One dim of a parallel loop, with static bounds."""

    lower: int
    size: int
    step: int


def _outline(root: Any, op: Any, threads: int) -> int:
    """Adds a task for `op` to the module and a call of it before `op`; returns the number of iterations.

    Raises `UnsupportedError`, before anything is changed, for a loop that cannot be a task.
    """
    ranges = _ranges(op)
    inside = {op, *collect(op)}
    captured = _captured(inside)
    constants = [value for value in captured if _is_constant(value)]
    passed = [value for value in captured if not _is_constant(value)]
    for value in passed:
        _check(value.type)
    parent = _function_around(op)
    name = unique_symbol(root, f"{_name_of(parent)}_task")
    index = ir.IndexType.get()
    with ir.InsertionPoint(parent), op.location:
        task = func.FuncOp(name, ([index, index, *(value.type for value in passed)], []), visibility="private")
        task.operation.attributes[THREADS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), threads)
        entry = task.add_entry_block([op.location] * (2 + len(passed)))
    trip = math.prod(r.size for r in ranges)
    with ir.InsertionPoint(op), op.location:
        e = KernelEmitter(_entry_block(parent))
        func.CallOp([], ir.FlatSymbolRefAttr.get(name), [e.value(0), e.value(trip), *passed])
    with ir.InsertionPoint(entry), op.location:
        places = dict(zip(passed, entry.arguments[2:], strict=True))
        places |= {value: value.owner.clone().results[0] for value in constants}
        _move_body(op, entry, ranges)
        func.ReturnOp([])
    for inner in inside - {op}:
        for i, value in enumerate(inner.operands):
            if value in places:
                inner.operands[i] = places[value]
    return trip


def _ranges(op: Any) -> list[_Range]:
    """Returns the dims of a parallel loop.

    Raises `UnsupportedError` if its bounds are dynamic, or if it has a reduction.
    """
    if len(op.results):
        raise UnsupportedError("it has a reduction")
    dims = len(op.operands) // 3
    numbers = [_known(value) for value in op.operands]
    bounds = zip(numbers[:dims], numbers[dims : 2 * dims], numbers[2 * dims :], strict=True)
    return [_Range(lower, max(0, -(-(upper - lower) // step)), step) for lower, upper, step in bounds]


def _known(value: Any) -> int:
    if isinstance(value, ir.OpResult) and value.owner.name == "arith.constant":
        return int(ir.IntegerAttr(value.owner.attributes["value"]).value)
    raise UnsupportedError("its bounds are dynamic")


def _captured(inside: set[Any]) -> list[Any]:
    """Returns the values that ops in `inside` read and that no op or block there defines, in order of first use.

    The loop's own operands, its bounds, do not count.
    """
    (loop,) = (op for op in inside if op.parent.operation not in inside)
    blocks = {block for op in inside for region in op.regions for block in region.blocks}
    found: dict[Any, None] = {}
    for op in collect(loop):
        for value in op.operands:
            owner = value.owner
            if owner not in blocks if isinstance(owner, ir.Block) else owner.operation not in inside:
                found.setdefault(value)
    return list(found)


def _is_constant(value: Any) -> bool:
    names = ("arith.constant", "memref.get_global")
    return isinstance(value, ir.OpResult) and value.owner.name in names


def _check(type_: Any) -> None:
    """Raises `UnsupportedError` for a type that cannot be passed as one pointer or number."""
    if isinstance(type_, ir.MemRefType):
        if layout_of(type_).offset is None:
            raise UnsupportedError(f"it reads a {type_}, whose offset is dynamic")
    elif not isinstance(type_, ir.IndexType | ir.IntegerType | ir.FloatType):
        raise UnsupportedError(f"it reads a {type_} from outside")


def _function_around(op: Any) -> Any:
    while op.name != "func.func":
        op = op.parent.operation
    return op


def _entry_block(function: Any) -> Any:
    return function.regions[0].blocks[0]


def _move_body(op: Any, entry: Any, ranges: Sequence[_Range]) -> None:
    """Emits a loop from `begin` to `end` around the ops of `op`, with indices computed from the iteration number."""
    e, source = KernelEmitter(entry), op.regions[0].blocks[0]
    loop = scf.ForOp(entry.arguments[0], entry.arguments[1], e.value(1))
    with ir.InsertionPoint(loop.body):
        indices = _indices(e, loop.induction_variable, ranges)
        end = scf.yield_([])
    for argument, found in zip(source.arguments, indices, strict=True):
        argument.replace_all_uses_with(e.value(found))
    for inner in list(source.operations)[:-1]:
        inner.operation.move_before(end)


def _indices(e: KernelEmitter, number: Any, ranges: Sequence[_Range]) -> list[Index]:
    """Returns the value of each loop variable in iteration `number`; the last dim varies fastest."""
    found: list[Index] = []
    for position, r in reversed(list(enumerate(ranges))):
        if position:
            own, number = arith.remui(number, e.value(r.size)), arith.divui(number, e.value(r.size))
        else:
            own = number
        found.insert(0, e.add(e.mul(own, r.step), r.lower))
    return found
