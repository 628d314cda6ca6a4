"""The functions that LLVM calls to round to bfloat16 if a processor cannot (x86-64 without AVX512-BF16), as LLVM IR.

Compilers' runtime libraries have them since GCC 13, and many systems have an older one. Names, arguments and results
are those of LLVM's compiler-rt; rounding is to nearest, ties to even, and NaN is quiet.
"""

from __future__ import annotations

from collections.abc import Sequence

_ROUNDING = """
define private bfloat @buddy_rounded(i32 %bits, i1 %nan) {
  %above = lshr i32 %bits, 16
  %odd = and i32 %above, 1
  %half = add i32 %odd, 32767
  %sum = add i32 %bits, %half
  %near = lshr i32 %sum, 16
  %quiet = or i32 %above, 64
  %chosen = select i1 %nan, i32 %quiet, i32 %near
  %low = trunc i32 %chosen to i16
  %result = bitcast i16 %low to bfloat
  ret bfloat %result
}
"""
# A double is rounded through a float whose last bit says whether the result is inexact, so that it is rounded once.
_FUNCTIONS = {
    "__truncsfbf2": """
define bfloat @__truncsfbf2(float %x) {
  %bits = bitcast float %x to i32
  %nan = fcmp uno float %x, %x
  %result = call bfloat @buddy_rounded(i32 %bits, i1 %nan)
  ret bfloat %result
}
""",
    "__truncdfbf2": """
declare double @llvm.fabs.f64(double)

define bfloat @__truncdfbf2(double %x) {
  %nan = fcmp uno double %x, %x
  %float = fptrunc double %x to float
  %back = fpext float %float to double
  %inexact = fcmp one double %back, %x
  %size = call double @llvm.fabs.f64(double %x)
  %rounded = call double @llvm.fabs.f64(double %back)
  %up = fcmp ogt double %rounded, %size
  %one = zext i1 %up to i32
  %nearest = bitcast float %float to i32
  %cut = sub i32 %nearest, %one
  %last = zext i1 %inexact to i32
  %sticky = or i32 %cut, %last
  %result = call bfloat @buddy_rounded(i32 %sticky, i1 %nan)
  ret bfloat %result
}
""",
}
NAMES = tuple(_FUNCTIONS)


def support_of(objects: Sequence[bytes]) -> str:
    """Returns the LLVM IR of the functions that `objects` use, "" if they use none."""
    found = [text for name, text in _FUNCTIONS.items() if any(name.encode() in image for image in objects)]
    return _ROUNDING + "".join(found) if found else ""
