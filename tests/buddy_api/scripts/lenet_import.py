"""LeNet ahead of time: subgraph and main graph as files, parameters as one flat file, as a C++ program loads them."""

import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch._inductor.decomposition import decompositions as inductor_decomp

from buddy.compiler.frontend import DynamoCompiler
from buddy.compiler.graph import GraphDriver
from buddy.compiler.graph.transform import simply_fuse
from buddy.compiler.ops import tosa

output_dir = Path(sys.argv[1])


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


model = LeNet().eval()
dynamo_compiler = DynamoCompiler(
    primary_registry=tosa.ops_registry,
    aot_autograd_decomposition=inductor_decomp,
)

with torch.no_grad():
    graphs = dynamo_compiler.importer(model, torch.randn([1, 1, 28, 28]))

assert len(graphs) == 1
graph = graphs[0]
params = dynamo_compiler.imported_params[graph]
pattern_list = [simply_fuse]
graphs[0].fuse_ops(pattern_list)
driver = GraphDriver(graphs[0])
driver.subgraphs[0].lower_to_top_level_ir()
with open(os.path.join(output_dir, "subgraph0.mlir"), "w") as module_file:
    print(driver.subgraphs[0]._imported_module, file=module_file)
with open(os.path.join(output_dir, "forward.mlir"), "w") as module_file:
    print(driver.construct_main_graph(True), file=module_file)

float32_param = np.concatenate([param.detach().numpy().reshape([-1]) for param in params])
float32_param.tofile(output_dir / "arg0.data")

print((output_dir / "forward.mlir").read_text())
print((output_dir / "subgraph0.mlir").read_text())
print("parameters:", len(float32_param))

# CHECK: func.func private @subgraph0(
# CHECK: func.func @forward(%arg0: tensor<44426xf32>
# CHECK-SAME: %arg1: tensor<1x1x28x28xf32>
# CHECK-SAME: -> tensor<1x10xf32>
# CHECK: tensor.extract_slice %arg0
# CHECK: call @subgraph0
# CHECK: return
# CHECK: func.func @subgraph0(
# CHECK: tosa.conv2d
# CHECK: tosa.max_pool2d
# CHECK: parameters: 44426
