"""Ops on quantised numbers as ops on integers and floats: `fake_quantize_*`, `quantized_decomposed`, products."""

from collections.abc import Callable
from typing import Any

from buddy.compiler.frontend.quantization import decomposed, fake, products

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = (
    fake.DECOMPOSITIONS | decomposed.DECOMPOSITIONS | products.DECOMPOSITIONS
)

__all__ = ["DECOMPOSITIONS"]
