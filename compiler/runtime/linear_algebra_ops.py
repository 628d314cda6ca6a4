"""Custom torch ops of linear algebra: singular values whose gradient does not depend on the signs of the vectors.

PyTorch's `svdvals` saves the singular vectors for its gradient, whose signs LAPACK decides; no other code gets those of
LAPACK. The gradient itself has each left vector times its right one, in which the signs cancel.
"""

from __future__ import annotations

from typing import Any

import torch

_library = torch.library.Library("buddy", "FRAGMENT")
# Of matrices [*batch, rows, columns], in descending order: [*batch, min(rows, columns)].
_library.define("singular_values(Tensor a) -> Tensor")
# The gradient of `a`, from that of its singular values.
_library.define("singular_values_gradient(Tensor a, Tensor gradient) -> Tensor")


def _singular_values(a: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svdvals(a)


def _shape_of_values(a: torch.Tensor) -> torch.Tensor:
    return a.new_empty([*a.shape[:-2], min(a.shape[-2:])], dtype=a.real.dtype if a.is_complex() else a.dtype)


def _singular_values_gradient(a: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    left, _, right = torch.linalg.svd(a, full_matrices=False)
    return (left * gradient.unsqueeze(-2)) @ right


def _shape_of_gradient(a: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return a.new_empty(a.shape)


def _save(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(context: Any, gradient: torch.Tensor) -> torch.Tensor:
    (a,) = context.saved_tensors
    return torch.ops.buddy.singular_values_gradient(a, gradient)


for _name, _function, _shape in (
    ("singular_values", _singular_values, _shape_of_values),
    ("singular_values_gradient", _singular_values_gradient, _shape_of_gradient),
):
    _library.impl(_name, _function, "CPU")
    torch.library.register_fake(f"buddy::{_name}", _shape, lib=_library)
torch.library.register_autograd("buddy::singular_values", _differentiate, setup_context=_save, lib=_library)
