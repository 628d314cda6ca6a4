"""Emits the scalar body of a structured op on vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from buddy.compiler.mlir.bindings import arith, ir, vector
from buddy.compiler.mlir.walk import attributes_of
from buddy.compiler.passes.kernels.access import flatten, layout_of
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter
from buddy.compiler.passes.kernels.structured import TRAPPING_OPS, Structured


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
        self, e: KernelEmitter, op: Structured, lanes: int, skip: frozenset[ir.Operation] = frozenset()
    ) -> None:
        self.e, self.op, self.lanes, self.skip = e, op, lanes, skip

    def emit(
        self, vectors: dict[ir.Value, ir.Value], position: VectorPosition | None = None
    ) -> dict[ir.Value, ir.Value]:
        """Emits the body on `vectors`, which has vectors for its arguments; returns those of all values of the body.

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
