# RUN: %PYTHON %s 2>&1 | FileCheck %s
"""The three steps of adding an operator, none of them in the package: class, lowering, name."""

import mlir.dialects.math as math
import torch

from buddy.compiler.frontend import DynamoCompiler
from buddy.compiler.graph.operation import Op, OpType
from buddy.compiler.ops import linalg


class AtanOp(Op):
    def __init__(self) -> None:
        super().__init__()
        self._op_type = OpType.ElementwiseType


def atan_op(node, symbol_table):
    input1 = symbol_table.get((str(node.args[0]), 0))
    return math.AtanOp(input1)


linalg.ops_registry["AtanOp"] = atan_op
dynamo_compiler = DynamoCompiler(primary_registry=linalg.ops_registry)
dynamo_compiler._ops_map["atan.default"] = AtanOp

x = torch.randn(3, 4)
(graph,) = dynamo_compiler.importer(lambda x: torch.atan(x) * 2, x)
graph.lower_to_top_level_ir()
print(graph._imported_module)
print("equal:", torch.allclose(dynamo_compiler.dynamo_run()(x)[0], torch.atan(x) * 2, atol=1e-6))
torch._dynamo.reset()
print("compiled:", torch.allclose(torch.compile(torch.atan, backend=dynamo_compiler)(x), torch.atan(x), atol=1e-6))

# CHECK: func.func @forward
# CHECK: math.atan %arg0 : tensor<3x4xf32>
# CHECK: equal: True
# CHECK: compiled: True
