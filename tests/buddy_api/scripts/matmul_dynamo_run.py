# RUN: %PYTHON %s 2>&1 | FileCheck %s
"""A product through export, compiled ahead of the call."""

import time

import torch
from torch._inductor.decomposition import decompositions as inductor_decomp

from buddy.compiler.frontend import DynamoCompiler
from buddy.compiler.ops import tosa


class MatrixMultiply(torch.nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


def execute(a, b):
    dynamo_compiler = DynamoCompiler(
        primary_registry=tosa.ops_registry,
        aot_autograd_decomposition=inductor_decomp,
    )
    dynamo_compiler.importer_by_export(MatrixMultiply(), a, b)
    exec_func = dynamo_compiler.dynamo_run()
    # Return is a tensor list
    return exec_func(a, b)[0]


c = torch.rand(64, 96, dtype=torch.float32)
d = torch.rand(96, 32, dtype=torch.float32)
start_time = time.process_time()
actual = execute(c, d)
mlir_time = time.process_time() - start_time
expect = MatrixMultiply().forward(c, d)

# CHECK: Is MLIR equal to Torch? True
print(f"Is MLIR equal to Torch? {torch.allclose(actual, expect, atol=1e-03, rtol=1e-03)}")
# CHECK: MLIR time: {{[0-9.]+}}ms
print(f"MLIR time: {mlir_time * 1000:.2f}ms")
