"""A small BERT ahead of time, by keyword arguments: parameters of two element types, each in a file of its own."""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from torch._inductor.decomposition import decompositions as inductor_decomp
from transformers import BertConfig, BertForSequenceClassification

from buddy.compiler.frontend import DynamoCompiler
from buddy.compiler.graph import GraphDriver
from buddy.compiler.graph.transform import simply_fuse
from buddy.compiler.ops import tosa

parser = argparse.ArgumentParser(description="BERT model AOT importer")
parser.add_argument("--output-dir", type=str, default="./", help="Directory to save output files")
args = parser.parse_args()
output_dir = os.path.abspath(args.output_dir)
os.makedirs(output_dir, exist_ok=True)

torch.manual_seed(0)
config = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)
model = BertForSequenceClassification(config)
model.eval()
dynamo_compiler = DynamoCompiler(
    primary_registry=tosa.ops_registry,
    aot_autograd_decomposition=inductor_decomp,
)
inputs = {
    "input_ids": torch.tensor([[1 for _ in range(5)]], dtype=torch.int64),
    "token_type_ids": torch.tensor([[0 for _ in range(5)]], dtype=torch.int64),
    "attention_mask": torch.tensor([[1 for _ in range(5)]], dtype=torch.int64),
}
with torch.no_grad():
    graphs = dynamo_compiler.importer(model, **inputs)

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

# The last of the parameters is the buffer of position ids.
float32_param = np.concatenate([param.detach().numpy().reshape([-1]) for param in params[:-1]])
float32_param.tofile(Path(output_dir) / "arg0.data")
int64_param = params[-1].detach().numpy().reshape([-1])
int64_param.tofile(Path(output_dir) / "arg1.data")

print(Path(output_dir, "forward.mlir").read_text())
print("packs:", float32_param.dtype, len(float32_param), int64_param.dtype, len(int64_param))
result = dynamo_compiler.dynamo_run()(*(value for value in inputs.values()))[0]
with torch.no_grad():
    print("equal:", torch.allclose(result, model(**inputs).logits, atol=1e-5))

# CHECK: func.func private @subgraph0(
# CHECK: func.func @forward(%arg0: tensor<{{[0-9]+}}xf32>
# CHECK-SAME: %arg1: tensor<16xi64>
# CHECK-SAME: tensor<1x5xi64>
# CHECK-SAME: -> tensor<1x2xf32>
# CHECK: call @subgraph0
# CHECK: packs: float32 {{[0-9]+}} int64 16
# CHECK: equal: True
