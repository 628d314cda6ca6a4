"""Decomposes ops on quantised numbers (`fake_quantize_*`, `quantized_decomposed`, products) to integers and floats."""

from collections.abc import Callable
from typing import Any

from buddy.compiler.frontend.quantisation import decompositions

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = (
    decompositions.ATEN_DECOMPOSITIONS | decompositions.QUANTIZED_DECOMPOSITIONS
)

OF_CONSTANT_WEIGHTS = decompositions.OF_CONSTANT_WEIGHTS

__all__ = ["DECOMPOSITIONS", "OF_CONSTANT_WEIGHTS"]
