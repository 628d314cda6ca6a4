# RUN: %PYTHON %s 2>&1 | FileCheck %s
"""A product through `torch.compile` with the ready back end."""

import torch

from buddy.compiler.frontend import dynamo_compiler


class MatrixMultiply(torch.nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


model = MatrixMultiply()
compiled = torch.compile(model, backend=dynamo_compiler)
c = torch.rand(64, 96, dtype=torch.float32)
d = torch.rand(96, 32, dtype=torch.float32)
actual = compiled(c, d)
expect = model(c, d)

# CHECK: Is MLIR equal to Torch? True
print(f"Is MLIR equal to Torch? {torch.allclose(actual, expect, atol=1e-03, rtol=1e-03)}")
