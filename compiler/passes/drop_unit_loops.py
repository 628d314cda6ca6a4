"""`drop-unit-loops`: removes loops of one iteration from contractions whose unit dims were added by `expand_shape`.

TOSA's matmul has a batch dim, which has size 1 in models without a batch. The reshapes that add the dim hide transposed
weights from the passes that match contractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from buddy.compiler.mlir.bindings import ir, linalg, tensor
from buddy.compiler.mlir.walk import nested_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import reassociation_without
from buddy.compiler.passes.kernels.contraction import (
    has_plain_indices,
    indexing_maps,
    is_contraction,
    rebuild_contraction,
)


@register
@dataclass(frozen=True)
class DropUnitLoops(MlirPass):
    """Makes a contraction read the source of an `expand_shape` that adds unit dims, without the loops over these dims.

    Other contractions are unchanged.
    """

    name: ClassVar[str] = "drop-unit-loops"
    summary: ClassVar[str] = "drop unit dims that reshapes add to operands of contractions, with their loops"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        # The list is complete before the first op is erased: ops inside an erased op are invalid.
        for op in [op for op in nested_ops(root) if _is_static_linalg_op(op)]:
            if not is_contraction(op) or not has_plain_indices(op):
                continue
            loops = _unit_loops(op)
            if any(_source_without(value, _dims_of(map_, loops)) is not None for value, map_ in _inputs(op)):
                text = f"dropped {len(loops)} loop{'s' if len(loops) > 1 else ''} of one iteration"
                context.remark(self.name, op.location, text)
                _drop(op, loops)


def _is_static_linalg_op(op: ir.Operation) -> bool:
    """True if `op` is a linalg op with one result whose shaped operands have static shapes."""
    if not op.name.startswith("linalg.") or len(op.results) != 1:
        return False
    return all(not isinstance(v.type, ir.ShapedType) or v.type.has_static_shape for v in op.operands)


def _inputs(op: ir.Operation) -> list[tuple[ir.Value, ir.AffineMap]]:
    """Returns the two input operands of a contraction, each with its indexing map."""
    return list(zip(list(op.operands)[:2], indexing_maps(op)[:2], strict=True))


def _unit_loops(op: ir.Operation) -> frozenset[int]:
    """Returns the positions of the parallel loops of a contraction that have one iteration; none for buffers."""
    map_, result = indexing_maps(op)[2], op.results[0]
    if not isinstance(result.type, ir.RankedTensorType):
        return frozenset()
    sizes = zip(map_.results, result.type.shape, strict=True)
    return frozenset(e.position for e, size in sizes if size == 1 and isinstance(e, ir.AffineDimExpr))


def _dims_of(map_: ir.AffineMap, loops: frozenset[int]) -> list[int]:
    """Returns the dims of the operand with indexing map `map_` that are indexed by `loops`."""
    return [dim for dim, e in enumerate(map_.results) if isinstance(e, ir.AffineDimExpr) and e.position in loops]


def _source_without(value: ir.Value, dims: Sequence[int]) -> ir.Value | None:
    """Returns the source of `value` if it is an `expand_shape` that only adds the unit dims `dims`, else `None`."""
    if not dims or not isinstance(value, ir.OpResult) or value.owner.name != "tensor.expand_shape":
        return None
    source = value.owner.operands[0]
    remaining_sizes = [size for dim, size in enumerate(value.type.shape) if dim not in dims]
    return source if list(source.type.shape) == remaining_sizes else None


def _drop(op: ir.Operation, loops: frozenset[int]) -> None:
    """Replaces `op` by the contraction without `loops`, and expands its result to the original shape."""
    maps, result = indexing_maps(op), op.results[0]
    with ir.InsertionPoint(op), op.location:
        operands = [_drop_dims(value, _dims_of(map_, loops)) for value, map_ in zip(op.operands, maps, strict=True)]
        new = rebuild_contraction(op, operands, [_drop_loops(m, loops) for m in maps])
        groups = reassociation_without(result.type.shape, _dims_of(maps[2], loops))
        expanded = tensor.expand_shape(result.type, new, groups, [], list(result.type.shape))
    result.replace_all_uses_with(expanded)
    op.erase()


def _drop_dims(value: ir.Value, dims: list[int]) -> ir.Value:
    """Returns `value` with the unit dims `dims` removed."""
    if not dims:
        return value
    source = _source_without(value, dims)
    if source is not None:
        return source
    remaining_sizes = [size for dim, size in enumerate(value.type.shape) if dim not in dims]
    type_ = ir.RankedTensorType.get(remaining_sizes, value.type.element_type)
    if isinstance(value, ir.OpResult) and value.owner.name == "linalg.fill":
        return linalg.fill(value.owner.operands[0], outs=[tensor.empty(remaining_sizes, value.type.element_type)])
    return tensor.collapse_shape(type_, value, reassociation_without(value.type.shape, dims))


def _drop_loops(map_: ir.AffineMap, loops: frozenset[int]) -> ir.AffineMap:
    """Returns `map_` with `loops` removed and the other loops renumbered."""
    remaining_loops = [loop for loop in range(map_.n_dims) if loop not in loops]
    results = [ir.AffineDimExpr.get(remaining_loops.index(e.position)) for e in map_.results if e.position not in loops]
    return ir.AffineMap.get(len(remaining_loops), 0, results)
