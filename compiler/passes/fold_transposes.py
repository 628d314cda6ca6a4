"""`fold-transposes`: folds transposes of tensors into the indexing maps of the ops around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir, linalg, tensor
from buddy.compiler.mlir.walk import nested_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import permutation_of
from buddy.compiler.passes.kernels.contraction import (
    has_plain_indices,
    indexing_maps,
    is_contraction,
    rebuild_contraction,
)


@register
@dataclass(frozen=True)
class FoldTransposes(MlirPass):
    """Folds transposes of the inputs and results of contractions, and of the weights of convolutions.

    Into other generics, and images of convolutions, it folds only transposes that keep the last dim. Two transposes in
    sequence become one, or none if they cancel each other.
    """

    name: ClassVar[str] = "fold-transposes"
    summary: ClassVar[str] = "fold transposes into the indexing maps of the contractions and generics that use them"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        # Transposes are composed first: a contraction would absorb one of two transposes that cancel each other.
        for op in [op for op in nested_ops(root) if op.name == "linalg.transpose" and _has_tensor_results(op)]:
            self._compose(op, context)
        for op in [op for op in nested_ops(root) if op.name.startswith("linalg.") and _has_tensor_results(op)]:
            if is_contraction(op) and has_plain_indices(op):
                self._fold_contraction(op, context)
            elif op.name == "linalg.generic":
                self._fold_generic(op, context)
        _erase_unused(root)

    def _compose(self, op: ir.Operation, context: PassContext) -> None:
        """Makes a transpose read the source of the transpose before it; replaces it if it then permutes nothing."""
        source = op.operands[0]
        if not isinstance(source, ir.OpResult) or source.owner.name != "linalg.transpose":
            return
        inner = source.owner.operation
        permutation = [permutation_of(inner)[dim] for dim in permutation_of(op)]
        if permutation == sorted(permutation):
            context.remark(self.name, op.location, "removed two transposes that cancel each other")
            op.results[0].replace_all_uses_with(inner.operands[0])
            op.erase()
        else:
            context.remark(self.name, op.location, "made one transpose of two")
            op.operands[0] = inner.operands[0]
            op.attributes["permutation"] = ir.DenseI64ArrayAttr.get(permutation)
        if not _uses(source):
            inner.erase()

    def _fold_contraction(self, op: ir.Operation, context: PassContext) -> None:
        """Replaces a contraction by one that reads the sources of transposes, and writes the transposed result."""
        maps = indexing_maps(op)
        inputs = [_skip_transposes(op.operands[i], maps[i], any_order=True) for i in (0, 1)]
        result_transpose = _transpose_of_result(op)
        folded = sum(value != op.operands[i] for i, (value, _) in enumerate(inputs))
        if not folded and result_transpose is None:
            return
        fused_ops = [op] if result_transpose is None else [op, result_transpose]
        location = context.locations.union([fused.location for fused in fused_ops])
        (a, a_map), (b, b_map) = inputs
        init, c_map = op.operands[2], maps[2]
        with ir.InsertionPoint(op), location:
            if result_transpose is not None:
                permutation = permutation_of(result_transpose)
                init = _transposed_fill(init, permutation)
                c_map = _with_results(c_map, [c_map.results[p] for p in permutation])
            new = rebuild_contraction(op, [a, b, init], [a_map, b_map, c_map])
        fused_ops[-1].results[0].replace_all_uses_with(new)
        if result_transpose is not None:
            result_transpose.erase()
        context.remark(self.name, op.location, _describe(folded, has_result=result_transpose is not None))
        op.erase()

    def _fold_generic(self, op: ir.Operation, context: PassContext) -> None:
        """Makes a generic read the sources of transposes."""
        maps, inputs = indexing_maps(op), len(op.operands) - len(op.results)
        folded = 0
        # The weights of a convolution are packed, so they may have any layout. Other generics have no such operand.
        weights_number = 1 if is_contraction(op) else None
        for number in range(inputs):
            value, maps[number] = _skip_transposes(
                op.operands[number], maps[number], any_order=number == weights_number
            )
            if value != op.operands[number]:
                op.operands[number] = value
                folded += 1
        if folded:
            op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps])
            context.remark(self.name, op.location, _describe(folded, has_result=False))


def _erase_unused(root: ir.Operation) -> None:
    """Erases transposes whose results have no uses."""
    for op in reversed([op for op in nested_ops(root) if op.name == "linalg.transpose"]):
        if _has_tensor_results(op) and not _uses(op.results[0]):
            op.erase()


def _describe(folded: int, has_result: bool) -> str:
    """Returns the text of a remark: `folded` transposes of operands, and with `has_result` that of the result."""
    parts = [f"{folded} operand transpose{'s' if folded > 1 else ''}"] if folded else []
    return "folded " + " and ".join([*parts, *(["the result's transpose"] if has_result else [])])


def _skip_transposes(value: ir.Value, map_: ir.AffineMap, any_order: bool) -> tuple[ir.Value, ir.AffineMap]:
    """Returns the source of the transposes that produce `value`, and the map that reads it as `map_` reads `value`.

    Unless `any_order`, only skips transposes that keep the last dim: after another transpose, the loop over the last
    dim would not be contiguous.
    """
    while isinstance(value, ir.OpResult) and value.owner.name == "linalg.transpose":
        permutation = permutation_of(value.owner)
        if not any_order and permutation[-1] != len(permutation) - 1:
            break
        results: list[Any] = [None] * len(permutation)
        for dim, source_dim in enumerate(permutation):
            results[source_dim] = map_.results[dim]
        value, map_ = value.owner.operands[0], _with_results(map_, results)
    return value, map_


def _transpose_of_result(op: ir.Operation) -> ir.Operation | None:
    """Returns the transpose that is the only use of the result of `op`, if the result is initialised by a fill."""
    uses = _uses(op.results[0])
    if len(uses) != 1 or uses[0].owner.name != "linalg.transpose" or uses[0].operand_number != 0:
        return None
    return uses[0].owner.operation if _is_filled_empty(op.operands[2]) else None


def _is_filled_empty(value: ir.Value) -> bool:
    """True if `value` is the fill of a new tensor."""
    if not isinstance(value, ir.OpResult) or value.owner.name != "linalg.fill":
        return False
    target = value.owner.operands[1]
    return isinstance(target, ir.OpResult) and target.owner.name == "tensor.empty"


def _transposed_fill(filled: ir.Value, permutation: Sequence[int]) -> ir.Value:
    """Emits a tensor that is filled as `filled` is, with its dims permuted."""
    sizes = _sizes(filled.owner.operands[1].owner)
    empty = tensor.empty([sizes[p] for p in permutation], filled.type.element_type)
    return linalg.fill(filled.owner.operands[0], outs=[empty])


def _sizes(empty: ir.Operation) -> list[int | ir.Value]:
    """Returns the sizes of a `tensor.empty`: ints, and MLIR values for dynamic sizes."""
    type_, values = ir.RankedTensorType(empty.results[0].type), iter(empty.operands)
    return [next(values) if type_.is_dynamic_dim(dim) else size for dim, size in enumerate(type_.shape)]


def _with_results(map_: ir.AffineMap, results: Sequence[ir.AffineExpr]) -> ir.AffineMap:
    """Returns the map of the loops of `map_` with other `results`."""
    return ir.AffineMap.get(map_.n_dims, 0, list(results))


def _uses(value: ir.Value) -> list[ir.OpOperand]:
    return list(value.uses)


def _has_tensor_results(op: ir.Operation) -> bool:
    return len(op.results) > 0 and all(isinstance(result.type, ir.RankedTensorType) for result in op.results)
