"""Single-precision arguments for functions, and errors in units in the last place (ULP)."""

from __future__ import annotations

import numpy as np


def every_float(step: int) -> np.ndarray:
    """Every `step`-th bit pattern of a finite single-precision number, of both signs."""
    positive = np.arange(0, 0x7F800000, step, dtype=np.uint32).view(np.float32)
    return np.concatenate([positive, -positive])


def errors_in_ulp(result: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distances to exact values, in units in the last place of their single-precision roundings."""
    ulp = np.spacing(np.abs(exact.astype(np.float32))).astype(np.float64)
    return np.abs(result.astype(np.float64) - exact) / ulp
