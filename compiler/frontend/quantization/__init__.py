"""Ops on quantised numbers as ops on integers and floats: `fake_quantize_*`, `quantized_decomposed`, products."""

from collections.abc import Callable
from typing import Any

from buddy.compiler.frontend.quantization import decompositions

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = (
    decompositions.ATEN_DECOMPOSITIONS | decompositions.QUANTIZED_DECOMPOSITIONS
)

__all__ = ["DECOMPOSITIONS"]
