# RUN: %PYTHON %s 2>&1 | FileCheck %s
"""A training loop with `torch.compile`, once with the backward graph in eager and once with both compiled."""

import torch
from torch import nn
from torch._inductor.decomposition import decompositions as inductor_decomp

from buddy.compiler.frontend import DynamoCompiler, TorchCompileBackend
from buddy.compiler.ops import tosa


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(16, 32)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def make_buddy_backend(compile_backward):
    compiler = DynamoCompiler(
        primary_registry=tosa.ops_registry,
        aot_autograd_decomposition=inductor_decomp,
        compile_backward=compile_backward,
    )
    return TorchCompileBackend(compiler)


def train(backend):
    torch.manual_seed(42)
    torch._dynamo.reset()
    model = MLP()
    run = torch.compile(model, backend=backend, dynamic=False) if backend else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(4):
        torch.manual_seed(epoch)
        x, labels = torch.randn(8, 16), torch.randint(0, 4, (8,))
        optimizer.zero_grad()
        loss = criterion(run(x), labels)
        loss.backward()
        optimizer.step()
    return loss.item()


baseline = train(None)
for compile_backward in (False, True):
    print(f"same loss: {abs(train(make_buddy_backend(compile_backward)) - baseline) < 1e-5}")

# CHECK: same loss: True
# CHECK-NEXT: same loss: True
