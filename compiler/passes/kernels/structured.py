"""Structured ops (linalg on memrefs) as loops over flat operands and a body, and loops over rows that threads share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import element_bytes
from buddy.compiler.passes.kernels.access import (
    Loop,
    UnsupportedError,
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
class Structured:
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


def analyse_vectorizable(op: ir.Operation, allow_loads: bool = False, allow_reversed: bool = False) -> Structured:
    """Returns the structure of `op`, one of `STRUCTURED_OPS` on memrefs, with loops merged where possible.

    With `allow_loads`, the body may also load from memory and divide integers. With `allow_reversed`, inputs may be
    read from the last to the first element of a dim. Raises `UnsupportedError` with the reason if `op` cannot be
    vectorised.
    """
    structured = structure_of(op, allow_loads, allow_reversed)
    _check_vectors(structured.block, allow_loads)
    _check_elements(structured.operands)
    return replace(structured, loops=tuple(merge_loops(structured.loops, structured.indexed)))


def structure_of(op: ir.Operation, allow_loads: bool = False, allow_reversed: bool = False) -> Structured:
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
    return Structured(op, operands, outputs, tuple(loops), block, arguments, scalars, indexed, starts)


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
        if name == "memref.load" and not _fits_in_vectors(op.operation.results[0].type):
            raise UnsupportedError(f"it reads {op.operation.results[0].type} from memory")
        if name == "memref.load":
            layout_of(op.operation.operands[0].type)
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

    def emit_index(index: Index) -> None:
        body(index)

    e.for_each(lower, upper, 1, emit_index)


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


def work_of(op: Structured) -> float:
    """Returns a rough time of `op` on one thread in nanoseconds."""
    return estimate_nanoseconds(len(op.block.operations) * math.prod(loop.size for loop in op.loops), moved_bytes(op))


def moved_bytes(op: Structured, parts: int = 1) -> int:
    """Returns the bytes that one of `parts` equal parts of `op` reads and writes, each element counted once."""
    total = 0
    for number, value in enumerate(op.operands):
        elements = math.prod(loop.size for loop in op.loops if loop.strides[number])
        total += elements * element_bytes(value.type.element_type)
    return total // max(1, parts)
