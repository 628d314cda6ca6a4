"""Faults for numerics to find: a lowering with a wrong epsilon, one that moves nothing, a pass that flips signs.

The pass is registered by the test that plants it: what stays registered is in the catalogue of all tests of a process.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.bindings import arith, ir
from buddy.compiler.graph.operation import Op
from buddy.compiler.kernels.walk import named
from buddy.compiler.ops import linalg
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.utils import value_of
from buddy.compiler.passes.base import MlirPass, PassContext

WRONG_EPSILON = 0.5

faulty = Registry()
_right = linalg.ops_registry["NativeLayerNormOp"]


@faulty.lowering("NativeLayerNormOp")
def layer_norm_with_a_wrong_epsilon(node: Op, symbol_table: Any) -> Any:
    *others, _epsilon = node.args
    wrong = type(node)()
    wrong.name, wrong.target, wrong.metas, wrong.multiple = node.name, node.target, node.metas, node.multiple
    wrong._arguments = [*others, WRONG_EPSILON]
    return _right(wrong, symbol_table)


standing_still = Registry()


@standing_still.lowering("TOp")
def transpose_that_moves_nothing(node: Op, symbol_table: Any) -> Any:
    return value_of(node.args[0], symbol_table)


@dataclass(frozen=True)
class FlipSigns(MlirPass):
    """Differences become sums in generics that come from a node whose stable name holds `nodes`."""

    name: ClassVar[str] = "flip-signs"
    summary: ClassVar[str] = "a fault: x - y becomes x + y"

    nodes: str = ""

    def run(self, root: Any, context: PassContext) -> None:
        for op in named(root, "arith.subf"):
            names = context.locations.sets[context.locations.number_of(op.parent.location)]
            if any(self.nodes in name for name in names):
                with ir.InsertionPoint(op), op.location:
                    flipped = arith.AddFOp(*op.operands)
                op.results[0].replace_all_uses_with(flipped.result)
                op.erase()
