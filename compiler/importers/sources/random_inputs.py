"""Random tensors for programs that come without inputs."""

from __future__ import annotations

import torch

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.importers.sources.program import source_error
from buddy.compiler.protocol.shape_words import ShapeWord
from buddy.compiler.runtime.torch_values import to_torch

SEED = 0
# Integers are below this, because they may be positions in a tensor.
_NUMBERS = 4


def new_generator() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)


def random_tensor(shape: tuple[int, ...], dtype: TensorDType, generator: torch.Generator) -> torch.Tensor:
    """Normally distributed floats, small integers, random booleans; dense."""
    wanted = to_torch(dtype)
    if wanted.is_floating_point or wanted.is_complex:
        drawn = wanted if wanted.is_complex or wanted is torch.float64 else torch.float32
        return torch.randn(shape, generator=generator, dtype=drawn).to(wanted)
    bound = 2 if wanted is torch.bool else _NUMBERS
    return torch.randint(bound, shape, generator=generator).to(wanted)


def dtype_of(word: ShapeWord) -> TensorDType:
    """The dtype in a shape word, f32 by default. Raises `SourceError`."""
    known = {dtype.value: dtype for dtype in TensorDType}
    if word.dtype and word.dtype not in known:
        names = ", ".join(name for name in known if "<" not in name)
        raise source_error(f"unknown element type {word.dtype}", "the shapes to open with", f"there are {names}")
    return known[word.dtype or "f32"]
