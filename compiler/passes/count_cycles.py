"""`count-cycles`: instruments functions to count the cycles of each region, by the nodes that the region comes from.

A function's body is divided into regions: consecutive ops that come from the same nodes, with the ops that prepare
their operands (constants, views). After each region the processor's cycle counter is read, and the difference to the
previous reading is added to the region's counter in memory, so that the counters add up to the whole function.

A called function has separate counters for each call: the caller stores the number of the first one in the word before
all counters, and the callee loads it from there. A call in a loop counts as part of the loop. A parallel task counts as
part of its caller, with the cycles of the thread that waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from buddy.compiler.codegen.calling_convention import REGIONS_ATTRIBUTE, entry_of, regions_attribute
from buddy.compiler.mlir.bindings import func, ir, llvm
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.mlir.walk import callee_of, calls_in, symbol_of
from buddy.compiler.passes.base import MlirPass, PassContext, PassError, register
from buddy.compiler.passes.convert_tasks_to_llvm import DYNAMIC_GEP_INDEX, pointer_type
from buddy.compiler.passes.parallel_to_tasks import THREADS_ATTRIBUTE
from buddy.compiler.protocol.artifact import COUNTERS, TimedRegion
from buddy.compiler.support.timing import CycleCounter, cycle_counter

# The number of words before the first counter: the word in which a callee finds the number of its first counter.
_HEADER_WORDS = 1
# Prefixes of ops that take time; other ops only prepare operands.
_TIMED_OPS = ("linalg.", "vector.transfer_", "scf.", "affine.")


@register
@dataclass(frozen=True)
class CountCycles(MlirPass):
    """Inserts the counters. It belongs after the passes that assign memory to functions, and before those on loops.

    Without `inside-calls` a call counts as one region. Without `ordered` the counter may be read before earlier
    instructions have completed, which costs less and separates short regions less precisely.
    """

    name: ClassVar[str] = "count-cycles"
    summary: ClassVar[str] = "count how long each part of a function takes, for a profile"

    inside_calls: bool = True
    ordered: bool = True

    def run(self, root: ir.Operation, context: PassContext) -> None:
        entry, counter = entry_of(root), cycle_counter()
        if entry is None:
            raise PassError("no entry function was found: move the pass before convert-func-to-llvm")
        if counter is None:
            raise PassError("this machine has no known cycle counter: only x86-64 and AArch64 are supported")
        if len(entry.regions[0].blocks) > 1:
            raise PassError("the entry contains branches: move the pass before convert-scf-to-cf")
        context.locations.fill(root)
        functions = _Functions(root, context.locations, self.inside_calls)
        frame = functions.frame(entry)
        root.attributes[REGIONS_ATTRIBUTE] = regions_attribute(list(frame.timed_regions(parent=-1, site=None)))
        counter = counter if self.ordered else _unordered(counter)
        with ir.InsertionPoint.at_block_begin(root.regions[0].blocks[0]):
            func.FuncOp(COUNTERS, ([], [pointer_type()]), visibility="private")
        for function_frame in functions.frames.values():
            _CodeEmitter(function_frame, counter, is_entry=function_frame is frame).emit()
            text = f"{len(function_frame.regions)} regions of @{function_frame.name}"
            context.remark(self.name, function_frame.function.location, text)


def _unordered(counter: CycleCounter) -> CycleCounter:
    """Returns `counter` without the instructions before the read, which wait for earlier instructions."""
    assembly = counter.assembly.rpartition("\\0A")[2]
    return CycleCounter(counter.name, counter.intrinsics[-1:], assembly, counter.constant_rate)


def _word() -> ir.Type:
    """Returns the type of a counter."""
    return ir.IntegerType.get_signless(64)


# ---- regions ---------------------------------------------------------------------------------------------------------


@dataclass
class _Region:
    """A region: consecutive ops of one function that come from `nodes`.

    `call` is the frame of the called function, if the region is a call whose regions are counted separately.
    """

    ops: list[Any]
    nodes: tuple[str, ...]
    call: _Frame | None = None

    @property
    def op_name(self) -> str:
        """Returns the name of the first op that takes time; for a call, "@" and the callee."""
        op = next((op for op in self.ops if _takes_time(op)), self.ops[-1])
        return f"@{callee_of(op)}" if op.name == "func.call" else str(op.name)


@dataclass
class _Frame:
    """The counters of one call of `function`: those of its regions, then those of each call in it."""

    function: Any
    regions: list[_Region] = field(default_factory=list)

    @property
    def name(self) -> str:
        return symbol_of(self.function)

    @property
    def size(self) -> int:
        """Returns the number of counters."""
        return len(self.regions) + sum(region.call.size for region in self.regions if region.call)

    def calls(self) -> Iterator[tuple[_Region, int]]:
        """Yields the regions that are calls, each with the offset of the call's first counter in this frame."""
        offset = len(self.regions)
        for region in self.regions:
            if region.call is not None:
                yield region, offset
                offset += region.call.size

    def timed_regions(self, parent: int, site: frozenset[str] | None, first: int = 0) -> Iterator[TimedRegion]:
        """Yields the region of each counter of one call, in order.

        `parent` is the number of the region that makes the call (-1 for the entry), `site` has the nodes of this call
        (`None` for the entry), and `first` is the number of the first counter.
        """
        nodes_of_regions = [_nodes_at_site(site, region.nodes) for region in self.regions]
        for region, nodes in zip(self.regions, nodes_of_regions, strict=True):
            yield TimedRegion(nodes, self.name, region.op_name, parent)
        numbers = {id(region): number for number, region in enumerate(self.regions)}
        for region, offset in self.calls():
            assert region.call is not None
            number = numbers[id(region)]
            yield from region.call.timed_regions(first + number, frozenset(nodes_of_regions[number]), first + offset)


def _nodes_at_site(site: frozenset[str] | None, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the ones of `nodes` that belong to the call at `site`; all if none does.

    Several calls may share a function, whose regions then have the nodes of all calls. `site` has the nodes of the
    call, and is `None` for the entry.
    """
    nodes_of_call = tuple(name for name in nodes if site is not None and name in site)
    return nodes_of_call or nodes


class _Functions:
    """Divides functions into regions, and keeps the frame of each; functions called from loops or tasks have no frame.

    Unless `inside_calls`, only the entry is divided.
    """

    def __init__(self, root: ir.Operation, locations: LocationSets, inside_calls: bool) -> None:
        functions = [op.operation for op in root.regions[0].blocks[0] if op.operation.name == "func.func"]
        self._bodies = {symbol_of(op): op for op in functions if len(op.regions[0].blocks) == 1}
        self._locations = locations
        self._undivided = _undivided_functions(self._bodies) if inside_calls else set(self._bodies)
        self.frames: dict[str, _Frame] = {}

    def frame(self, function: ir.Operation) -> _Frame:
        """Returns the frame of `function`; the first call creates it, with the frames of its callees."""
        name = symbol_of(function)
        if name not in self.frames:
            regions = list(self._divide(function))
            self.frames[name] = _Frame(function, regions)
        return self.frames[name]

    def _divide(self, function: ir.Operation) -> Iterator[_Region]:
        """Yields the regions of the body without its terminator; ops that take no time belong to the next region."""
        pending: list[Any] = []
        last: _Region | None = None
        *body, _ = function.regions[0].blocks[0].operations
        for op in (view.operation for view in body):
            pending.append(op)
            if not _takes_time(op):
                continue
            nodes = self._locations.sets[self._locations.number_of(op.location)]
            call = self._callee_frame(op)
            if last is not None and last.nodes == nodes and call is None and last.call is None:
                last.ops += pending
            else:
                if last is not None:
                    yield last
                last = _Region(pending, nodes, call)
            pending = []
        if last is not None:
            last.ops += pending
            yield last

    def _callee_frame(self, op: ir.Operation) -> _Frame | None:
        """Returns the frame of the function that `op` calls.

        Returns `None` if `op` is not a call, or if the function is not divided or has one region without calls.
        """
        name = callee_of(op) if op.name == "func.call" else ""
        if name not in self._bodies or name in self._undivided:
            return None
        body = self._bodies[name]
        if not calls_in(body) and len(list(self._divide(body))) < 2:
            return None
        return self.frame(body)


def _takes_time(op: ir.Operation) -> bool:
    """True if an op takes time, and does not only prepare operands of other ops."""
    return len(op.regions) > 0 or op.name in ("func.call", "memref.copy") or op.name.startswith(_TIMED_OPS)


def _undivided_functions(bodies: Mapping[str, ir.Operation]) -> set[str]:
    """Returns the functions that are not divided into regions.

    These are tasks, functions that are called in a loop or from a function that is not divided, and functions that
    reach a recursive function, which would need an unlimited number of counters.
    """
    undivided = {name for name, op in bodies.items() if THREADS_ATTRIBUTE in op.attributes}
    calls = [(caller, call) for caller, op in bodies.items() for call in calls_in(op)]
    undivided |= {callee_of(call) for caller, call in calls if call.parent.operation != bodies[caller]}
    callees = {name: [callee_of(call) for caller, call in calls if caller == name] for name in bodies}
    undivided |= _reaching_recursion(callees)
    while True:
        called = {callee_of(call) for caller, call in calls if caller in undivided}
        if called <= undivided:
            return undivided
        undivided |= called


def _reaching_recursion(callees: Mapping[str, Sequence[str]]) -> set[str]:
    """Returns the functions that reach a recursive function.

    Removes functions without callees until none is left: what remains calls in cycles.
    """
    remaining = dict(callees)
    while leaves := [name for name, names in remaining.items() if not any(callee in remaining for callee in names)]:
        for name in leaves:
            del remaining[name]
    return set(remaining)


# ---- code ------------------------------------------------------------------------------------------------------------


class _CodeEmitter:
    """Emits the code that counts the cycles of one function."""

    def __init__(self, frame: _Frame, counter: CycleCounter, is_entry: bool) -> None:
        self._frame, self._cycle_counter, self._is_entry = frame, counter, is_entry

    def emit(self) -> None:
        """Emits the readings of the cycle counter, and stores of the number of the first counter before calls."""
        if not self._frame.regions:
            return
        function = self._frame.function
        with ir.InsertionPoint.at_block_begin(function.regions[0].blocks[0]), function.location:
            memory = func.CallOp([pointer_type()], ir.FlatSymbolRefAttr.get(COUNTERS), []).results[0]
            first = _constant(_HEADER_WORDS) if self._is_entry else llvm.load(_word(), memory)
            counters = _element(memory, first)
            last_reading = self._read_cycles()
        *_, terminator = function.regions[0].blocks[0].operations
        next_ops = [*(region.ops[0] for region in self._frame.regions[1:]), terminator]
        for number, (region, next_op) in enumerate(zip(self._frame.regions, next_ops, strict=True)):
            with ir.InsertionPoint(next_op), region.ops[-1].location:
                last_reading = self._add_cycles(counters, number, last_reading)
        for region, offset in self._frame.calls():
            (call,) = (op for op in region.ops if op.name == "func.call")
            with ir.InsertionPoint(call), call.location:
                llvm.store(llvm.add(first, _constant(offset), _no_flags()), memory)

    def _add_cycles(self, counters: ir.Value, number: int, last_reading: ir.Value) -> ir.Value:
        """Adds the cycles since `last_reading` to counter `number` of `counters`. Returns the new reading."""
        reading = self._read_cycles()
        address = _element(counters, _constant(number))
        cycles = llvm.sub(reading, last_reading, _no_flags())
        llvm.store(llvm.add(llvm.load(_word(), address), cycles, _no_flags()), address)
        return reading

    def _read_cycles(self) -> ir.Value:
        """Emits a reading of the cycle counter."""
        if not self._cycle_counter.intrinsics:
            attributes = {
                "asm_string": ir.StringAttr.get(self._cycle_counter.assembly.replace("\\0A", "\n")),
                "constraints": ir.StringAttr.get("=r,~{memory}"),
                "has_side_effects": ir.UnitAttr.get(),
            }
            return ir.Operation.create("llvm.inline_asm", results=[_word()], attributes=attributes).result
        *fences, read = self._cycle_counter.intrinsics
        for name in fences:
            llvm.call_intrinsic(None, name, [], [], [])
        return llvm.call_intrinsic(_word(), read, [], [], [])


def _element(address: ir.Value, number: ir.Value) -> ir.Value:
    """Returns the address of word `number` after `address`."""
    return llvm.getelementptr(pointer_type(), address, [number], [DYNAMIC_GEP_INDEX], ir.TypeAttr.get(_word()), [])


def _constant(number: int) -> ir.Value:
    return llvm.mlir_constant(ir.IntegerAttr.get(_word(), number))


def _no_flags() -> ir.Attribute:
    no_flags: ir.Attribute = llvm.IntegerOverflowFlags.none
    return no_flags
