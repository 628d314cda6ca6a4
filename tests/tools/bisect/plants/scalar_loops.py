"""A pass that makes scalar loops of long element-wise ops, the innermost of them over a dim that is not contiguous."""

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import arith, ir, memref, scf
from buddy.compiler.mlir.walk import find_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.contraction import indexing_maps

LONG = 12


@register
@dataclass(frozen=True)
class ScalarLoops(MlirPass):
    name: ClassVar[str] = "scalar-loops"
    summary: ClassVar[str] = "makes scalar loops of element-wise ops"

    def run(self, root: Any, context: PassContext) -> None:
        for op in find_ops(root, "linalg.generic"):
            body = list(op.regions[0].blocks[0])
            elementwise = "reduction" not in str(op.attributes["iterator_types"]) and len(op.results) == 0
            if elementwise and len(body) > LONG and all(map(_is_whole, indexing_maps(op))):
                with ir.InsertionPoint(op), op.location:
                    _loops(op, list(op.operands[len(op.operands) - 1].type.shape))
                op.erase()


def _is_whole(map_: Any) -> bool:
    """Whether an operand is read at loops alone, not at sums of them."""
    return all(isinstance(e, (ir.AffineDimExpr, ir.AffineConstantExpr)) for e in map_.results)


def _constant(value: int) -> Any:
    return arith.ConstantOp(ir.IndexType.get(), value).result


def _loops(op: Any, sizes: list[int]) -> None:
    """The dims in the opposite order: the last one, which is contiguous, outermost."""
    zero, one, ends = _constant(0), _constant(1), [_constant(size) for size in sizes]
    indices: dict[int, Any] = {}

    def nest(left: list[int]) -> None:
        if not left:
            _element(op, indices, zero)
            return
        loop = scf.ForOp(zero, ends[left[0]], one)
        with ir.InsertionPoint(loop.body):
            indices[left[0]] = loop.induction_variable
            nest(left[1:])
            scf.YieldOp([])

    nest(list(reversed(range(len(sizes)))))


def _element(op: Any, indices: dict[int, Any], zero: Any) -> None:
    block, maps = op.regions[0].blocks[0], indexing_maps(op)
    values: dict[Any, Any] = {}
    places = [[indices[e.position] if isinstance(e, ir.AffineDimExpr) else zero for e in m.results] for m in maps]
    for argument, operand, place in zip(block.arguments, op.operands, places, strict=True):
        shaped = isinstance(operand.type, ir.MemRefType)
        values[argument] = memref.load(operand, place) if shaped else operand
    for inner in block:
        if inner.operation.name == "linalg.yield":
            result = inner.operation.operands[0]
            memref.store(values.get(result, result), op.operands[len(op.operands) - 1], places[-1])
            continue
        copy = inner.operation.clone()
        for number, operand in enumerate(inner.operation.operands):
            copy.operands[number] = values.get(operand, operand)
        values.update(zip(inner.operation.results, copy.results, strict=True))
