"""Emits the scalar body of a structured op on vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from buddy.compiler.mlir.bindings import arith, ir, vector
from buddy.compiler.mlir.walk import attributes_of
from buddy.compiler.passes.kernels.access import flatten, layout_of
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter
from buddy.compiler.passes.kernels.structured import TRAPPING, Structured


def clone_ops(block: Any, known: dict[Any, Any], indices: dict[int, Any]) -> dict[Any, Any]:
    """Clones the ops of a body, except its terminator, at the insertion point; returns `known` and their results.

    `indices` are the values of `linalg.index` per dim.
    """
    known = dict(known)
    *body, _ = block.operations
    for op in body:
        operation = op.operation
        if operation.name == "linalg.index":
            known[operation.results[0]] = indices[int(ir.IntegerAttr(operation.attributes["dim"]).value)]
            continue
        clone = operation.clone().operation
        for i, operand in enumerate(operation.operands):
            clone.operands[i] = known.get(operand, operand)
        known |= dict(zip(operation.results, clone.results, strict=True))
    return known


@dataclass(frozen=True)
class Lanes:
    """The position of a vector in its loop: along `dim` from `start`, the first `active` lanes in use (`None`: all).

    `uniform` maps arguments of the body that are equal in all lanes to scalars, `indices` the dims of other loops to
    their indices.
    """

    dim: int
    start: Index
    active: int | None
    uniform: dict[Any, Any]
    indices: dict[int, Index]


class VectorBody:
    """Emits the body of `op` once per call, with a vector of `lanes` for every scalar.

    `skip` are body ops that are not emitted.
    """

    def __init__(self, e: KernelEmitter, op: Structured, lanes: int, skip: frozenset[Any] = frozenset()) -> None:
        self.e, self.op, self.lanes, self.skip = e, op, lanes, skip

    def emit(self, values: dict[Any, Any], at: Lanes | None = None) -> dict[Any, Any]:
        """Emits the body on the vectors of its arguments; returns all vectors.

        With `at`, uniform values are computed once as scalars, indices are known, and the body may load from memory.
        """
        known, uniform = dict(values), dict(at.uniform) if at is not None else {}
        for op in self.op.block.operations:
            operation = op.operation
            if operation.name == "linalg.yield" or operation in self.skip:
                continue
            with operation.location:
                if at is not None and self._is_uniform(operation, known, uniform, at):
                    uniform[operation.results[0]] = self._emit_scalar(operation, uniform, at)
                    continue
                for scalar in operation.operands:
                    if scalar in uniform and scalar not in known:
                        known[scalar] = self.broadcast(uniform[scalar])
                known |= zip(operation.results, self._emit_vector(operation, known, uniform, at), strict=True)
        for scalar in self.op.yielded:
            if scalar in uniform:
                known[scalar] = self.broadcast(uniform[scalar])
        return known

    def value(self, scalar: Any, known: dict[Any, Any]) -> Any:
        """Returns the vector for a scalar of the body, of the op's scalar operands, or from outside."""
        if scalar not in known:
            known[scalar] = self.broadcast(self.op.scalars.get(scalar, scalar))
        return known[scalar]

    def broadcast(self, scalar: Any) -> Any:
        """Broadcasts `scalar` to every lane; constants become vector constants."""
        type_ = ir.VectorType.get([self.lanes], scalar.type)
        if isinstance(scalar, ir.OpResult) and scalar.owner.name == "arith.constant":
            return self.e.constant(ir.DenseElementsAttr.get_splat(type_, scalar.owner.attributes["value"]))
        return vector.broadcast(type_, scalar)

    # ---- values that are equal in all lanes --------------------------------------------------------------------------

    def _is_uniform(self, op: Any, known: dict[Any, Any], uniform: dict[Any, Any], at: Lanes) -> bool:
        if op.name == "linalg.index":
            return _dim(op) != at.dim
        return len(op.results) == 1 and all(value in uniform or self._is_outside(value, known) for value in op.operands)

    def _is_outside(self, value: Any, known: dict[Any, Any]) -> bool:
        return value in self.op.scalars or (value not in known and _block(value) != self.op.block)

    def _emit_scalar(self, op: Any, uniform: dict[Any, Any], at: Lanes) -> Any:
        if op.name == "arith.constant":
            return self.e.constant(op.attributes["value"])
        if op.name == "linalg.index":
            return self.e.value(at.indices[_dim(op)])
        clone = op.clone().operation
        for i, operand in enumerate(op.operands):
            clone.operands[i] = uniform.get(operand, self.op.scalars.get(operand, operand))
        return clone.results[0]

    # ---- values that differ between lanes ----------------------------------------------------------------------------

    def _emit_vector(self, op: Any, known: dict[Any, Any], uniform: dict[Any, Any], at: Lanes | None) -> list[Any]:
        if op.name == "arith.constant":
            return [self.broadcast(op.results[0])]
        if op.name == "linalg.index":
            assert at is not None
            return [self._lane_indices(at)]
        if op.name == "memref.load":
            assert at is not None
            return [self._read(op, known, uniform, at)]
        types = [ir.VectorType.get([self.lanes], result.type) for result in op.results]
        operands = [self.value(operand, known) for operand in op.operands]
        if op.name in TRAPPING and at is not None and at.active is not None:
            one = self.e.splat(operands[1].type, 1)
            operands[1] = arith.select(self.e.mask(self.lanes, at.active), operands[1], one)
        return list(ir.Operation.create(op.name, types, operands, attributes_of(op)).results)

    def _lane_indices(self, at: Lanes) -> Any:
        """Returns the index of each lane along the vector's loop."""
        type_ = ir.VectorType.get([self.lanes], ir.IndexType.get())
        return arith.addi(vector.broadcast(type_, self.e.value(at.start)), vector.step(type_))

    def _read(self, load: Any, known: dict[Any, Any], uniform: dict[Any, Any], at: Lanes) -> Any:
        """Loads a value per lane.

        The lanes must be contiguous: only the last index may vary, by one per lane, with unit stride.
        """
        e, (buffer, *indices) = self.e, load.operands
        type_ = ir.VectorType.get([self.lanes], load.results[0].type)
        mask = e.mask(self.lanes, self.lanes if at.active is None else at.active)
        *before, last = indices
        strides = layout_of(buffer.type).strides
        if strides[-1] == 1 and all(index in uniform for index in before) and _is_index(last, at.dim):
            place = [*(uniform[index] for index in before), e.value(at.start)]
            if at.active is None:
                return vector.load(type_, buffer, place)
            return vector.maskedload(type_, buffer, place, mask, e.zero(type_))
        offset: Any = None
        for index, stride in zip(indices, strides, strict=True):
            term = self.value(index, known)
            term = arith.muli(term, e.splat(term.type, stride)) if stride != 1 else term
            offset = term if offset is None else arith.addi(offset, term)
        return vector.gather(type_, flatten(buffer), [e.value(0)], offset, mask, e.zero(type_))


def _dim(op: Any) -> int:
    return int(ir.IntegerAttr(op.attributes["dim"]).value)


def _is_index(value: Any, dim: int) -> bool:
    return isinstance(value, ir.OpResult) and value.owner.name == "linalg.index" and _dim(value.owner) == dim


def _block(value: Any) -> Any:
    """Returns the block that defines a value."""
    return value.owner if isinstance(value, ir.BlockArgument) else value.owner.operation.block
