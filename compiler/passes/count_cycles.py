"""`count-cycles`: instruments functions to count the cycles of each part, by the nodes that the part comes from.

A function's body is divided into regions: consecutive ops that come from the same nodes, with their preparation
(constants, views). After each region the counter is read, and the difference to the last reading is added to the
region's counter, so that the counters add up to the whole function.

A called function has separate counters for each call: the caller stores the number of the first one in the word before
all counters, and the callee reads it there. A call in a loop counts as part of the loop, and so does a parallel task,
whose time is that of the waiting thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from buddy.compiler.codegen.calling_convention import REGIONS, entry_of, regions_attribute
from buddy.compiler.mlir.bindings import func, ir, llvm
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.mlir.walk import callee_of, calls_in, symbol_of
from buddy.compiler.passes.base import MlirPass, PassContext, PassError, register
from buddy.compiler.passes.parallel_to_tasks import THREADS
from buddy.compiler.protocol.artifact import COUNTERS, TimedRegion
from buddy.compiler.support.target import CycleCounter, counter

# The first counter of the entry follows the word that callees read.
_FIRST = 1
_DYNAMIC = -(1 << 31)  # marks a GEP index that is an operand
_WORKING = ("linalg.", "vector.transfer_", "scf.", "affine.")


@register
@dataclass(frozen=True)
class CountCycles(MlirPass):
    """Runs after the passes that assign memory to functions, and before loops are lowered.

    Without `inside-calls` a call counts as one region. Without `ordered` the counter may be read before earlier
    instructions have completed, which costs less and separates short regions less precisely.
    """

    name: ClassVar[str] = "count-cycles"
    summary: ClassVar[str] = "count how long each part of a function takes, for a profile"

    inside_calls: bool = True
    ordered: bool = True

    def run(self, root: Any, context: PassContext) -> None:
        entry, found = entry_of(root), counter()
        if entry is None:
            raise PassError("no entry function was found: move the pass before convert-func-to-llvm")
        if found is None:
            raise PassError("this machine has no known cycle counter: only x86-64 and AArch64 are supported")
        if len(entry.regions[0].blocks) > 1:
            raise PassError("the entry contains branches: move the pass before convert-scf-to-cf")
        context.locations.fill(root)
        functions = _Functions(root, context.locations, self.inside_calls)
        frame = functions.frame(entry)
        root.attributes[REGIONS] = regions_attribute(list(frame.regions(-1, None)))
        read = found if self.ordered else _unordered(found)
        with ir.InsertionPoint.at_block_begin(root.regions[0].blocks[0]):
            func.FuncOp(COUNTERS, ([], [_pointer()]), visibility="private")
        for each in functions.frames.values():
            _Writer(each, read, is_entry=each is frame).write()
            context.remark(self.name, each.function.location, f"{len(each.parts)} regions of @{each.name}")


def _unordered(found: CycleCounter) -> CycleCounter:
    assembly = found.assembly.rpartition("\\0A")[2]
    return CycleCounter(found.name, found.intrinsics[-1:], assembly, found.constant_rate)


def _pointer() -> Any:
    return ir.Type.parse("!llvm.ptr")


def _word() -> Any:
    return ir.IntegerType.get_signless(64)


# ---- regions ---------------------------------------------------------------------------------------------------------


@dataclass
class _Part:
    """Consecutive ops; `call` is the frame of the called function, if its calls are counted separately."""

    ops: list[Any]
    nodes: tuple[str, ...]
    call: _Frame | None = None

    @property
    def what(self) -> str:
        working = next((op for op in self.ops if _takes_time(op)), self.ops[-1])
        return f"@{callee_of(working)}" if working.name == "func.call" else str(working.name)


@dataclass
class _Frame:
    """The counters of one call of `function`: those of its parts, then those of each call in it."""

    function: Any
    parts: list[_Part] = field(default_factory=list)

    @property
    def name(self) -> str:
        return symbol_of(self.function)

    @property
    def size(self) -> int:
        return len(self.parts) + sum(part.call.size for part in self.parts if part.call)

    def offsets(self) -> Iterator[tuple[_Part, int]]:
        """Yields the parts that are calls, with the offset of each call's counters."""
        offset = len(self.parts)
        for part in self.parts:
            if part.call is not None:
                yield part, offset
                offset += part.call.size

    def regions(self, parent: int, site: frozenset[str] | None, first: int = 0) -> Iterator[TimedRegion]:
        """Yields the regions of one call, in order; `site` are the nodes of this call."""
        nodes = [_nodes_at_site(site, part.nodes) for part in self.parts]
        for part, found in zip(self.parts, nodes, strict=True):
            yield TimedRegion(found, self.name, part.what, parent)
        numbers = {id(part): number for number, part in enumerate(self.parts)}
        for part, offset in self.offsets():
            assert part.call is not None
            number = numbers[id(part)]
            yield from part.call.regions(first + number, frozenset(nodes[number]), first + offset)


def _nodes_at_site(site: frozenset[str] | None, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Returns those of a shared function's nodes that belong to one call; all nodes if none does."""
    own = tuple(name for name in nodes if site is not None and name in site)
    return own or nodes


class _Functions:
    """Divides functions into parts, each once. Functions called from a loop or a task are not divided."""

    def __init__(self, root: Any, locations: LocationSets, inside_calls: bool) -> None:
        functions = [op.operation for op in root.regions[0].blocks[0] if op.operation.name == "func.func"]
        self._bodies = {symbol_of(op): op for op in functions if len(op.regions[0].blocks) == 1}
        self._locations = locations
        self._undivided = _undivided_functions(self._bodies) if inside_calls else set(self._bodies)
        self.frames: dict[str, _Frame] = {}

    def frame(self, function: Any) -> _Frame:
        """Returns the frame of `function`, creating it and those of its callees."""
        name = symbol_of(function)
        if name not in self.frames:
            parts = list(self._parts(function))
            self.frames[name] = _Frame(function, parts)
        return self.frames[name]

    def _parts(self, function: Any) -> Iterator[_Part]:
        """Yields the parts of the body without its terminator; preparation belongs to the next part."""
        waiting: list[Any] = []
        last: _Part | None = None
        *body, _ = function.regions[0].blocks[0].operations
        for op in (each.operation for each in body):
            waiting.append(op)
            if not _takes_time(op):
                continue
            nodes = self._locations.sets[self._locations.number_of(op.location)]
            call = self._callee_frame(op)
            if last is not None and last.nodes == nodes and call is None and last.call is None:
                last.ops += waiting
            else:
                if last is not None:
                    yield last
                last = _Part(waiting, nodes, call)
            waiting = []
        if last is not None:
            last.ops += waiting
            yield last

    def _callee_frame(self, op: Any) -> _Frame | None:
        """Returns the frame of the function that `op` calls, or `None` if it would add no detail."""
        name = callee_of(op) if op.name == "func.call" else ""
        if name not in self._bodies or name in self._undivided:
            return None
        body = self._bodies[name]
        if not calls_in(body) and len(list(self._parts(body))) < 2:
            return None
        return self.frame(body)


def _takes_time(op: Any) -> bool:
    """True if an op takes time, and does not only prepare operands of others."""
    return len(op.regions) > 0 or op.name in ("func.call", "memref.copy") or op.name.startswith(_WORKING)


def _undivided_functions(bodies: Mapping[str, Any]) -> set[str]:
    """Returns tasks, and functions that are called from elsewhere than the body of a divided function.

    Recursive functions are included: they would need an unlimited number of counters.
    """
    whole = {name for name, op in bodies.items() if THREADS in op.attributes}
    calls = [(name, call) for name, op in bodies.items() for call in calls_in(op)]
    whole |= {callee_of(call) for name, call in calls if call.parent.operation != bodies[name]}
    whole |= _recursive_functions({name: [callee_of(call) for at, call in calls if at == name] for name in bodies})
    while True:
        inner = {callee_of(call) for name, call in calls if name in whole}
        if inner <= whole:
            return whole
        whole |= inner


def _recursive_functions(called: Mapping[str, Sequence[str]]) -> set[str]:
    """Returns the functions that reach a recursive function: those left after leaves are removed repeatedly."""
    left = dict(called)
    while leaves := [name for name, callees in left.items() if not any(callee in left for callee in callees)]:
        for name in leaves:
            del left[name]
    return set(left)


# ---- code ------------------------------------------------------------------------------------------------------------


class _Writer:
    """Emits the counting code of one function."""

    def __init__(self, frame: _Frame, counter: CycleCounter, is_entry: bool) -> None:
        self._frame, self._counter, self._is_entry = frame, counter, is_entry

    def write(self) -> None:
        if not self._frame.parts:
            return
        function = self._frame.function
        with ir.InsertionPoint.at_block_begin(function.regions[0].blocks[0]), function.location:
            numbers = func.CallOp([_pointer()], ir.FlatSymbolRefAttr.get(COUNTERS), []).results[0]
            first = _constant(_FIRST) if self._is_entry else llvm.load(_word(), numbers)
            own = _element(numbers, first)
            before = self._read()
        *_, end = function.regions[0].blocks[0].operations
        following = [*(part.ops[0] for part in self._frame.parts[1:]), end]
        for number, (part, behind) in enumerate(zip(self._frame.parts, following, strict=True)):
            with ir.InsertionPoint(behind), part.ops[-1].location:
                before = self._count(number, own, before)
        for part, offset in self._frame.offsets():
            (call,) = (op for op in part.ops if op.name == "func.call")
            with ir.InsertionPoint(call), call.location:
                llvm.store(llvm.add(first, _constant(offset), _flags()), numbers)

    def _count(self, number: int, own: Any, before: Any) -> Any:
        """Adds the cycles since `before` to counter `number`. Returns the new counter value."""
        now = self._read()
        place = _element(own, _constant(number))
        passed = llvm.sub(now, before, _flags())
        llvm.store(llvm.add(llvm.load(_word(), place), passed, _flags()), place)
        return now

    def _read(self) -> Any:
        if not self._counter.intrinsics:
            attributes = {
                "asm_string": ir.StringAttr.get(self._counter.assembly.replace("\\0A", "\n")),
                "constraints": ir.StringAttr.get("=r,~{memory}"),
                "has_side_effects": ir.UnitAttr.get(),
            }
            return ir.Operation.create("llvm.inline_asm", results=[_word()], attributes=attributes).result
        *before, last = self._counter.intrinsics
        for name in before:
            llvm.call_intrinsic(None, name, [], [], [])
        return llvm.call_intrinsic(_word(), last, [], [], [])


def _element(address: Any, number: Any) -> Any:
    return llvm.getelementptr(_pointer(), address, [number], [_DYNAMIC], ir.TypeAttr.get(_word()), [])


def _constant(number: int) -> Any:
    return llvm.mlir_constant(ir.IntegerAttr.get(_word(), number))


def _flags() -> Any:
    return llvm.IntegerOverflowFlags.none
