"""Prologues and epilogues of kernels: element-wise ops before the first product and at the last store.

A kernel passes a vector of finished sums to `KernelResults.finish` instead of storing it, and gets its first sums from
`KernelResults.initial`. The sums then need neither a buffer nor another pass over memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.mlir.bindings import ir, vector
from buddy.compiler.mlir.walk import attributes_of, root_of
from buddy.compiler.passes.kernels.access import Loop, UnsupportedError, flatten, merge
from buddy.compiler.passes.kernels.body import VectorBody
from buddy.compiler.passes.kernels.contraction import converted
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter
from buddy.compiler.passes.kernels.structured import Structured, read

# Attributes that mark the op that the preceding kernel absorbs, and the op that initialises the sums of the following
# kernel; the value is the number of the operand that the kernel computes.
EPILOGUE = "buddy.epilogue"
PROLOGUE = "buddy.prologue"

Extent = tuple[int, int]  # size of a kernel's loop, and its stride in the buffer of sums
Place = tuple[Index, ...]  # one offset per buffer


@dataclass(frozen=True)
class EpilogueOp:
    """An element-wise op in terms of a kernel's loops.

    `kernel_operand` is the number of the operand that the kernel computes (an epilogue's input) or starts from (a
    prologue's output). `strides[i]` are those of operand `i` along each of the kernel's loops, in elements; vectors are
    along the last loop.
    """

    op: Structured
    kernel_operand: int
    strides: tuple[tuple[int, ...], ...]

    @property
    def others(self) -> tuple[int, ...]:
        """Returns the operands that the kernel does not compute."""
        return tuple(i for i in range(len(self.op.operands)) if i != self.kernel_operand)

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(self.op.operands[i] for i in self.others)

    @property
    def key(self) -> tuple[object, ...]:
        """Returns a key that stages with the same code share."""
        types = tuple(str(value.type) for value in self.op.operands)
        return body_key(self.op), self.kernel_operand, self.strides, types


def match_stage(op: Any, kernel_operand: int, loops: Sequence[Extent]) -> EpilogueOp:
    """Returns `op`, a structured op on memrefs, as a stage of a kernel that indexes `kernel_operand` by `loops`.

    Raises `UnsupportedError` if an operand is not linear along a loop of the kernel (see `boundaries`), if vectors
    along the last loop would not be contiguous, or if the body cannot be emitted in another function.
    """
    structured = read(op)
    check_stage(structured)
    check_walk(structured, kernel_operand)
    strides = [_strides(structured, kernel_operand, extent) for extent in loops]
    for i, operand in enumerate(zip(*strides, strict=True)):
        along = operand[-1] if loops[-1][0] > 1 else 1
        if i != kernel_operand and (along not in (0, 1) or (along == 0 and i >= structured.inputs)):
            raise UnsupportedError("an operand is not contiguous along the kernel's vectors")
    return EpilogueOp(structured, kernel_operand, tuple(zip(*strides, strict=True)))


def check_stage(op: Structured) -> None:
    """Raises `UnsupportedError` with the reason if a kernel could not emit the body of `op` with its own sums."""
    if op.reductions or op.indexed:
        raise UnsupportedError("a reduction reads its result" if op.reductions else "a body reads its index")
    if op.scalars:
        raise UnsupportedError("a generic with scalar operands")
    _check_captures(op)


def check_walk(op: Structured, kernel_operand: int) -> None:
    """Raises `UnsupportedError` if `op` reads an element of `kernel_operand` twice: a kernel computes each once."""
    if any(loop.size > 1 and loop.strides[kernel_operand] == 0 for loop in op.loops):
        raise UnsupportedError("a loop without a stride in its result reads it again")


def operand_number(op: Any, buffer: Any) -> int:
    """Returns the number of the operand of `op` that is `buffer`, or a reshape of it.

    Raises `UnsupportedError` unless there is exactly one.
    """
    found = [i for i, value in enumerate(op.operands) if root_of(value) == root_of(buffer)]
    if len(found) != 1:
        raise UnsupportedError("an op reads the result more than once" if found else "no op reads the result")
    return found[0]


def mark_stage(op: Any, mark: str, buffer: Any) -> None:
    """Marks `op` as the epilogue or prologue of the op that computes `buffer`."""
    op.attributes[mark] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), operand_number(op, buffer))


def is_marked(op: Any, mark: str, buffer: Any) -> bool:
    """True if `op` has the attribute `mark` for the op that computes `buffer`."""
    if mark not in op.attributes:
        return False
    return bool(root_of(op.operands[ir.IntegerAttr(op.attributes[mark]).value]) == root_of(buffer))


def boundaries(op: Any, kernel_operand: int) -> list[int]:
    """Returns the strides in `kernel_operand` where another operand stops being linear: kernels split loops there."""
    return sorted(
        loop.strides[kernel_operand] for loop in _walk(read(op), kernel_operand) if loop.strides[kernel_operand]
    )


def _walk(op: Structured, kernel_operand: int) -> list[Loop]:
    """Returns the loops of `op` by decreasing stride in `kernel_operand`, merged where all operands allow it."""
    return merge(sorted(op.loops, key=lambda loop: -loop.strides[kernel_operand]))


def _strides(op: Structured, kernel_operand: int, extent: Extent) -> list[int]:
    """Returns each operand's stride along a kernel's loop."""
    size, step = extent
    if size == 1:
        return [0] * len(op.operands)
    for loop in _walk(op, kernel_operand):
        stride = loop.strides[kernel_operand]
        if stride and step % stride == 0 and step // stride * size <= loop.size:
            return [step // stride * other for other in loop.strides]
    raise UnsupportedError("an operand is not linear along a loop of the kernel")


def _check_captures(op: Structured) -> None:
    known = set(op.block.arguments)
    for inner in op.block.operations:
        for operand in inner.operation.operands:
            if operand not in known and not _constant(operand):
                raise UnsupportedError("a body uses a value from outside")
        known.update(inner.operation.results)


def _constant(value: Any) -> bool:
    return isinstance(value, ir.OpResult) and value.owner.name == "arith.constant"


def body_key(op: Structured) -> tuple[object, ...]:
    """Returns the body of `op` as a plain value, for comparison with other bodies."""
    numbers: dict[Any, int] = {argument: i for i, argument in enumerate(op.block.arguments)}
    found: list[object] = []
    for inner in op.block.operations:
        operation = inner.operation
        operands = [numbers[o] if o in numbers else str(o.owner.attributes["value"]) for o in operation.operands]
        attributes = sorted((name, str(value)) for name, value in attributes_of(operation).items())
        found.append(
            (operation.name, tuple(operands), tuple(attributes), tuple(str(r.type) for r in operation.results))
        )
        for result in operation.results:
            numbers[result] = len(numbers)
    return tuple(found)


@dataclass(frozen=True)
class ResultSpec:
    """Where sums start (zero, C's values or a prologue's) and where they are stored (C, or an epilogue's outputs).

    `strides` are those of C along the kernel's loops.
    """

    strides: tuple[int, ...]
    accumulate: bool = False
    prologue: EpilogueOp | None = None
    epilogue: EpilogueOp | None = None

    def buffers(self, c: Any) -> tuple[Any, ...]:
        """Returns the arguments of a kernel's function for its results; `c` is the buffer of sums."""
        before = self.prologue.values if self.prologue else ()
        return (*before, *(self.epilogue.values if self.epilogue else ()), *((c,) if self.uses_c else ()))

    @property
    def uses_c(self) -> bool:
        return self.epilogue is None or self.accumulate

    @property
    def key(self) -> tuple[object, ...]:
        return self.strides, self.accumulate, *(s.key if s else None for s in (self.prologue, self.epilogue))


class KernelResults:
    """Emits a kernel's first and last access to its results; `buffers` are those of `spec`."""

    def __init__(self, e: KernelEmitter, spec: ResultSpec, buffers: Sequence[Any], lanes: int, element: Any) -> None:
        self.e, self.spec, self.lanes = e, spec, lanes
        self.flats = [flatten(value) for value in buffers]
        self.vector = ir.VectorType.get([lanes], element)
        self.before = len(spec.prologue.others) if spec.prologue else 0
        self.strides = [stage.strides[i] for stage in (spec.prologue, spec.epilogue) if stage for i in stage.others]
        self.strides += [spec.strides] if spec.uses_c else []

    @property
    def starts(self) -> bool:
        """True if sums start from other values than zero."""
        return self.spec.accumulate or self.spec.prologue is not None

    @property
    def finishing(self) -> int:
        """Returns the number of ops that finish one vector."""
        return len(self.spec.epilogue.op.block.operations) if self.spec.epilogue else 1

    def adding(self) -> KernelResults | None:
        """Returns access to C alone that adds to its values, or `None` if sums that are stored in C are not exact sums.

        They are not if there is an epilogue, or if C has a narrower type than the sums.
        """
        if self.spec.epilogue is not None or self.flats[-1].type.element_type != self.vector.element_type:
            return None
        spec = ResultSpec(self.spec.strides, accumulate=True)
        return KernelResults(self.e, spec, self.flats[-1:], self.lanes, self.vector.element_type)

    @property
    def origin(self) -> Place:
        return (0,) * len(self.flats)

    def advance(self, place: Place, loop: int, index: Index) -> Place:
        """Returns `place` advanced by `index` steps along the kernel's loop number `loop`."""
        e = self.e
        pairs = zip(place, self.strides, strict=True)
        return tuple(e.add(offset, e.mul(index, strides[loop])) for offset, strides in pairs)

    def initial(self, place: Place, column: int, active: int) -> Any:
        """Returns the first sums of a vector, `column` elements along the last loop from `place`, `active` lanes."""
        if self.spec.accumulate:
            return converted(self._load(-1, place, column, active), self.vector.element_type)
        if self.spec.prologue is None:
            return self.e.zero(self.vector)
        stage = self.spec.prologue
        body, known = self._body(stage, place[: self.before], column, active, {})
        return converted(body.value(stage.op.yielded[0], known), self.vector.element_type)

    def finish(self, sums: Any, place: Place, column: int, active: int) -> None:
        """Stores a vector of finished sums, through the epilogue if there is one."""
        stage = self.spec.epilogue
        if stage is None:
            self._store(converted(sums, self.flats[-1].type.element_type), -1, place, column, active)
            return
        kernel_operand = converted(sums, stage.op.operands[stage.kernel_operand].type.element_type)
        argument = stage.op.arguments[stage.kernel_operand]
        here = place[self.before : self.before + len(stage.others)]
        body, known = self._body(stage, here, column, active, {argument: kernel_operand})
        for number, scalar in zip(range(stage.op.inputs, len(stage.op.operands)), stage.op.yielded, strict=True):
            self._store(body.value(scalar, known), self.before + stage.others.index(number), place, column, active)

    def _body(
        self, stage: EpilogueOp, place: Place, column: int, active: int, values: dict[Any, Any]
    ) -> tuple[VectorBody, dict[Any, Any]]:
        """Emits the stage's body on vectors; `place` has an offset for each of its `others`."""
        body = VectorBody(self.e, stage.op, self.lanes)
        first = 0 if stage is self.spec.prologue else self.before
        for position, number in enumerate(stage.others):
            if stage.op.reads(number):
                loaded = self._load_operand(body, first + position, place[position], column, active)
                values[stage.op.arguments[number]] = loaded
        return body, body.emit(values)

    def _load_operand(self, body: VectorBody, buffer: int, offset: Index, column: int, active: int) -> Any:
        flat = self.flats[buffer]
        if self.strides[buffer][-1] == 0:
            return body.broadcast(self.e.load_scalar(flat, offset))
        return self.e.load(flat, self.e.add(offset, column), self.lanes, active)

    def _load(self, buffer: int, place: Place, column: int, active: int) -> Any:
        e, flat, stride = self.e, self.flats[buffer], self.strides[buffer][-1]
        if stride == 1:
            return e.load(flat, e.add(place[buffer], column), self.lanes, active)
        value = e.zero(ir.VectorType.get([self.lanes], flat.type.element_type))
        for lane in range(min(self.lanes, active)):
            offset = e.add(place[buffer], (column + lane) * stride)
            value = vector.insert(e.load_scalar(flat, offset), value, [], [lane])
        return value

    def _store(self, value: Any, buffer: int, place: Place, column: int, active: int) -> None:
        e, flat, stride = self.e, self.flats[buffer], self.strides[buffer][-1]
        if stride == 1:
            e.store(value, flat, e.add(place[buffer], column), active)
            return
        for lane in range(min(self.lanes, active)):
            offset = e.add(place[buffer], (column + lane) * stride)
            e.store_scalar(vector.extract(value, [], [lane]), flat, offset)
