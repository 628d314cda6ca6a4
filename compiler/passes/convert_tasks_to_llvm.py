"""`convert-tasks-to-llvm`: converts calls of tasks to calls of `buddy_fork`, which the runtime maps to OpenMP.

`buddy_fork(task, data, threads)` calls `task(data, thread, threads)` on each of up to `threads` threads, and returns
when all calls have returned. `data` holds the arguments of the task. Each thread processes its share of the range
`[begin, end)` of iterations: shares are contiguous and differ by at most one iteration. Object files refer to
`buddy_fork` alone, not to the OpenMP runtime. The number of threads does not affect results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from buddy.compiler.mlir.bindings import ir, llvm
from buddy.compiler.mlir.walk import callee_of, nested_ops, symbol_of
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.parallel_to_tasks import THREADS_ATTRIBUTE
from buddy.compiler.protocol.artifact import FORK

# Attribute of a task whose last argument is scratch memory: the number of bytes for each thread.
SCRATCH_BYTES_ATTRIBUTE = "buddy.slot"

DYNAMIC_GEP_INDEX = -(1 << 31)  # marks an index of `llvm.getelementptr` that is an operand


@register
@dataclass(frozen=True)
class ConvertTasksToLlvm(MlirPass):
    """Divides calls of tasks among threads, in the LLVM dialect; without it, the calling thread runs all iterations."""

    name: ClassVar[str] = "convert-tasks-to-llvm"
    summary: ClassVar[str] = "divide the range of each call of a task among threads of the process's OpenMP runtime"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        functions = [op.operation for op in root.regions[0].blocks[0] if op.operation.name == "llvm.func"]
        tasks = {symbol_of(op): op for op in functions if THREADS_ATTRIBUTE in op.attributes}
        if not tasks:
            return
        calls = [op for op in nested_ops(root) if op.name == "llvm.call" and callee_of(op) in tasks]
        for call in calls:
            task = tasks[callee_of(call)]
            threads = ir.IntegerAttr(task.attributes[THREADS_ATTRIBUTE]).value
            context.remark(self.name, call.location, f"up to {threads} threads call @{symbol_of(task)}, a share each")
            _replace_by_fork(call, task)
        for task in tasks.values():
            _restrict_to_share(task)
        with ir.InsertionPoint(root.regions[0].blocks[0]):
            _declare_fork()


def pointer_type() -> ir.Type:
    """Returns the type of LLVM's pointers."""
    return ir.Type.parse("!llvm.ptr")


def _integer(bits: int) -> ir.Type:
    return ir.IntegerType.get_signless(bits)


def _constant(number: int, bits: int) -> ir.Value:
    return llvm.mlir_constant(ir.IntegerAttr.get(_integer(bits), number))


def _data_type(task: ir.Operation) -> ir.Type:
    """Returns the struct type of a task's arguments."""
    types = ir.TypeAttr(task.attributes["function_type"]).value
    return ir.Type.parse(f"!llvm.struct<({', '.join(map(str, llvm.FunctionType(types).inputs))})>")


def _field_address(data: ir.Value, type_: ir.Type, number: int) -> ir.Value:
    """Returns the address of field `number` of the struct of `type_` at `data`."""
    return llvm.getelementptr(pointer_type(), data, [], [0, number], ir.TypeAttr.get(type_), [])


def _replace_by_fork(call: ir.Operation, task: ir.Operation) -> None:
    """Replaces `call` by a call of `buddy_fork`. The struct of arguments is allocated at the start of the caller."""
    type_, function = _data_type(task), call.parent.operation
    while function.name != "llvm.func":
        function = function.parent.operation
    with ir.InsertionPoint.at_block_begin(function.regions[0].blocks[0]), call.location:
        data = llvm.alloca(pointer_type(), _constant(1, 64), ir.TypeAttr.get(type_))
    with ir.InsertionPoint(call), call.location:
        for number, value in enumerate(call.operands):
            llvm.store(value, _field_address(data, type_, number))
        address = llvm.mlir_addressof(pointer_type(), symbol_of(task))
        threads = _constant(ir.IntegerAttr(task.attributes[THREADS_ATTRIBUTE]).value, 32)
        _emit_call(FORK, [address, data, threads])
    call.erase()


def _emit_call(name: str, operands: list[ir.Value]) -> None:
    """Emits a call of the function `name`, which returns nothing."""
    attributes = {
        "callee": ir.FlatSymbolRefAttr.get(name),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(operands), 0]),
        "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
    }
    ir.Operation.create("llvm.call", operands=operands, attributes=attributes)


def _restrict_to_share(task: ir.Operation) -> None:
    """Gives `task` the signature that `buddy_fork` calls, and restricts it to the share of its thread.

    A new entry block loads the arguments, and narrows the range and the scratch memory to those of the thread.
    """
    type_, body = _data_type(task), task.regions[0].blocks[0]
    scratch_bytes = 0
    if SCRATCH_BYTES_ATTRIBUTE in task.attributes:
        scratch_bytes = ir.IntegerAttr(task.attributes[SCRATCH_BYTES_ATTRIBUTE]).value
    entry = body.create_before(pointer_type(), _integer(32), _integer(32), arg_locs=[task.location] * 3)
    data, thread, threads = entry.arguments
    with ir.InsertionPoint(entry), task.location:
        fields = [
            llvm.load(argument.type, _field_address(data, type_, number))
            for number, argument in enumerate(body.arguments)
        ]
        wide_thread, wide_threads = (llvm.zext(_integer(64), value) for value in (thread, threads))
        fields[:2] = _share_bounds(fields[0], fields[1], wide_thread, wide_threads)
        if scratch_bytes:
            offset = llvm.mul(wide_thread, _constant(scratch_bytes, 64), llvm.IntegerOverflowFlags.none)
            byte = ir.TypeAttr.get(_integer(8))
            fields[-1] = llvm.getelementptr(pointer_type(), fields[-1], [offset], [DYNAMIC_GEP_INDEX], byte, [])
        llvm.br(fields, body)
    task.attributes["function_type"] = ir.TypeAttr.get(ir.Type.parse("!llvm.func<void (ptr, i32, i32)>"))
    for name in (THREADS_ATTRIBUTE, SCRATCH_BYTES_ATTRIBUTE, "arg_attrs"):
        if name in task.attributes:
            del task.attributes[name]


def _share_bounds(begin: ir.Value, end: ir.Value, thread: ir.Value, threads: ir.Value) -> list[ir.Value]:
    """Returns the bounds of the share of `thread`: `begin + count * t / threads` for t = `thread` and `thread` + 1."""
    flags = llvm.IntegerOverflowFlags.none
    count = llvm.sub(end, begin, flags)
    next_thread = llvm.add(thread, _constant(1, 64), flags)
    return [llvm.add(begin, llvm.udiv(llvm.mul(count, t, flags), threads), flags) for t in (thread, next_thread)]


def _declare_fork() -> None:
    """Emits the declaration of `buddy_fork`."""
    attributes = {
        "sym_name": ir.StringAttr.get(FORK),
        "function_type": ir.TypeAttr.get(ir.Type.parse("!llvm.func<void (ptr, ptr, i32)>")),
        "linkage": ir.Attribute.parse("#llvm.linkage<external>"),
    }
    ir.Operation.create("llvm.func", attributes=attributes, regions=1)
