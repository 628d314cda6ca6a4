"""Ops on quantised numbers as ops on integers and floats: `fake_quantize_*`, `quantized_decomposed`, products."""

from collections.abc import Callable
from typing import Any

from buddy.compiler.frontend.quantization import aten_ops, decomposed

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = aten_ops.DECOMPOSITIONS | decomposed.DECOMPOSITIONS

__all__ = ["DECOMPOSITIONS"]
