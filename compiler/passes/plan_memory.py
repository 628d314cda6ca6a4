"""`plan-memory`: assigns every buffer an offset in one arena, which the caller of the entry allocates once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from buddy.compiler.codegen.arena import ALIGNMENT, ArenaSlot, Span, aligned, place_after, place_spans
from buddy.compiler.codegen.calling_convention import (
    ARENA_BYTES_ATTRIBUTE,
    SOURCE_ATTRIBUTE,
    entry_of,
    memory_attribute,
)
from buddy.compiler.mlir.bindings import func, ir, memref
from buddy.compiler.mlir.walk import (
    OUT_PARAMETER,
    SAVED_ARGUMENT,
    accessing_ops,
    aliases_operand,
    attributes_of,
    bytes_of,
    callee_of,
    calls_in,
    find_ops,
    functions_of,
    symbol_of,
)
from buddy.compiler.passes.base import MlirPass, PassContext, PassError, register
from buddy.compiler.passes.convert_tasks_to_llvm import SCRATCH_BYTES_ATTRIBUTE
from buddy.compiler.passes.kernels.access import byte_type, byte_view, retype_as_bytes
from buddy.compiler.passes.parallel_to_tasks import THREADS_ATTRIBUTE

# Smaller results, in bytes, get memory of their own: an allocation costs less than the checks of the runtime.
MIN_SHARED_BYTES = 128 << 10


@register
@dataclass(frozen=True)
class PlanMemory(MlirPass):
    """Adds the arena as the last argument of functions, which pass a part of it to each callee that needs memory.

    The entry's result buffers serve as scratch memory until their results are written. A large result of a backward
    graph may be written to a tensor that the forward graph saved, after the last use of this tensor. The runtime
    decides this in each call, since the tensor may be in use elsewhere. A task gets one part of the arena per thread. A
    public function other than the entry allocates its arena itself, since its callers do not pass one. Without `arena`,
    each buffer is freed after its last use. Without the pass, buffers are never freed.
    """

    name: ClassVar[str] = "plan-memory"
    summary: ClassVar[str] = "place all buffers in one arena by liveness; without the pass, buffers are never freed"

    arena: bool = True

    def run(self, root: ir.Operation, context: PassContext) -> None:
        functions = functions_of(root)
        for name, function in functions.items():
            if len(function.regions[0].blocks) > 1:
                raise PassError(f"@{name} has several blocks: move {self.name} before convert-scf-to-cf")
        for function in functions.values():
            _free_dynamic_buffers(function, self.name, context)
        if self.arena:
            entry = entry_of(root)
            _ArenaPlanner(functions, symbol_of(entry) if entry is not None else "", context).run()
            return
        for function in functions.values():
            buffers = list(_buffers(function, _Clock()))
            if buffers:
                _free_after_use(buffers)
                total = sum(buffer.use.size for buffer in buffers)
                context.remark(
                    self.name, function.location, f"{_describe_count(buffers)}, {total} bytes, each freed after use"
                )


def _free_dynamic_buffers(function: ir.Operation, name: str, context: PassContext) -> None:
    """Frees buffers of dynamic size, which are outside the arena, after their last use."""
    buffers = list(_buffers(function, _Clock(), static=False))
    if buffers:
        _free_after_use(buffers)
        context.remark(name, function.location, f"{_describe_count(buffers)} of dynamic size, each freed after use")


# ---- buffers and their live ranges -----------------------------------------------------------------------------------


# A time in a call of a function; comparison gives the order in which ops run. It has, from the outermost block to the
# innermost: the number of the block in its op (none for the function's body), and a position in the block.
_Time = tuple[float, ...]


@dataclass(frozen=True)
class _Use:
    """`size` bytes that are in use from the time `first` to the time `last`."""

    size: int
    first: _Time
    last: _Time


@dataclass(frozen=True)
class _Buffer:
    """An allocation, the ops that free it, and its use in one iteration of the loops around it."""

    op: Any
    frees: tuple[Any, ...]
    use: _Use


# An argument of a function and its use.
_ArgumentUse = tuple[ir.BlockArgument, _Use]

_START: _Time = (-1,)
_END: _Time = (math.inf,)


class _Clock:
    """The times of ops in one function, before the function is changed."""

    def __init__(self) -> None:
        self._blocks: dict[ir.Block, tuple[_Time, dict[ir.Operation, int]]] = {}

    def start(self, op: ir.Operation) -> _Time:
        """Returns the time at which `op` begins."""
        time, positions = self._of_block(op.block)
        return (*time, positions[op])

    def end(self, op: ir.Operation) -> _Time:
        """Returns the time at which `op` ends, after all ops in its regions."""
        return (*self.start(op), math.inf)

    def use(self, size: int, ops: Iterable[ir.Operation], block: ir.Block) -> _Use | None:
        """Returns the use of memory that `ops` access in an iteration of `block`; `None` if there are no ops."""
        enclosing = [_enclosing_op(op, block) for op in ops]
        if not enclosing:
            return None
        return _Use(size, min(map(self.start, enclosing)), max(map(self.end, enclosing)))

    def _of_block(self, block: ir.Block) -> tuple[_Time, dict[ir.Operation, int]]:
        if block not in self._blocks:
            owner, time = block.owner.operation, _Time()
            blocks = [each for region in owner.regions for each in region.blocks]
            if owner.name != "func.func":
                time = (*self.start(owner), blocks.index(block))
            self._blocks[block] = time, {op.operation: i for i, op in enumerate(block.operations)}
        return self._blocks[block]


def _enclosing_op(op: ir.Operation, block: ir.Block) -> ir.Operation:
    """Returns `op`, or the op of `block` that encloses it."""
    while op.block != block:
        op = op.parent.operation
    return op


def _spans_of(*groups: Sequence[_Use]) -> list[list[Span]]:
    """Returns the uses of each group as spans, whose steps are numbers of times in order."""
    times = sorted({time for uses in groups for use in uses for time in (use.first, use.last)})
    numbers = {time: number for number, time in enumerate(times)}
    return [[Span(use.size, numbers[use.first], numbers[use.last]) for use in uses] for uses in groups]


def _buffers(function: ir.Operation, clock: _Clock, static: bool = True) -> Iterator[_Buffer]:
    """Yields the allocations in `function` that have no alias: those of static size, or those of dynamic size.

    The size of a buffer of dynamic size is given as 0.
    """
    entry_block = function.regions[0].blocks[0]
    for op in sorted(find_ops(function, "memref.alloc"), key=lambda op: op.block != entry_block):
        type_ = ir.MemRefType(op.results[0].type)
        users = list(accessing_ops(op.results[0]))
        if type_.has_static_shape is not static or any(map(aliases_operand, users)):
            continue
        frees = tuple(user for user in users if user.name == "memref.dealloc")
        use = clock.use(bytes_of(type_) if static else 0, users or [op], op.block)
        assert use is not None
        yield _Buffer(op, frees, use)


def _describe_count(buffers: Sequence[_Buffer]) -> str:
    return f"{len(buffers)} buffer{'s' * (len(buffers) != 1)}"


# ---- one arena -------------------------------------------------------------------------------------------------------


@dataclass
class _ArenaPlanner:
    """Plans callees before their callers, and rewrites each function to the planned memory.

    `needed_bytes` has the bytes that a call of each function needs, including those of its callees. `active` has the
    functions that are being planned, and `recursive` those that call themselves, such as the functions that MLIR's
    `async-parallel-for` creates.
    """

    functions: dict[str, Any]
    entry: str
    context: PassContext
    needed_bytes: dict[str, int] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)
    recursive: set[str] = field(default_factory=set)

    def run(self) -> None:
        for name in self.functions:
            self._plan(name)

    def _plan(self, name: str) -> None:
        """Plans the function `name`, after its callees. Raises `PassError` if it is recursive and needs memory."""
        if name in self.needed_bytes:
            return
        function = self.functions[name]
        self.needed_bytes[name] = 0
        calls = [op for op in calls_in(function) if callee_of(op) in self.functions]
        self.active.add(name)
        for callee in dict.fromkeys(map(callee_of, calls)):
            if callee in self.active:
                self.recursive.add(callee)
            self._plan(callee)
        self.active.remove(name)
        calls = [call for call in calls if self.needed_bytes[callee_of(call)]]
        clock = _Clock()
        buffers = list(_buffers(function, clock))
        call_uses = [_Use(self.needed_bytes[callee_of(call)], clock.start(call), clock.end(call)) for call in calls]
        # Only the entry's results are scratch memory: calls of other functions pass results of fixed memref types.
        results = _result_uses(function, clock) if name == self.entry else []
        saved = _saved_uses(function, clock) if name == self.entry else []
        spans, result_spans, saved_spans = _spans_of(
            [*(buffer.use for buffer in buffers), *call_uses], [use for _, use in results], [use for _, use in saved]
        )
        saved_slots = _places_in_saved(result_spans, saved_spans)
        shared = {
            number: _shared_bytes(result_spans[number], slot, saved_spans) for number, slot in saved_slots.items()
        }
        slots, size, kept = _place_scratch(spans, result_spans, shared)
        used_results = sorted({slot.buffer for slot in slots if slot.buffer is not None})
        saved_slots = {number: slot for number, slot in saved_slots.items() if number in kept}
        if saved_slots:
            self._mark_places_in_saved(function, results, saved, saved_slots)
        if not spans:
            return
        if name in self.recursive:
            raise PassError(f"@{name} is recursive, so its memory is unbounded: disable the pass that created it")
        result_bytes = {number: retype_as_bytes(function, results[number][0]) for number in used_results}
        self.needed_bytes[name] = self._place_buffers(function, buffers, calls, slots, result_bytes, max(1, size))

    def _mark_places_in_saved(
        self, function: ir.Operation, results: Sequence[_ArgumentUse], saved: Sequence[_ArgumentUse],
        saved_slots: Mapping[int, ArenaSlot],
    ) -> None:  # fmt: skip
        """Marks results with their places in saved tensors, which `saved_slots` has by number of the result."""
        attributes = _argument_attributes(function)
        for number, slot in saved_slots.items():
            assert slot.buffer is not None
            source = ir.DictAttr(attributes[saved[slot.buffer][0].arg_number])[SOURCE_ATTRIBUTE]
            position = results[number][0].arg_number
            old_attributes = {named.name: named.attr for named in ir.DictAttr(attributes[position])}
            place = memory_attribute(int(ir.IntegerAttr(source).value), slot.offset)
            attributes[position] = ir.DictAttr.get(old_attributes | place)
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
        total, count = sum(results[number][1].size for number in saved_slots), len(saved_slots)
        text = f"{count} result{'s' * (count != 1)}, {total} bytes, in the memory of saved tensors"
        self.context.remark(PlanMemory.name, function.location, text)

    def _place_buffers(
        self, function: ir.Operation, buffers: Sequence[_Buffer], calls: Sequence[ir.Operation],
        slots: Sequence[ArenaSlot], result_bytes: dict[int, ir.Value], size: int,
    ) -> int:  # fmt: skip
        """Replaces buffers by views, and passes memory to callees, in an arena of `size` bytes or in results.

        `slots` are those of `buffers` and then of `calls`; `result_bytes` has the result buffers that are used as
        scratch memory, as bytes. Returns the bytes that a call of `function` needs: 0 if the function allocates its
        arena.
        """
        threads = (
            ir.IntegerAttr(function.attributes[THREADS_ATTRIBUTE]).value
            if THREADS_ATTRIBUTE in function.attributes
            else 1
        )
        arena_bytes = aligned(size) * threads if threads > 1 else size
        is_entry = symbol_of(function) == self.entry
        takes_arena = "sym_visibility" in function.attributes or is_entry
        arena = _add_arena_argument(function, arena_bytes, is_entry) if takes_arena else _allocate_arena(function, size)
        if threads > 1:
            function.attributes[SCRATCH_BYTES_ATTRIBUTE] = ir.IntegerAttr.get(
                ir.IntegerType.get_signless(64), aligned(size)
            )
        for buffer, slot in zip(buffers, slots, strict=False):
            _replace_by_view(buffer, arena if slot.buffer is None else result_bytes[slot.buffer], slot.offset)
        for call, slot in zip(calls, slots[len(buffers) :], strict=True):
            memory = arena if slot.buffer is None else result_bytes[slot.buffer]
            _pass_memory(call, memory, slot.offset, self.needed_bytes[callee_of(call)])
        if buffers:
            total = sum(buffer.use.size for buffer in buffers)
            per_thread = f", once for each of {threads} threads" if threads > 1 else ""
            text = f"{_describe_count(buffers)}, {total} bytes, in {size}{per_thread}"
            self.context.remark(PlanMemory.name, function.location, text)
        return arena_bytes if takes_arena else 0


def _saved_uses(function: ir.Operation, clock: _Clock) -> list[_ArgumentUse]:
    """Returns each large saved tensor of a backward graph, and its use from the start to its last read."""
    uses = []
    block = function.regions[0].blocks[0]
    for argument, attribute in zip(block.arguments, _argument_attributes(function), strict=False):
        if SAVED_ARGUMENT not in ir.DictAttr(attribute) or not ir.MemRefType(argument.type).has_static_shape:
            continue
        size, users = bytes_of(argument.type), list(accessing_ops(argument))
        if size >= MIN_SHARED_BYTES and not any(map(aliases_operand, users)):
            use = clock.use(size, users, block)
            uses.append((argument, _Use(size, _START, _START if use is None else use.last)))
    return uses


def _argument_attributes(function: ir.Operation) -> list[ir.Attribute]:
    return list(ir.ArrayAttr(function.attributes["arg_attrs"])) if "arg_attrs" in function.attributes else []


def _places_in_saved(results: Sequence[Span], saved: Sequence[Span]) -> dict[int, ArenaSlot]:
    """Returns places in saved tensors for large results that are written after the last use of a tensor.

    A place may end after the tensor: the runtime allocates tensors with enough memory.
    """
    large = [number for number, span in enumerate(results) if span.size >= MIN_SHARED_BYTES]
    slots = place_after([results[number] for number in large], saved)
    return {number: slot for number, slot in zip(large, slots, strict=True) if slot is not None}


def _shared_bytes(result: Span, slot: ArenaSlot, saved: Sequence[Span]) -> int:
    """Returns how many of the first bytes of a result at `slot` are memory of a saved tensor."""
    assert slot.buffer is not None
    return min(result.size, aligned(saved[slot.buffer].size - slot.offset))


def _place_scratch(
    spans: Sequence[Span], results: Sequence[Span], shared: Mapping[int, int]
) -> tuple[list[ArenaSlot], int, set[int]]:
    """Returns the places of scratch buffers in the arena and in results, and the size of the arena.

    `shared` has, by number of a result, how many of its first bytes may be memory of a saved tensor. These bytes hold
    no scratch buffers, since the tensor is in use until the result is written. Also returns the numbers of the results
    in `shared` that stay in saved tensors. The others hold scratch buffers in all of their bytes, which saves more
    memory.
    """
    slots, size = place_spans(spans, results)
    results_with_both = {slot.buffer for slot in slots if slot.buffer in shared}
    if not results_with_both:
        return slots, size, set(shared)
    unshared = [Span(span.size - shared.get(number, 0), span.first, span.last) for number, span in enumerate(results)]
    unshared_slots, unshared_size = place_spans(spans, unshared)
    if unshared_size > size + sum(shared[number] for number in results_with_both if number is not None):
        return slots, size, shared.keys() - results_with_both
    moved = [
        slot if slot.buffer is None else ArenaSlot(slot.offset + shared.get(slot.buffer, 0), slot.buffer)
        for slot in unshared_slots
    ]
    return moved, unshared_size, set(shared)


def _result_uses(function: ir.Operation, clock: _Clock) -> list[_ArgumentUse]:
    """Returns each out-parameter of static size, and its use from its first access to the end of the function."""
    uses = []
    block = function.regions[0].blocks[0]
    for argument, attribute in zip(block.arguments, _argument_attributes(function), strict=False):
        if OUT_PARAMETER in ir.DictAttr(attribute) and ir.MemRefType(argument.type).has_static_shape:
            size = bytes_of(argument.type)
            use = clock.use(size, accessing_ops(argument), block)
            uses.append((argument, _Use(size, _START if use is None else use.first, _END)))
    return uses


def _add_arena_argument(function: ir.Operation, size: int, is_entry: bool) -> ir.Value:
    """Adds an arena of `size` bytes to `function` as its last argument; returns the argument."""
    old = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    new = ir.FunctionType.get([*old.inputs, byte_type(size)], old.results)
    attributes = [ir.DictAttr.get({})] * len(old.inputs)
    if "arg_attrs" in function.attributes:
        attributes = list(ir.ArrayAttr(function.attributes["arg_attrs"]))
    arena = {ARENA_BYTES_ATTRIBUTE: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), size)} if is_entry else {}
    function.attributes["function_type"] = ir.TypeAttr.get(new)
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([*attributes, ir.DictAttr.get(arena)])
    return function.regions[0].blocks[0].add_argument(byte_type(size), function.location)


def _allocate_arena(function: ir.Operation, size: int) -> ir.Value:
    """Emits an arena that `function` allocates at its start and frees before it returns."""
    block = function.regions[0].blocks[0]
    alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), ALIGNMENT)
    with ir.InsertionPoint.at_block_begin(block), function.location:
        arena = memref.AllocOp(byte_type(size), [], [], alignment=alignment).result
    _free(block, len(block.operations) - 1, arena)
    return arena


def _replace_by_view(buffer: _Buffer, arena: ir.Value, offset: int) -> None:
    """Replaces an allocation by a view of `arena` from byte `offset` on, and erases the ops that free it."""
    for free in buffer.frees:
        free.erase()
    value = buffer.op.results[0]
    with ir.InsertionPoint(buffer.op), buffer.op.location:
        value.replace_all_uses_with(byte_view(arena, offset, value.type))
    buffer.op.erase()


def _pass_memory(call: ir.Operation, arena: ir.Value, offset: int, size: int) -> None:
    """Adds the `size` bytes at `offset` of `arena` to `call` as its last operand."""
    with ir.InsertionPoint(call), call.location:
        memory = byte_view(arena, offset, byte_type(size))
        callee = ir.FlatSymbolRefAttr.get(callee_of(call))
        new = func.CallOp([result.type for result in call.results], callee, [*call.operands, memory])
    for old, result in zip(call.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    for key, attribute in attributes_of(call).items():
        new.operation.attributes[key] = attribute
    call.erase()


# ---- without an arena ------------------------------------------------------------------------------------------------


def _free_after_use(buffers: Sequence[_Buffer]) -> None:
    """Frees each buffer after its last use, if no op frees it yet."""
    for buffer in buffers:
        if not buffer.frees:
            value, block = buffer.op.results[0], buffer.op.block
            users = {_enclosing_op(user, block) for user in accessing_ops(value)} or {buffer.op}
            _free(block, 1 + max(i for i, op in enumerate(block.operations) if op.operation in users), value)


def _free(block: ir.Block, position: int, value: ir.Value) -> None:
    """Frees `value` before op number `position` of `block`."""
    next_op = block.operations[position].operation
    with ir.InsertionPoint(next_op), next_op.location:
        memref.DeallocOp(value)
