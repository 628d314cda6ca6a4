"""Structured ops (linalg on memrefs): their loops over flat operands, and their bodies, emitted on vectors.

Also has the loops over rows that threads share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from buddy.compiler.mlir.bindings import arith, ir, vector
from buddy.compiler.mlir.walk import attributes_of, element_bytes
from buddy.compiler.passes.kernels.access import (
    Loop,
    UnsupportedError,
    flatten,
    is_used,
    layout_of,
    loop_sizes,
    loops_of,
    merge_loops,
    permutation_of,
    start_offsets,
)
from buddy.compiler.passes.kernels.contraction import NAMED_CONTRACTIONS, indexing_maps
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, ceil_div, estimate_nanoseconds

STRUCTURED_OPS = frozenset({"linalg.generic", "linalg.fill", "linalg.copy", "linalg.transpose", "linalg.broadcast"})

# Integer divisions, which trap on the zeros in unused lanes of a partial vector.
TRAPPING_OPS = frozenset(
    f"arith.{name}" for name in ("divsi", "divui", "remsi", "remui", "ceildivsi", "ceildivui", "floordivsi")
)

# Functions for which processors have vector instructions; others are calls of the math library, one per element.
VECTOR_MATH = frozenset(
    f"math.{name}"
    for name in ("absf", "absi", "ceil", "copysign", "floor", "fma", "round", "roundeven", "rsqrt", "sqrt", "trunc")
)


@dataclass(frozen=True)
class StructuredOp:
    """A structured op: `operands` are its memrefs, of which the last `outputs` are written.

    `arguments[i]` is the argument of `block`, the body, for an element of `operands[i]`. `scalars` maps the arguments
    for scalar operands to these operands. `indexed` has the dims whose index the body reads. `starts[i]` is the offset
    of the element of `operands[i]` that the first iteration reads or writes: not 0 if a dim is reversed, so that its
    loop has a negative stride.
    """

    op: Any
    operands: tuple[Any, ...]
    outputs: int
    loops: tuple[Loop, ...]
    block: Any
    arguments: tuple[Any, ...]
    scalars: dict[Any, Any]
    indexed: frozenset[int]
    starts: tuple[int, ...]

    @property
    def inputs(self) -> int:
        """Returns the number of operands that are only read."""
        return len(self.operands) - self.outputs

    @property
    def reductions(self) -> list[Loop]:
        """Returns the loops over which elements are reduced."""
        return [loop for loop in self.loops if loop.reduction]

    @property
    def parallel(self) -> list[Loop]:
        """Returns the loops whose iterations are independent."""
        return [loop for loop in self.loops if not loop.reduction]

    @property
    def yielded(self) -> list[ir.Value]:
        """Returns the results of the body, one for each output."""
        return list(self.block.operations[len(self.block.operations) - 1].operands)

    def reads(self, operand: int) -> bool:
        """True if the body reads operand number `operand`."""
        return is_used(self.arguments[operand])


def analyse_vectorizable(op: ir.Operation, allow_loads: bool = False, allow_reversed: bool = False) -> StructuredOp:
    """Returns the structure of `op`, one of `STRUCTURED_OPS` on memrefs, with loops merged where possible.

    With `allow_loads`, the body may also load from memory and divide integers. With `allow_reversed`, inputs may be
    read from the last to the first element of a dim. Raises `UnsupportedError` with the reason if `op` cannot be
    vectorised.
    """
    structured = structure_of(op, allow_loads, allow_reversed)
    _check_vectors(structured.block, allow_loads)
    _check_elements(structured.operands)
    return replace(structured, loops=tuple(merge_loops(structured.loops, structured.indexed)))


def structure_of(op: ir.Operation, allow_loads: bool = False, allow_reversed: bool = False) -> StructuredOp:
    """Returns the structure of `op`, one of `STRUCTURED_OPS` on memrefs, with a loop for each dim it iterates over.

    Raises `UnsupportedError` for tensors, for dynamic shapes or strides, and for operands that are not indexed by sums
    of loop indices; for a reversed dim unless `allow_reversed`; and for a body that loads from memory or has side
    effects unless `allow_loads`.
    """
    if len(op.results):
        raise UnsupportedError("it works on tensors, not on buffers")
    block = op.regions[0].blocks[0]
    if not allow_loads:
        _check_pure(block)
    pairs = list(zip(op.operands, block.arguments, strict=True))
    buffers = [(value, argument) for value, argument in pairs if isinstance(value.type, ir.MemRefType)]
    scalars = {argument: value for value, argument in pairs if not isinstance(value.type, ir.MemRefType)}
    operands = tuple(value for value, _ in buffers)
    maps, reductions = maps_of(op, operands)
    layouts = [layout_of(value.type) for value in operands]
    loops = loops_of(loop_sizes(len(reductions), maps, layouts), reductions, maps, layouts, allow_reversed)
    outputs = 1 if op.name != "linalg.generic" else int(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[1])
    indexed = _indexed_dims(block)
    arguments = tuple(argument for _, argument in buffers)
    starts = start_offsets(maps, layouts)
    return StructuredOp(op, operands, outputs, tuple(loops), block, arguments, scalars, indexed, starts)


def maps_of(op: ir.Operation, operands: tuple[ir.Value, ...]) -> tuple[list[ir.AffineMap], list[bool]]:
    """Returns the indexing map of each memref operand, and for each loop whether it is a reduction.

    Raises `UnsupportedError` for a generic with scalar operands.
    """
    if op.name == "linalg.generic":
        if len(operands) != len(op.operands):
            raise UnsupportedError("a generic with scalar operands")
        return indexing_maps(op), ["reduction" in str(kind) for kind in op.attributes["iterator_types"]]
    if op.name in NAMED_CONTRACTIONS:
        maps = indexing_maps(op)
        result_loops = {e.position for e in maps[2].results}
        return maps, [loop not in result_loops for loop in range(maps[2].n_dims)]
    rank = len(operands[-1].type.shape)
    identity = ir.AffineMap.get_identity(rank)
    parallel = [False] * rank
    if op.name == "linalg.transpose":
        permutation = permutation_of(op)
        source = [identity.results[permutation.index(dim)] for dim in range(rank)]
        return [ir.AffineMap.get(rank, 0, source), identity], parallel
    if op.name == "linalg.broadcast":
        added = list(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))
        source = [identity.results[dim] for dim in range(rank) if dim not in added]
        return [ir.AffineMap.get(rank, 0, source), identity], parallel
    return [identity] * len(operands), parallel


def _check_pure(block: ir.Block) -> None:
    """Raises `UnsupportedError` for a body with ops other than scalar arithmetic."""
    for op in block.operations:
        name = op.operation.name
        if not (name.startswith(("arith.", "math.")) or name in ("linalg.yield", "linalg.index")):
            raise UnsupportedError(f"{name} in its body")


def _check_vectors(block: ir.Block, allow_loads: bool) -> None:
    """Raises `UnsupportedError` for a body that cannot be emitted on vectors."""
    for op in block.operations:
        name = op.operation.name
        if name in TRAPPING_OPS and not allow_loads:
            raise UnsupportedError(f"{name} may trap in unused lanes")
        if name.startswith("math.") and name not in VECTOR_MATH:
            raise UnsupportedError(f"{name} is a call of the math library")
        if name == "memref.load":
            if not _fits_in_vectors(op.operation.results[0].type):
                raise UnsupportedError(f"it reads {op.operation.results[0].type} from memory")
            layout_of(op.operation.operands[0].type)  # raises for dynamic shapes and strides
        if not (name.startswith(("arith.", "math.")) or name in ("linalg.yield", "linalg.index", "memref.load")):
            raise UnsupportedError(f"{name} in its body")


def _fits_in_vectors(type_: ir.Type) -> bool:
    """True if vectors of `type_`, a number of whole bytes, can be loaded and stored."""
    return isinstance(type_, ir.FloatType | ir.IntegerType) and type_.width in (8, 16, 32, 64)


def _check_elements(operands: tuple[ir.Value, ...]) -> None:
    """Raises `UnsupportedError` for elements that vectors cannot have."""
    for value in operands:
        element = value.type.element_type
        if not _fits_in_vectors(element):
            raise UnsupportedError(f"elements of type {element}")


def _indexed_dims(block: ir.Block) -> frozenset[int]:
    """Returns the dims that the body reads by `linalg.index`."""
    return frozenset(
        int(ir.IntegerAttr(op.operation.attributes["dim"]).value)
        for op in block.operations
        if op.operation.name == "linalg.index"
    )


# ---- loops over rows that threads share ------------------------------------------------------------------------------

# The size of a chunk that one thread processes: some microseconds of work, and small enough to get many chunks.
CHUNK_BYTES = 16 << 10


def rows_in_chunk(rows: int, row_bytes: int) -> int:
    """Returns the number of rows in a chunk, for `rows` rows of `row_bytes` bytes."""
    return max(1, min(rows, CHUNK_BYTES // max(1, row_bytes)))


def for_chunk(e: KernelEmitter, number: Index, chunk_size: int, size: int, body: Callable[[Index], None]) -> None:
    """Emits `body(index)` for each index of chunk `number` of `range(size)`; chunks have `chunk_size` indices."""
    lower = e.mul(number, chunk_size)
    upper = e.add(lower, chunk_size)
    if size % chunk_size:
        upper = e.minimum(upper, size)
    e.for_each(lower, upper, 1, body)


def for_rows(
    e: KernelEmitter, sizes: Sequence[int], row_bytes: int, work: float, body: Callable[[list[Index]], None]
) -> None:
    """Emits loops over `sizes` around `body(indices)`, whose iterations are independent.

    An iteration of the last loop is a row of `row_bytes` bytes. Threads share chunks of rows if `work`, the time of the
    whole nest in nanoseconds, is long enough.
    """
    if not sizes or not e.is_worth_sharing(work):
        e.nest(sizes, body)
        return
    *outer, last = sizes
    chunk_size = rows_in_chunk(last, row_bytes)

    def emit_chunk(indices: list[Index]) -> None:
        *outer_indices, number = indices
        for_chunk(e, number, chunk_size, last, lambda index: body([*outer_indices, index]))

    e.parallel([*outer, ceil_div(last, chunk_size)], emit_chunk, work)


def work_of(op: StructuredOp) -> float:
    """Returns a rough time of `op` on one thread in nanoseconds."""
    return estimate_nanoseconds(len(op.block.operations) * math.prod(loop.size for loop in op.loops), moved_bytes(op))


def moved_bytes(op: StructuredOp, parts: int = 1) -> int:
    """Returns the bytes that one of `parts` equal parts of `op` reads and writes, each element counted once."""
    total = 0
    for number, value in enumerate(op.operands):
        elements = math.prod(loop.size for loop in op.loops if loop.strides[number])
        total += elements * element_bytes(value.type.element_type)
    return total // max(1, parts)


# ---- bodies on vectors -----------------------------------------------------------------------------------------------


def clone_ops(
    block: ir.Block, values: dict[ir.Value, ir.Value], indices: dict[int, ir.Value]
) -> dict[ir.Value, ir.Value]:
    """Clones the ops of a body, except its terminator, at the insertion point.

    `values` maps arguments of the body to their replacements, and `indices` each dim to the value of its
    `linalg.index`. Returns `values` with the results of the body's ops, mapped to those of the clones.
    """
    values = dict(values)
    *body, _ = block.operations
    for op in body:
        operation = op.operation
        if operation.name == "linalg.index":
            values[operation.results[0]] = indices[_dim(operation)]
            continue
        clone = operation.clone().operation
        for i, operand in enumerate(operation.operands):
            clone.operands[i] = values.get(operand, operand)
        values |= dict(zip(operation.results, clone.results, strict=True))
    return values


@dataclass(frozen=True)
class VectorPosition:
    """The position of a vector in the loops of an op: lane `i` is iteration `start + i` of the loop over `dim`.

    Only the first `active` lanes are in use (`None`: all). `uniform` maps each argument of the body that is equal in
    all lanes to its scalar, and `indices` maps the dims of the other loops to the indices there.
    """

    dim: int
    start: Index
    active: int | None
    uniform: dict[Any, Any]
    indices: dict[int, Index]


class VectorBody:
    """Emits the body of `op` with a vector of `lanes` for every scalar, once for each call of `emit`.

    The ops in `skip` are not emitted: the caller emits them in another way, or not at all.
    """

    def __init__(
        self, e: KernelEmitter, op: StructuredOp, lanes: int, skip: frozenset[ir.Operation] = frozenset()
    ) -> None:
        self.e, self.op, self.lanes, self.skip = e, op, lanes, skip

    def emit(
        self, vectors: dict[ir.Value, ir.Value], position: VectorPosition | None = None
    ) -> dict[ir.Value, ir.Value]:
        """Emits the body; `vectors` has the vectors of its arguments. Returns the vectors of all values of the body.

        With `position`, the body may read indices and load from memory, and values that are equal in all lanes are
        computed as scalars first.
        """
        vectors, uniform = dict(vectors), dict(position.uniform) if position is not None else {}
        for op in self.op.block.operations:
            operation = op.operation
            if operation.name == "linalg.yield" or operation in self.skip:
                continue
            with operation.location:
                if position is not None and self._is_uniform(operation, vectors, uniform, position):
                    uniform[operation.results[0]] = self._emit_scalar(operation, uniform, position)
                    continue
                for scalar in operation.operands:
                    if scalar in uniform and scalar not in vectors:
                        vectors[scalar] = self.broadcast(uniform[scalar])
                vectors |= zip(operation.results, self._emit_vector(operation, vectors, uniform, position), strict=True)
        for scalar in self.op.yielded:
            if scalar in uniform:
                vectors[scalar] = self.broadcast(uniform[scalar])
        return vectors

    def emit_op(self, op: ir.Operation, vectors: dict[ir.Value, ir.Value]) -> None:
        """Emits one op of the body, which reads neither indices nor memory, and adds its results to `vectors`."""
        vectors |= zip(op.results, self._emit_vector(op, vectors, {}, None), strict=True)

    def vector_of(self, scalar: ir.Value, vectors: dict[ir.Value, ir.Value]) -> ir.Value:
        """Returns the vector for a scalar: a value of the body, a scalar operand, or a value from outside of the op.

        A vector that is not in `vectors` is broadcast and added to it.
        """
        if scalar not in vectors:
            vectors[scalar] = self.broadcast(self.op.scalars.get(scalar, scalar))
        return vectors[scalar]

    def broadcast(self, scalar: ir.Value) -> ir.Value:
        """Broadcasts `scalar` to every lane; constants become vector constants."""
        type_ = ir.VectorType.get([self.lanes], scalar.type)
        if isinstance(scalar, ir.OpResult) and scalar.owner.name == "arith.constant":
            return self.e.constant(ir.DenseElementsAttr.get_splat(type_, scalar.owner.attributes["value"]))
        return vector.broadcast(type_, scalar)

    # ---- values that are equal in all lanes --------------------------------------------------------------------------

    def _is_uniform(
        self,
        op: ir.Operation,
        vectors: dict[ir.Value, ir.Value],
        uniform: dict[ir.Value, ir.Value],
        position: VectorPosition,
    ) -> bool:
        """True if the result of `op` is equal in all lanes."""
        if op.name == "linalg.index":
            return _dim(op) != position.dim
        return len(op.results) == 1 and all(
            value in uniform or self._is_outside(value, vectors) for value in op.operands
        )

    def _is_outside(self, value: ir.Value, vectors: dict[ir.Value, ir.Value]) -> bool:
        """True if `value` is a scalar operand of the op, or defined outside of its body."""
        return value in self.op.scalars or (value not in vectors and _defining_block(value) != self.op.block)

    def _emit_scalar(self, op: ir.Operation, uniform: dict[ir.Value, ir.Value], position: VectorPosition) -> ir.Value:
        """Emits `op`, whose result is equal in all lanes, on scalars; returns its result."""
        if op.name == "arith.constant":
            return self.e.constant(op.attributes["value"])
        if op.name == "linalg.index":
            return self.e.value(position.indices[_dim(op)])
        clone = op.clone().operation
        for i, operand in enumerate(op.operands):
            clone.operands[i] = uniform.get(operand, self.op.scalars.get(operand, operand))
        return clone.results[0]

    # ---- values that differ between lanes ----------------------------------------------------------------------------

    def _emit_vector(
        self,
        op: ir.Operation,
        vectors: dict[ir.Value, ir.Value],
        uniform: dict[ir.Value, ir.Value],
        position: VectorPosition | None,
    ) -> list[ir.Value]:
        """Emits `op` on vectors; returns its results."""
        if op.name == "arith.constant":
            return [self.broadcast(op.results[0])]
        if op.name == "linalg.index":
            assert position is not None
            return [self._lane_indices(position)]
        if op.name == "memref.load":
            assert position is not None
            return [self._load(op, vectors, uniform, position)]
        types = [ir.VectorType.get([self.lanes], result.type) for result in op.results]
        operands = [self.vector_of(operand, vectors) for operand in op.operands]
        if op.name in TRAPPING_OPS and position is not None and position.active is not None:
            # Unused lanes divide by one.
            one = self.e.splat(operands[1].type, 1)
            operands[1] = arith.select(self.e.mask(self.lanes, position.active), operands[1], one)
        return list(ir.Operation.create(op.name, types, operands, attributes_of(op)).results)

    def _lane_indices(self, position: VectorPosition) -> ir.Value:
        """Returns the index of each lane along the vector's loop."""
        type_ = ir.VectorType.get([self.lanes], ir.IndexType.get())
        return arith.addi(vector.broadcast(type_, self.e.value(position.start)), vector.step(type_))

    def _load(
        self,
        load: ir.Operation,
        vectors: dict[ir.Value, ir.Value],
        uniform: dict[ir.Value, ir.Value],
        position: VectorPosition,
    ) -> ir.Value:
        """Loads a value per lane: a contiguous vector if possible, otherwise by a gather.

        The lanes are contiguous if only the last index varies, by one per lane, with unit stride.
        """
        e, (buffer, *indices) = self.e, load.operands
        type_ = ir.VectorType.get([self.lanes], load.results[0].type)
        mask = e.mask(self.lanes, self.lanes if position.active is None else position.active)
        *outer, last = indices
        strides = layout_of(buffer.type).strides
        if strides[-1] == 1 and all(index in uniform for index in outer) and _is_index(last, position.dim):
            start = [*(uniform[index] for index in outer), e.value(position.start)]
            if position.active is None:
                return vector.load(type_, buffer, start)
            return vector.maskedload(type_, buffer, start, mask, e.zero(type_))
        offset: Any = None
        for index, stride in zip(indices, strides, strict=True):
            term = self.vector_of(index, vectors)
            term = arith.muli(term, e.splat(term.type, stride)) if stride != 1 else term
            offset = term if offset is None else arith.addi(offset, term)
        return vector.gather(type_, flatten(buffer), [e.value(0)], offset, mask, e.zero(type_))


def _dim(op: ir.Operation) -> int:
    return int(ir.IntegerAttr(op.attributes["dim"]).value)


def _is_index(value: ir.Value, dim: int) -> bool:
    return isinstance(value, ir.OpResult) and value.owner.name == "linalg.index" and _dim(value.owner) == dim


def _defining_block(value: ir.Value) -> ir.Block:
    block: ir.Block = value.owner if isinstance(value, ir.BlockArgument) else value.owner.operation.block
    return block
