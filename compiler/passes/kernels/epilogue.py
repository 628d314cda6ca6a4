"""Prologues and epilogues of kernels: element-wise ops that initialise the sums, or that are applied before the store.

A kernel passes a vector of finished sums to `KernelResults.finish` instead of storing it, and gets its first sums from
`KernelResults.initial`. The sums then need neither a buffer nor another pass over memory.

Where an epilogue rounds to bfloat16, it may be emitted on two vectors at a time. On AMD's Zen 4, `vcvtne2ps2bf16`
rounds two vectors in the time in which `vcvtneps2bf16` rounds one, and a shuffle with zeros widens each of them again,
where an extension takes a shuffle and a shift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from buddy.compiler.mlir.bindings import ir, llvm, vector
from buddy.compiler.mlir.walk import attributes_of, root_of
from buddy.compiler.passes.kernels.access import Loop, SizeAndStride, UnsupportedError, flatten, merge_loops
from buddy.compiler.passes.kernels.contraction import convert_elements
from buddy.compiler.passes.kernels.dot_instructions import VDPBF16PS, as_elements
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter
from buddy.compiler.passes.kernels.structured import StructuredOp, VectorBody, analyse_vectorizable

# ---- roundings of two vectors at a time ------------------------------------------------------------------------------


# Lanes of each of the two vectors of f32 that the instruction rounds.
PAIRED_LANES = 16
_PAIRED_ROUNDING = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"


def rounds_pairs(instruction: str, lanes: int) -> bool:
    """True if a kernel that multiplies with `instruction`, in vectors of `lanes` sums, can round two of them at once.

    Both instructions belong to the extension AVX512_BF16.
    """
    return instruction == VDPBF16PS.name and lanes == PAIRED_LANES


def rounds(op: ir.Operation) -> bool:
    """True if `op` rounds a f32 to bfloat16."""
    return op.name == "arith.truncf" and rounds_types(op.operands[0].type, op.results[0].type)


def rounds_types(wide: ir.Type, narrow: ir.Type) -> bool:
    """True if a conversion between these types rounds a f32 to bfloat16."""
    return (str(wide), str(narrow)) == ("f32", "bf16")


@dataclass
class PairedValues:
    """The vectors of the scalars of a body that is emitted twice, for two vectors of sums.

    `vectors` maps each scalar to its vector, for the first and for the second sums. `pairs` maps each scalar that the
    body rounds to both vectors in one, with the first in the lower half.
    """

    e: KernelEmitter
    vectors: tuple[dict[ir.Value, ir.Value], dict[ir.Value, ir.Value]]
    pairs: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def round(self, scalar: ir.Value, first: ir.Value, second: ir.Value) -> None:
        """Rounds the vectors `first` and `second` of f32, and records the result as the pair of `scalar`."""
        type_ = ir.VectorType.get([2 * PAIRED_LANES], ir.BF16Type.get())
        self.pairs[scalar] = llvm.call_intrinsic(type_, _PAIRED_ROUNDING, [second, first], [], [])

    def widened(self, scalar: ir.Value, number: int) -> ir.Value:
        """Returns the rounded `scalar` for the first (0) or second (1) sums as f32: 16 zero bits, then its 16 bits."""
        words = as_elements(self.pairs[scalar], ir.IntegerType.get_signless(16))
        first_zero = 2 * PAIRED_LANES  # the number of the first element of the second operand of the shuffle
        mask = [element for lane in range(PAIRED_LANES) for element in (first_zero, number * PAIRED_LANES + lane)]
        return as_elements(vector.shuffle(words, self.e.zero(words.type), mask), ir.F32Type.get())

    def split(self, scalar: ir.Value) -> None:
        """Extracts both vectors of `scalar`, if it is rounded."""
        for number, vectors in enumerate(self.vectors):
            if scalar in self.pairs and scalar not in vectors:
                mask = [number * PAIRED_LANES + lane for lane in range(PAIRED_LANES)]
                vectors[scalar] = vector.shuffle(self.pairs[scalar], self.pairs[scalar], mask)


def emit_paired_body(body: VectorBody, values: PairedValues) -> None:
    """Emits `body` twice, op by op, and adds the results to `values`."""
    for op in (op.operation for op in body.op.block.operations):
        if op.name == "linalg.yield":
            continue
        with op.location:
            if rounds(op):
                values.split(op.operands[0])
                values.round(op.results[0], *(body.vector_of(op.operands[0], vectors) for vectors in values.vectors))
                continue
            is_widening = op.name == "arith.extf" and str(op.results[0].type) == "f32"
            for number, vectors in enumerate(values.vectors):
                if is_widening and op.operands[0] in values.pairs:
                    vectors[op.results[0]] = values.widened(op.operands[0], number)
                    continue
                for scalar in op.operands:
                    values.split(scalar)
                body.emit_op(op, vectors)


# One offset in elements for each of the buffers that a kernel reads or writes as results.
ResultOffsets = tuple[Index, ...]
# The sums of a vector, its offsets, its column, and its active lanes: the arguments of `KernelResults.finish`.
FinishedVector = tuple[ir.Value, ResultOffsets, int, int]

# ---- ops as stages of a kernel ---------------------------------------------------------------------------------------

# Attributes of an op that reads the result of the contraction before it, and of an op that initialises the sums of the
# contraction after it. The value is the number of the operand that is the contraction's result.
EPILOGUE = "buddy.epilogue"
PROLOGUE = "buddy.prologue"


@dataclass(frozen=True)
class EpilogueOp:
    """A stage of a kernel: the element-wise op of its epilogue or prologue, in terms of the kernel's loops.

    `kernel_operand` is the number of the operand that the kernel computes (an epilogue's input) or starts from (a
    prologue's output). `strides[i]` has the stride of operand `i` along each of the kernel's loops, in elements;
    vectors are along the last loop.
    """

    op: StructuredOp
    kernel_operand: int
    strides: tuple[tuple[int, ...], ...]

    @property
    def other_operands(self) -> tuple[int, ...]:
        """Returns the numbers of the operands other than `kernel_operand`."""
        return tuple(i for i in range(len(self.op.operands)) if i != self.kernel_operand)

    @property
    def values(self) -> tuple[ir.Value, ...]:
        """Returns the operands other than `kernel_operand`."""
        return tuple(self.op.operands[i] for i in self.other_operands)

    @property
    def key(self) -> tuple[object, ...]:
        """Returns a key that is equal for stages that emit the same code."""
        types = tuple(str(value.type) for value in self.op.operands)
        return body_key(self.op), self.kernel_operand, self.strides, types


def match_stage(op: ir.Operation, kernel_operand: int, loops: Sequence[SizeAndStride]) -> EpilogueOp:
    """Returns `op`, a structured op on memrefs, as a stage of a kernel that indexes `kernel_operand` by `loops`.

    Raises `UnsupportedError` if an operand is not linear along a loop of the kernel (see `split_strides`), if vectors
    along the last loop would not be contiguous, or if the body cannot be emitted in another function.
    """
    structured = analyse_vectorizable(op)
    check_stage(structured)
    check_single_use(structured, kernel_operand)
    strides = [_strides(structured, kernel_operand, extent) for extent in loops]
    for i, operand_strides in enumerate(zip(*strides, strict=True)):
        vector_stride = operand_strides[-1] if loops[-1][0] > 1 else 1
        is_repeated_output = vector_stride == 0 and i >= structured.inputs
        if i != kernel_operand and (vector_stride not in (0, 1) or is_repeated_output):
            raise UnsupportedError("an operand is not contiguous along the kernel's vectors")
    return EpilogueOp(structured, kernel_operand, tuple(zip(*strides, strict=True)))


def check_stage(op: StructuredOp) -> None:
    """Raises `UnsupportedError` with the reason if the body of `op` cannot be emitted inside of a kernel."""
    if op.reductions or op.indexed:
        raise UnsupportedError("a reduction reads its result" if op.reductions else "a body reads its index")
    if op.scalars:
        raise UnsupportedError("a generic with scalar operands")
    _check_captures(op)


def check_single_use(op: StructuredOp, kernel_operand: int) -> None:
    """Raises `UnsupportedError` if `op` uses an element of `kernel_operand` twice: a kernel finishes each once."""
    if any(loop.size > 1 and loop.strides[kernel_operand] == 0 for loop in op.loops):
        raise UnsupportedError("it reads an element of the result more than once")


def operand_number(op: ir.Operation, buffer: ir.Value) -> int:
    """Returns the number of the operand of `op` that is `buffer`, or a reshape of it.

    Raises `UnsupportedError` unless there is exactly one.
    """
    numbers = [i for i, value in enumerate(op.operands) if root_of(value) == root_of(buffer)]
    if len(numbers) != 1:
        raise UnsupportedError("an op reads the result more than once" if numbers else "no op reads the result")
    return numbers[0]


def mark_stage(op: ir.Operation, mark: str, buffer: ir.Value) -> None:
    """Marks `op` as the epilogue or prologue (`mark`) of the op that computes `buffer`."""
    op.attributes[mark] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), operand_number(op, buffer))


def is_marked(op: ir.Operation, mark: str, buffer: ir.Value) -> bool:
    """True if `op` has the attribute `mark` for the op that computes `buffer`."""
    if mark not in op.attributes:
        return False
    return bool(root_of(op.operands[ir.IntegerAttr(op.attributes[mark]).value]) == root_of(buffer))


def split_strides(op: ir.Operation, kernel_operand: int) -> list[int]:
    """Returns the strides in `kernel_operand` at which a kernel must split its loops.

    Between two of these strides, all operands of `op` are linear in the kernel's loop.
    """
    loops = _loops_by_stride(analyse_vectorizable(op), kernel_operand)
    return sorted(loop.strides[kernel_operand] for loop in loops if loop.strides[kernel_operand])


def _loops_by_stride(op: StructuredOp, kernel_operand: int) -> list[Loop]:
    """Returns the loops of `op` by decreasing stride in `kernel_operand`, merged where all operands allow it."""
    return merge_loops(sorted(op.loops, key=lambda loop: -loop.strides[kernel_operand]))


def _strides(op: StructuredOp, kernel_operand: int, extent: SizeAndStride) -> list[int]:
    """Returns each operand's stride along a kernel's loop; `extent` is its size and its stride in `kernel_operand`.

    Raises `UnsupportedError` if the kernel's loop is not part of a loop of `op`.
    """
    size, kernel_stride = extent
    if size == 1:
        return [0] * len(op.operands)
    for loop in _loops_by_stride(op, kernel_operand):
        stride = loop.strides[kernel_operand]
        if stride and kernel_stride % stride == 0 and kernel_stride // stride * size <= loop.size:
            return [kernel_stride // stride * operand_stride for operand_stride in loop.strides]
    raise UnsupportedError("an operand is not linear along a loop of the kernel")


def _check_captures(op: StructuredOp) -> None:
    """Raises `UnsupportedError` if the body of `op` uses a value from outside that is not a constant."""
    inner_values = set(op.block.arguments)
    for inner in op.block.operations:
        for operand in inner.operation.operands:
            if operand not in inner_values and not _is_constant(operand):
                raise UnsupportedError("a body uses a value from outside")
        inner_values.update(inner.operation.results)


def _is_constant(value: ir.Value) -> bool:
    return isinstance(value, ir.OpResult) and value.owner.name == "arith.constant"


def body_key(op: StructuredOp) -> tuple[object, ...]:
    """Returns the body of `op` as a plain value, for comparison with other bodies."""
    numbers: dict[Any, int] = {argument: i for i, argument in enumerate(op.block.arguments)}
    ops: list[object] = []
    for inner in op.block.operations:
        operation = inner.operation
        operands = [numbers[o] if o in numbers else str(o.owner.attributes["value"]) for o in operation.operands]
        attributes = sorted((name, str(value)) for name, value in attributes_of(operation).items())
        types = tuple(str(result.type) for result in operation.results)
        ops.append((operation.name, tuple(operands), tuple(attributes), types))
        for result in operation.results:
            numbers[result] = len(numbers)
    return tuple(ops)


# ---- results of a kernel ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResultSpec:
    """How a kernel initialises its sums (zero, C's values or a prologue's) and stores them (to C, or by an epilogue).

    `accumulate` means that sums start with C's values. `strides` has the stride of C along each of the kernel's loops.
    `padded` means that rows of C have room for whole vectors, so that all lanes are loaded and stored. (A load of a
    whole vector after a store of a part of it would wait for the store.)
    """

    strides: tuple[int, ...]
    accumulate: bool = False
    prologue: EpilogueOp | None = None
    epilogue: EpilogueOp | None = None
    padded: bool = False

    def buffers(self, c: ir.Value) -> tuple[ir.Value, ...]:
        """Returns the buffers that the function of a kernel takes for its results; `c` is the buffer of sums.

        These are the operands of the prologue, those of the epilogue, and C, if the kernel reads or writes it.
        """
        prologue_values = self.prologue.values if self.prologue else ()
        epilogue_values = self.epilogue.values if self.epilogue else ()
        return (*prologue_values, *epilogue_values, *((c,) if self.uses_c else ()))

    @property
    def uses_c(self) -> bool:
        """True if the kernel reads or writes C: it adds to C, or no epilogue stores the results elsewhere."""
        return self.epilogue is None or self.accumulate

    @property
    def key(self) -> tuple[object, ...]:
        """Returns a value that is equal for specs with which kernels emit the same code."""
        stage_keys = (stage.key if stage else None for stage in (self.prologue, self.epilogue))
        return self.strides, self.accumulate, *stage_keys


def _rounds(stage: EpilogueOp, sums: ir.Type) -> bool:
    """True if the body of an epilogue, or the conversion of the `sums` that it reads, rounds f32 to bfloat16."""
    argument = stage.op.arguments[stage.kernel_operand].type
    return rounds_types(sums, argument) or any(rounds(op.operation) for op in stage.op.block.operations)


class KernelResults:
    """Emits the initial values and stores of a kernel's sums. `buffers` are `spec.buffers`: C, if used, is the last.

    Sums are vectors of `lanes` elements of type `element`. With `in_pairs`, `finish_all` rounds two vectors at a time,
    see `PairedValues`.
    """

    def __init__(
        self, e: KernelEmitter, spec: ResultSpec, buffers: Sequence[ir.Value], lanes: int, element: ir.Type,
        in_pairs: bool = False,
    ) -> None:  # fmt: skip
        self.e, self.spec, self.lanes = e, spec, lanes
        self.flats = [flatten(value) for value in buffers]
        self.vector = ir.VectorType.get([lanes], element)
        self.prologue_count = len(spec.prologue.other_operands) if spec.prologue else 0
        # The strides of each buffer along the kernel's loops.
        self.strides = [
            stage.strides[i] for stage in (spec.prologue, spec.epilogue) if stage for i in stage.other_operands
        ]
        self.strides += [spec.strides] if spec.uses_c else []
        self.in_pairs = in_pairs and spec.epilogue is not None and _rounds(spec.epilogue, element)

    @property
    def has_initial_sums(self) -> bool:
        """True if sums start with other values than zero."""
        return self.spec.accumulate or self.spec.prologue is not None

    @property
    def finishing_ops(self) -> int:
        """Returns the number of ops that finish one vector of sums."""
        return len(self.spec.epilogue.op.block.operations) if self.spec.epilogue else 1

    def adding_to_c(self) -> KernelResults | None:
        """Returns access to C alone that adds to its values, for sums that are computed in several parts.

        Returns `None` if C cannot hold sums that are not complete: with an epilogue, or if its type is narrower.
        """
        if self.spec.epilogue is not None or self.flats[-1].type.element_type != self.vector.element_type:
            return None
        spec = ResultSpec(self.spec.strides, accumulate=True)
        return KernelResults(self.e, spec, self.flats[-1:], self.lanes, self.vector.element_type)

    @property
    def origin(self) -> ResultOffsets:
        """Returns the offsets of the first element."""
        return (0,) * len(self.flats)

    def advance(self, offsets: ResultOffsets, loop: int, index: Index) -> ResultOffsets:
        """Returns the offsets `index` steps after `offsets` along the kernel's loop number `loop`."""
        e = self.e
        pairs = zip(offsets, self.strides, strict=True)
        return tuple(e.add(offset, e.mul(index, strides[loop])) for offset, strides in pairs)

    def initial(self, offsets: ResultOffsets, column: int, active: int) -> ir.Value:
        """Returns the initial sums of the vector that is `column` elements after `offsets` along the last loop.

        Only the first `active` lanes are loaded.
        """
        if self.spec.accumulate:
            return convert_elements(self._load(-1, offsets, column, active), self.vector.element_type)
        if self.spec.prologue is None:
            return self.e.zero(self.vector)
        stage = self.spec.prologue
        body, vectors = self._emit_body(stage, offsets[: self.prologue_count], column, active, {})
        return convert_elements(body.vector_of(stage.op.yielded[0], vectors), self.vector.element_type)

    def finish(self, sums: ir.Value, offsets: ResultOffsets, column: int, active: int) -> None:
        """Applies the epilogue, if any, to a vector of finished sums, and stores the first `active` lanes."""
        stage = self.spec.epilogue
        if stage is None:
            self._store(convert_elements(sums, self.flats[-1].type.element_type), -1, offsets, column, active)
            return
        kernel_operand = convert_elements(sums, stage.op.operands[stage.kernel_operand].type.element_type)
        argument = stage.op.arguments[stage.kernel_operand]
        stage_offsets = offsets[self.prologue_count : self.prologue_count + len(stage.other_operands)]
        body, vectors = self._emit_body(stage, stage_offsets, column, active, {argument: kernel_operand})
        for number, scalar in zip(range(stage.op.inputs, len(stage.op.operands)), stage.op.yielded, strict=True):
            buffer = self.prologue_count + stage.other_operands.index(number)
            self._store(body.vector_of(scalar, vectors), buffer, offsets, column, active)

    def finish_all(self, vectors: Sequence[FinishedVector]) -> None:
        """Applies `finish` to the sums, offsets, column and active lanes of each vector."""
        count = len(vectors) // 2 * 2 if self.in_pairs else 0
        for first in range(0, count, 2):
            self.finish_pair(vectors[first], vectors[first + 1])
        for vector_ in vectors[count:]:
            self.finish(*vector_)

    def finish_pair(self, first: FinishedVector, second: FinishedVector) -> None:
        """Applies the epilogue, whose body is emitted on both vectors op by op, and stores the results."""
        stage = self.spec.epilogue
        assert stage is not None
        body, values = VectorBody(self.e, stage.op, self.lanes), PairedValues(self.e, ({}, {}))
        both = (first, second)
        argument = stage.op.arguments[stage.kernel_operand]
        if str(argument.type) == "bf16":
            values.round(argument, *(sums for sums, *_ in both))
        for vectors, (sums, offsets, column, active) in zip(values.vectors, both, strict=True):
            if argument not in values.pairs:
                vectors[argument] = convert_elements(sums, argument.type)
            self._load_operands(stage, body, offsets[self.prologue_count :], column, active, vectors)
        emit_paired_body(body, values)
        for number, scalar in zip(range(stage.op.inputs, len(stage.op.operands)), stage.op.yielded, strict=True):
            values.split(scalar)
            buffer = self.prologue_count + stage.other_operands.index(number)
            for vectors, (_, offsets, column, active) in zip(values.vectors, both, strict=True):
                self._store(body.vector_of(scalar, vectors), buffer, offsets, column, active)

    def _emit_body(
        self,
        stage: EpilogueOp,
        stage_offsets: ResultOffsets,
        column: int,
        active: int,
        vectors: dict[ir.Value, ir.Value],
    ) -> tuple[VectorBody, dict[ir.Value, ir.Value]]:
        """Emits the stage's body on vectors, which it loads except for those in `vectors`.

        `stage_offsets` has the offset of each operand in `stage.other_operands`. Returns all vectors of the body.
        """
        body = VectorBody(self.e, stage.op, self.lanes)
        self._load_operands(stage, body, stage_offsets, column, active, vectors)
        return body, body.emit(vectors)

    def _load_operands(
        self,
        stage: EpilogueOp,
        body: VectorBody,
        stage_offsets: ResultOffsets,
        column: int,
        active: int,
        vectors: dict[ir.Value, ir.Value],
    ) -> None:
        """Loads the operands that the body reads, except the kernel's, and adds them to `vectors`."""
        first = 0 if stage is self.spec.prologue else self.prologue_count
        for i, number in enumerate(stage.other_operands):
            if stage.op.reads(number):
                loaded = self._load_operand(body, first + i, stage_offsets[i], column, active)
                vectors[stage.op.arguments[number]] = loaded

    def _load_operand(self, body: VectorBody, buffer: int, offset: Index, column: int, active: int) -> ir.Value:
        """Loads a vector of an epilogue's or prologue's operand; an element that all lanes share is broadcast."""
        flat = self.flats[buffer]
        if self.strides[buffer][-1] == 0:
            return body.broadcast(self.e.load_scalar(flat, offset))
        return self.e.load(flat, self.e.add(offset, column), self.lanes, active)

    def _load(self, buffer: int, offsets: ResultOffsets, column: int, active: int) -> ir.Value:
        """Loads a vector along the last loop; lane by lane if the buffer is not contiguous along it."""
        e, flat, stride = self.e, self.flats[buffer], self.strides[buffer][-1]
        if stride == 1:
            return e.load(flat, e.add(offsets[buffer], column), self.lanes, None if self.spec.padded else active)
        value = e.zero(ir.VectorType.get([self.lanes], flat.type.element_type))
        for lane in range(min(self.lanes, active)):
            offset = e.add(offsets[buffer], (column + lane) * stride)
            value = vector.insert(e.load_scalar(flat, offset), value, [], [lane])
        return value

    def _store(self, value: ir.Value, buffer: int, offsets: ResultOffsets, column: int, active: int) -> None:
        """Stores a vector along the last loop; lane by lane if the buffer is not contiguous along it."""
        e, flat, stride = self.e, self.flats[buffer], self.strides[buffer][-1]
        if stride == 1:
            e.store(value, flat, e.add(offsets[buffer], column), None if self.spec.padded else active)
            return
        for lane in range(min(self.lanes, active)):
            offset = e.add(offsets[buffer], (column + lane) * stride)
            e.store_scalar(vector.extract(value, [], [lane]), flat, offset)
