"""A script written for Buddy-MLIR's Python frontend: it imports a function and prints its top-level MLIR."""

import torch
from torch._inductor.decomposition import decompositions as inductor_decomp

from buddy.compiler.frontend import DynamoCompiler
from buddy.compiler.ops import tosa


def foo(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y + x


dynamo_compiler = DynamoCompiler(
    primary_registry=tosa.ops_registry,
    aot_autograd_decomposition=inductor_decomp,
)

graphs = dynamo_compiler.importer(foo, torch.randn(10), torch.randn(10))
assert len(graphs) == 1
graph = graphs[0]
graph.lower_to_top_level_ir()
print(graph._imported_module)
