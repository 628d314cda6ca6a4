# RUN: %PYTHON %s 2>&1 | FileCheck %s
"""An addition of half floats, through the driver."""

import torch
from torch._inductor.decomposition import decompositions as inductor_decomp

from buddy.compiler.frontend import DynamoCompiler
from buddy.compiler.graph import GraphDriver
from buddy.compiler.graph.transform import simply_fuse
from buddy.compiler.ops import tosa


def foo(x, y):
    return x + y


in1 = torch.randn(10).to(torch.float16)
in2 = torch.randn(10).to(torch.float16)

dynamo_compiler = DynamoCompiler(
    primary_registry=tosa.ops_registry,
    aot_autograd_decomposition=inductor_decomp,
)
with torch.no_grad():
    graphs = dynamo_compiler.importer(foo, in1, in2)
assert len(graphs) == 1
graph = graphs[0]
assert dynamo_compiler.imported_params[graph] == []
graphs[0].fuse_ops([simply_fuse])
driver = GraphDriver(graphs[0])
driver.subgraphs[0].lower_to_top_level_ir()
print(driver.subgraphs[0]._imported_module)
print(driver.construct_main_graph(True))
print("equal:", torch.equal(dynamo_compiler.dynamo_run()(in1, in2)[0], in1 + in2))

# CHECK: module {
# CHECK-LABEL: func.func @subgraph0
# CHECK: %{{.*}} = tosa.add
# CHECK: return %{{.*}}
# CHECK: }
# CHECK: }
# CHECK: module {
# CHECK: func.func private @subgraph0(tensor<10xf16>
# CHECK-LABEL: func.func @forward
# CHECK: call @subgraph0
# CHECK: equal: True
