"""Measures the difference of two single-precision tensors in one pass over both; torch needs one for each statistic.

The loop is LLVM IR, so that each element is read once for all statistics; it is compiled on first use.
"""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from buddy.compiler.runtime.linker import Library

# Elements per vector; LLVM splits it into as many registers as the machine needs.
_LANES = 16
# For fewer elements, torch's ops are fast enough.
_MIN_ELEMENTS = 4096
_FUNCTION = "buddy_error_statistics"
_IR = f"""
declare <{_LANES} x float> @llvm.fabs.v{_LANES}f32(<{_LANES} x float>)
declare <{_LANES} x float> @llvm.maxnum.v{_LANES}f32(<{_LANES} x float>, <{_LANES} x float>)

define void @{_FUNCTION}(ptr %compiled, ptr %reference, i64 %vectors, ptr %result) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %largest = phi <{_LANES} x float> [ zeroinitializer, %entry ], [ %larger, %loop ]
  %squared_difference = phi <{_LANES} x float> [ zeroinitializer, %entry ], [ %next_squared_difference, %loop ]
  %squared_reference = phi <{_LANES} x float> [ zeroinitializer, %entry ], [ %next_squared_reference, %loop ]
  %a.address = getelementptr <{_LANES} x float>, ptr %compiled, i64 %i
  %b.address = getelementptr <{_LANES} x float>, ptr %reference, i64 %i
  %a = load <{_LANES} x float>, ptr %a.address, align 4
  %b = load <{_LANES} x float>, ptr %b.address, align 4
  %d = fsub <{_LANES} x float> %a, %b
  %m = call <{_LANES} x float> @llvm.fabs.v{_LANES}f32(<{_LANES} x float> %d)
  %larger = call <{_LANES} x float> @llvm.maxnum.v{_LANES}f32(<{_LANES} x float> %largest, <{_LANES} x float> %m)
  %squared_d = fmul contract <{_LANES} x float> %d, %d
  %next_squared_difference = fadd contract <{_LANES} x float> %squared_difference, %squared_d
  %squared_b = fmul contract <{_LANES} x float> %b, %b
  %next_squared_reference = fadd contract <{_LANES} x float> %squared_reference, %squared_b
  %next = add i64 %i, 1
  %has_next = icmp ult i64 %next, %vectors
  br i1 %has_next, label %loop, label %exit
exit:
  %second = getelementptr <{_LANES} x float>, ptr %result, i64 1
  %third = getelementptr <{_LANES} x float>, ptr %result, i64 2
  store <{_LANES} x float> %larger, ptr %result, align 4
  store <{_LANES} x float> %next_squared_difference, ptr %second, align 4
  store <{_LANES} x float> %next_squared_reference, ptr %third, align 4
  ret void
}}
"""


class ErrorStatistics(NamedTuple):
    """The maximum absolute difference, and the sums of squares of the differences and of the reference.

    If an element is infinite or NaN, or a square overflows single precision, one of the sums is not finite.
    """

    largest: float
    squared_difference: float
    squared_reference: float


def can_compare_in_one_pass(compiled: torch.Tensor, reference: torch.Tensor) -> bool:
    """True if both have single precision and the same shape, `compiled` is dense, and it has `_MIN_ELEMENTS`."""
    return (
        compiled.dtype is reference.dtype is torch.float32
        and compiled.shape == reference.shape
        and compiled.is_contiguous()
        and compiled.numel() >= _MIN_ELEMENTS
    )


def compare_in_one_pass(compiled: torch.Tensor, reference: torch.Tensor) -> ErrorStatistics:
    """Compares two dense tensors for which `can_compare_in_one_pass` is true; each sum has `_LANES` partial sums."""
    n_vectors, remainder = divmod(compiled.numel(), _LANES)
    lanes = torch.empty(3, _LANES)  # the maxima, and the partial sums of both kinds of squares
    _compiled_loop()(compiled.data_ptr(), reference.data_ptr(), n_vectors, lanes.data_ptr())
    largest = float(lanes[0].max())
    squared_difference, squared_reference = (math.fsum(partial_sums) for partial_sums in lanes[1:].tolist())
    statistics = ErrorStatistics(largest, squared_difference, squared_reference)
    if not remainder:
        return statistics
    return _add_elements(statistics, compiled.view(-1)[-remainder:], reference.view(-1)[-remainder:])


def _add_elements(statistics: ErrorStatistics, compiled: torch.Tensor, reference: torch.Tensor) -> ErrorStatistics:
    """Returns the statistics with the elements of two more tensors."""
    difference = compiled - reference
    return ErrorStatistics(
        max(statistics.largest, float(difference.abs().max())),
        statistics.squared_difference + float(difference.square().sum()),
        statistics.squared_reference + float(reference.square().sum()),
    )


@lru_cache(maxsize=1)
def _compiled_loop() -> Any:
    """Returns the compiled function of `_IR`, with the same arguments."""
    library = Library((), {}, support=_IR, exported=(_FUNCTION,))
    function_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    loop = function_type(library.addresses[_FUNCTION])
    loop.library = library  # type: ignore[attr-defined]  # keeps the code alive as long as the function
    return loop
