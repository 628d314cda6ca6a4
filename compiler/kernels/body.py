"""The scalar body of a structured op, emitted on vectors."""

from __future__ import annotations

from typing import Any

from buddy.compiler.bindings import arith, ir, vector
from buddy.compiler.kernels.emit import Emitter, Index
from buddy.compiler.kernels.structured import Structured
from buddy.compiler.kernels.walk import attributes_of


def cloned(block: Any, known: dict[Any, Any], indices: dict[int, Any]) -> dict[Any, Any]:
    """Clone the ops of a body, but its terminator, at the insertion point; `known` with what they make.

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


class VectorBody:
    """Emits the body of `op` once per call, every scalar becoming a vector of `lanes`.

    `skip` are body ops that are not emitted.
    """

    def __init__(self, e: Emitter, op: Structured, lanes: int, skip: frozenset[Any] = frozenset()) -> None:
        self.e, self.op, self.lanes, self.skip = e, op, lanes, skip

    def emit(self, values: dict[Any, Any], indices: dict[int, Any]) -> dict[Any, Any]:
        """Values of the body, from those of its arguments and of `linalg.index` per dim."""
        known = dict(values)
        for op in self.op.block.operations:
            operation = op.operation
            if operation.name == "linalg.yield" or operation in self.skip:
                continue
            with operation.location:
                for result, value in zip(operation.results, self._one(operation, known, indices), strict=True):
                    known[result] = value
        return known

    def value(self, scalar: Any, known: dict[Any, Any]) -> Any:
        """The vector for a scalar of the body, of the op's scalar operands, or from outside."""
        if scalar not in known:
            known[scalar] = self.spread(self.op.scalars.get(scalar, scalar))
        return known[scalar]

    def spread(self, scalar: Any) -> Any:
        """`scalar` in every lane; constants become vector constants."""
        type_ = ir.VectorType.get([self.lanes], scalar.type)
        if isinstance(scalar, ir.OpResult) and scalar.owner.name == "arith.constant":
            return self.e.constant(ir.DenseElementsAttr.get_splat(type_, scalar.owner.attributes["value"]))
        return vector.broadcast(type_, scalar)

    def _one(self, op: Any, known: dict[Any, Any], indices: dict[int, Any]) -> list[Any]:
        if op.name == "arith.constant":
            return [self.spread(op.results[0])]
        if op.name == "linalg.index":
            return [indices[int(ir.IntegerAttr(op.attributes["dim"]).value)]]
        types = [ir.VectorType.get([self.lanes], result.type) for result in op.results]
        operands = [self.value(operand, known) for operand in op.operands]
        return list(ir.Operation.create(op.name, types, operands, attributes_of(op)).results)

    def indices(self, outer: dict[int, Index], dim: int | None, start: Index) -> dict[int, Any]:
        """The vectors that `linalg.index` gives: those of `outer` in all lanes, `start + lane` along `dim`."""
        type_ = ir.VectorType.get([self.lanes], ir.IndexType.get())
        found = {d: vector.broadcast(type_, self.e.value(index)) for d, index in outer.items()}
        if dim is not None:
            found[dim] = arith.addi(vector.broadcast(type_, self.e.value(start)), vector.step(type_))
        return found
