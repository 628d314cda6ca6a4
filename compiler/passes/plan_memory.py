"""`plan-memory`: assigns every buffer an offset in one arena, which the caller of the entry allocates once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from buddy.compiler.codegen.arena import ALIGNMENT, ArenaSlot, Span, aligned, place_spans
from buddy.compiler.codegen.calling_convention import ARENA, entry_of
from buddy.compiler.mlir.bindings import func, ir, memref
from buddy.compiler.mlir.walk import RESULT, accesses, aliases_operand, attributes_of, bytes_of, calls_in, find_ops
from buddy.compiler.passes.base import MlirPass, PassContext, PassError, register
from buddy.compiler.passes.convert_tasks_to_llvm import SLOT
from buddy.compiler.passes.kernels.access import as_bytes, byte_type, part
from buddy.compiler.passes.parallel_to_tasks import THREADS


@register
@dataclass(frozen=True)
class PlanMemory(MlirPass):
    """Functions get the arena as their last argument, and pass the part that a callee needs to it.

    The entry's results serve as scratch memory until they are written. A task gets one part per thread. Public
    functions other than the entry, whose callers do not pass an arena, allocate their own. Without `arena` each buffer
    is freed after its last use. Without the pass, buffers are never freed.
    """

    name: ClassVar[str] = "plan-memory"
    summary: ClassVar[str] = "one arena for all buffers, reused by liveness; without the pass, buffers are never freed"

    arena: bool = True

    def run(self, root: Any, context: PassContext) -> None:
        functions = {_name(op.operation): op.operation for op in root.regions[0].blocks[0] if _has_body(op)}
        for name, function in functions.items():
            if len(function.regions[0].blocks) > 1:
                raise PassError(f"@{name} has several blocks: move {self.name} before convert-scf-to-cf")
        for function in functions.values():
            _free_dynamic(function, self.name, context)
        if self.arena:
            entry = entry_of(root)
            _Planner(functions, _name(entry) if entry is not None else "", context).run()
            return
        for function in functions.values():
            buffers = list(_buffers(function))
            if buffers:
                _free_after_use(buffers)
                total = sum(buffer.span.size for buffer in buffers)
                context.remark(
                    self.name, function.location, f"{_buffer_count(buffers)}, {total} bytes, each freed after use"
                )


def _free_dynamic(function: Any, name: str, context: PassContext) -> None:
    """Frees buffers of dynamic size, which are outside the arena, after their last use."""
    buffers = list(_buffers(function, static=False))
    if buffers:
        _free_after_use(buffers)
        context.remark(name, function.location, f"{_buffer_count(buffers)} of dynamic size, each freed after use")


def _name(function: Any) -> str:
    return str(ir.StringAttr(function.attributes["sym_name"]).value)


def _has_body(op: Any) -> bool:
    return op.operation.name == "func.func" and len(op.operation.regions[0].blocks) > 0


# ---- buffers and their live ranges -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Buffer:
    """An allocation, the ops that free it, and its live range, in positions of ops in a block."""

    op: Any
    frees: tuple[Any, ...]
    span: Span


def _positions_in(block: Any) -> dict[Any, int]:
    """Returns the position of each op of `block`."""
    return {op.operation: i for i, op in enumerate(block.operations)}


def _buffers(function: Any, positions: dict[Any, int] | None = None, static: bool = True) -> Iterator[_Buffer]:
    """Yields the allocations in `function` of static size (or of dynamic size) that have no alias.

    Live ranges are in `positions`, or in positions of their own blocks without it. Dynamic sizes are 0.
    """
    outer = block = function.regions[0].blocks[0]
    inside = positions
    for op in sorted(find_ops(function, "memref.alloc"), key=lambda op: op.block != outer):
        if inside is None or (positions is None and op.block != block):
            block, inside = op.block, _positions_in(op.block)
        kind = ir.MemRefType(op.results[0].type)
        users = list(accesses(op.results[0]))
        if kind.has_static_shape is not static or any(map(aliases_operand, users)):
            continue
        frees = tuple(user for user in users if user.name == "memref.dealloc")
        steps = [_position(user, inside) for user in users] or [_position(op, inside)]
        yield _Buffer(op, frees, Span(bytes_of(kind) if static else 0, min(steps), max(steps)))


def _position(op: Any, positions: dict[Any, int]) -> int:
    """Returns the position of `op`, or of the enclosing op that has one."""
    while op not in positions:
        op = op.parent.operation
    return positions[op]


def _buffer_count(buffers: Sequence[Any]) -> str:
    return f"{len(buffers)} buffer{'s' * (len(buffers) != 1)}"


# ---- one arena -------------------------------------------------------------------------------------------------------


@dataclass
class _Planner:
    """Plans callees before their callers. `needs` are the bytes that a call of each function needs, including scratch.

    `active` are the functions that are being planned, and `recursive` are recursive functions, as those that MLIR's
    `async-parallel-for` creates.
    """

    functions: dict[str, Any]
    entry: str
    context: PassContext
    needs: dict[str, int] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)
    recursive: set[str] = field(default_factory=set)

    def run(self) -> None:
        for name in self.functions:
            self._plan(name)

    def _plan(self, name: str) -> None:
        if name in self.needs:
            return
        function = self.functions[name]
        self.needs[name] = 0
        calls = [op for op in calls_in(function) if _callee(op) in self.functions]
        self.active.add(name)
        for callee in dict.fromkeys(map(_callee, calls)):
            if callee in self.active:
                self.recursive.add(callee)
            self._plan(callee)
        self.active.remove(name)
        calls = [call for call in calls if self.needs[_callee(call)]]
        positions = _positions_in(function.regions[0].blocks[0])
        buffers = list(_buffers(function, positions))
        steps = [_position(call, positions) for call in calls]
        passed = [Span(self.needs[_callee(call)], step, step) for call, step in zip(calls, steps, strict=True)]
        if not buffers and not passed:
            return
        if name in self.recursive:
            raise PassError(f"@{name} is recursive, so its memory is unbounded: disable the pass that created it")
        # Only for the entry: calls of other functions pass buffers of their own types.
        results = _results(function, positions) if name == self.entry else []
        places, size = place_spans([*(buffer.span for buffer in buffers), *passed], [span for _, span in results])
        rooms = {number: as_bytes(function, results[number][0]) for number in sorted(_rooms(places))}
        self.needs[name] = self._place_buffers(function, buffers, calls, places, rooms, max(1, size))

    def _place_buffers(
        self, function: Any, buffers: Sequence[_Buffer], calls: Sequence[Any], places: Sequence[ArenaSlot],
        rooms: dict[int, Any], size: int,
    ) -> int:  # fmt: skip
        """Places buffers and callees' memory in an arena of `size` bytes or in `rooms`; returns the bytes per call."""
        threads = ir.IntegerAttr(function.attributes[THREADS]).value if THREADS in function.attributes else 1
        need = aligned(size) * threads if threads > 1 else size
        is_entry = _name(function) == self.entry
        private = "sym_visibility" in function.attributes or is_entry
        arena = _argument(function, need, is_entry) if private else _allocate_arena(function, size)
        if threads > 1:
            function.attributes[SLOT] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), aligned(size))
        for buffer, found in zip(buffers, places, strict=False):
            _replace_by_view(buffer, arena if found.room is None else rooms[found.room], found.offset)
        for call, found in zip(calls, places[len(buffers) :], strict=True):
            memory = arena if found.room is None else rooms[found.room]
            _pass_part(call, memory, found.offset, self.needs[_callee(call)])
        if buffers:
            total = sum(buffer.span.size for buffer in buffers)
            shares = f", once for each of {threads} threads" if threads > 1 else ""
            text = f"{_buffer_count(buffers)}, {total} bytes, in {size}{shares}"
            self.context.remark(PlanMemory.name, function.location, text)
        return need if private else 0


def _rooms(places: Sequence[ArenaSlot]) -> set[int]:
    return {found.room for found in places if found.room is not None}


def _results(function: Any, positions: dict[Any, int]) -> list[tuple[Any, Span]]:
    """Returns the out-parameters, with the range of ops during which they are in use: from the first access on."""
    flags = ir.ArrayAttr(function.attributes["arg_attrs"]) if "arg_attrs" in function.attributes else []
    found = []
    for argument, flag in zip(function.regions[0].blocks[0].arguments, flags, strict=False):
        if RESULT in ir.DictAttr(flag) and ir.MemRefType(argument.type).has_static_shape:
            first = min((_position(user, positions) for user in accesses(argument)), default=0)
            found.append((argument, Span(bytes_of(argument.type), first, len(positions))))
    return found


def _callee(call: Any) -> str:
    return str(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)


def _argument(function: Any, size: int, is_entry: bool) -> Any:
    """Adds a last argument of `size` bytes to `function`."""
    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    type_ = ir.FunctionType.get([*kind.inputs, byte_type(size)], kind.results)
    flags = [ir.DictAttr.get({})] * len(kind.inputs)
    if "arg_attrs" in function.attributes:
        flags = list(ir.ArrayAttr(function.attributes["arg_attrs"]))
    mark = {ARENA: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), size)} if is_entry else {}
    function.attributes["function_type"] = ir.TypeAttr.get(type_)
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([*flags, ir.DictAttr.get(mark)])
    return function.regions[0].blocks[0].add_argument(byte_type(size), function.location)


def _allocate_arena(function: Any, size: int) -> Any:
    """Emits an arena that `function` allocates at its start and frees before it returns."""
    block = function.regions[0].blocks[0]
    alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), ALIGNMENT)
    with ir.InsertionPoint.at_block_begin(block), function.location:
        arena = memref.AllocOp(byte_type(size), [], [], alignment=alignment).result
    _free(block, len(block.operations) - 1, arena)
    return arena


def _replace_by_view(buffer: _Buffer, arena: Any, offset: int) -> None:
    for free in buffer.frees:
        free.erase()
    value = buffer.op.results[0]
    with ir.InsertionPoint(buffer.op), buffer.op.location:
        value.replace_all_uses_with(part(arena, offset, value.type))
    buffer.op.erase()


def _pass_part(call: Any, arena: Any, offset: int, size: int) -> None:
    """Adds the `size` bytes at `offset` to `call` as an operand."""
    with ir.InsertionPoint(call), call.location:
        passed = part(arena, offset, byte_type(size))
        callee = ir.FlatSymbolRefAttr.get(_callee(call))
        new = func.CallOp([result.type for result in call.results], callee, [*call.operands, passed])
    for old, result in zip(call.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    for key, attribute in attributes_of(call).items():
        new.operation.attributes[key] = attribute
    call.erase()


# ---- without an arena ------------------------------------------------------------------------------------------------


def _free_after_use(buffers: Sequence[_Buffer]) -> None:
    for buffer in sorted(buffers, key=lambda found: -found.span.last):
        if not buffer.frees:
            _free(buffer.op.block, buffer.span.last + 1, buffer.op.results[0])


def _free(block: Any, position: int, value: Any) -> None:
    """Frees `value` before op number `position`."""
    before = block.operations[position].operation
    with ir.InsertionPoint(before), before.location:
        memref.DeallocOp(value)
