"""`drop-unit-loops`: removes loops of one iteration from contractions, if they come from reshapes around them.

TOSA's matmul has a batch dim of size 1 in models without a batch, and the reshapes around it hide transposed weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir, linalg, tensor
from buddy.compiler.mlir.walk import collect
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import groups_without
from buddy.compiler.passes.kernels.contraction import indexing_maps, is_contraction, reads_loops, rebuilt


@register
@dataclass(frozen=True)
class DropUnitLoops(MlirPass):
    """Applies only if a factor is a reshape of a tensor without these dims; the contraction then reads that tensor."""

    name: ClassVar[str] = "drop-unit-loops"
    summary: ClassVar[str] = "contractions read the source of reshapes that add unit dims, without their loops"

    def run(self, root: Any, context: PassContext) -> None:
        # Collect all before erasing: ops inside an erased op are invalid.
        for op in [op for op in collect(root) if _is_static(op)]:
            if is_contraction(op) and reads_loops(op):
                dropped = _unit_loops(op)
                if any(_source_without(value, _dims(map_, dropped)) is not None for value, map_ in _factors(op)):
                    text = f"dropped {len(dropped)} loop{'s' if len(dropped) > 1 else ''} of one iteration"
                    context.remark(self.name, op.location, text)
                    _drop(op, dropped)


def _is_static(op: Any) -> bool:
    """True if `op` is a linalg op with one result on tensors of static sizes."""
    if not op.name.startswith("linalg.") or len(op.results) != 1:
        return False
    return all(not isinstance(v.type, ir.ShapedType) or v.type.has_static_shape for v in op.operands)


def _factors(op: Any) -> list[tuple[Any, Any]]:
    return list(zip(list(op.operands)[:2], indexing_maps(op)[:2], strict=True))


def _unit_loops(op: Any) -> frozenset[int]:
    """Returns the parallel loops over dims of size 1."""
    map_, result = indexing_maps(op)[2], op.results[0]
    if not isinstance(result.type, ir.RankedTensorType):
        return frozenset()
    sizes = zip(map_.results, result.type.shape, strict=True)
    return frozenset(e.position for e, size in sizes if size == 1 and isinstance(e, ir.AffineDimExpr))


def _dims(map_: Any, loops: frozenset[int]) -> list[int]:
    """Returns the dims of an operand that `loops` index."""
    return [dim for dim, e in enumerate(map_.results) if isinstance(e, ir.AffineDimExpr) and e.position in loops]


def _source_without(value: Any, dims: Sequence[int]) -> Any | None:
    """Returns the tensor that was expanded to `value`, if it has all dims except `dims`; otherwise `None`."""
    if not dims or not isinstance(value, ir.OpResult) or value.owner.name != "tensor.expand_shape":
        return None
    source = value.owner.operands[0]
    kept = [size for dim, size in enumerate(value.type.shape) if dim not in dims]
    return source if list(source.type.shape) == kept else None


def _drop(op: Any, loops: frozenset[int]) -> None:
    maps, result = indexing_maps(op), op.results[0]
    with ir.InsertionPoint(op), op.location:
        operands = [_drop_dims(value, _dims(map_, loops)) for value, map_ in zip(op.operands, maps, strict=True)]
        new = rebuilt(op, operands, [_drop_loops(m, loops) for m in maps])
        groups = groups_without(result.type.shape, _dims(maps[2], loops))
        wide = tensor.expand_shape(result.type, new, groups, [], list(result.type.shape))
    result.replace_all_uses_with(wide)
    op.erase()


def _drop_dims(value: Any, dims: list[int]) -> Any:
    """Returns `value` without its dims `dims`, which have size 1."""
    if not dims:
        return value
    source = _source_without(value, dims)
    if source is not None:
        return source
    kept = [size for dim, size in enumerate(value.type.shape) if dim not in dims]
    type_ = ir.RankedTensorType.get(kept, value.type.element_type)
    if isinstance(value, ir.OpResult) and value.owner.name == "linalg.fill":
        return linalg.fill(value.owner.operands[0], outs=[tensor.empty(kept, value.type.element_type)])
    return tensor.collapse_shape(type_, value, groups_without(value.type.shape, dims))


def _drop_loops(map_: Any, loops: frozenset[int]) -> Any:
    """Returns `map_` over the remaining loops."""
    stay = [loop for loop in range(map_.n_dims) if loop not in loops]
    results = [ir.AffineDimExpr.get(stay.index(e.position)) for e in map_.results if e.position not in loops]
    return ir.AffineMap.get(len(stay), 0, results)
