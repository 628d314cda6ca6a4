"""A custom op: `torch.library.custom_op` tells PyTorch what it does, a lowering here how it is compiled.

What a script registers holds for that script: `python samples/custom_op.py` compiles the op, and so does the workbench.
Ops that several programs use belong into a plug-in; docs/how-to/adding-an-operator.md has one.
"""

from __future__ import annotations

from typing import Any

import torch

from buddy.compiler.graph.operation import ElementwiseOp
from buddy.compiler.ops import linalg, scalar
from buddy.compiler.ops.elementwise import lower_expression
from buddy.compiler.ops.scalar import Scalar


@torch.library.custom_op("samples::leaky_square", mutates_args=())
def leaky_square(x: torch.Tensor, slope: float) -> torch.Tensor:
    """Squares above zero, a straight line below."""
    return torch.where(x > 0, x * x, x * slope)


@leaky_square.register_fake
def _(x: torch.Tensor, slope: float) -> torch.Tensor:
    return torch.empty_like(x)


class LeakySquareOp(ElementwiseOp):
    targets = ("samples.leaky_square.default",)


@linalg.ops_registry.lowering("LeakySquareOp")
def lower_leaky_square(node: Any, symbol_table: Any) -> Any:
    def body(x: Scalar, slope: float) -> Scalar:
        return scalar.select(x > 0, x * x, x * slope)

    return lower_expression(node, symbol_table, body)


def f(x: torch.Tensor) -> torch.Tensor:
    return leaky_square(x + 1, 0.1) * 2


compiled = torch.compile(f, backend="buddy")

torch.manual_seed(0)
x = torch.randn(4, 5)
print("largest difference from eager:", float((compiled(x) - f(x)).abs().max()))
