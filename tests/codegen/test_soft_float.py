"""Rounding to bfloat16 by what processors without an instruction for it call."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from buddy.compiler.codegen.machines import SOFT_FLOAT_NAMES, soft_float_ir
from buddy.compiler.runtime.linker import Library

_CALLS = """
define void @each_float(ptr %from, ptr %to, i64 %count) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = getelementptr {type}, ptr %from, i64 %i
  %there = getelementptr bfloat, ptr %to, i64 %i
  %x = load {type}, ptr %at
  %rounded = call bfloat @{name}({type} %x)
  store bfloat %rounded, ptr %there
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %exit
exit:
  ret void
}}
"""


def rounded(name: str, values: torch.Tensor) -> torch.Tensor:
    """What the function `name` makes of each of `values`."""
    kind = "float" if values.dtype == torch.float32 else "double"
    ir = soft_float_ir([name.encode()]) + _CALLS.format(name=name, type=kind)
    library = Library((), {}, support=ir, exported=("each_float",))
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(library.addresses["each_float"])
    result = torch.empty(len(values), dtype=torch.bfloat16)
    function(values.data_ptr(), result.data_ptr(), len(values))
    return result


def test_floats_are_rounded_as_torch_does() -> None:
    random = np.random.default_rng(0)
    bits = random.integers(0, 1 << 32, 1 << 20, dtype=np.uint64).astype(np.uint32)
    # Every bfloat16, the middle between it and the next, and its neighbours on either side.
    every = np.arange(1 << 16, dtype=np.uint32) << 16
    near = [every + offset for offset in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    values = torch.from_numpy(np.concatenate([bits, *near]).view(np.float32))
    found, expected = rounded("__truncsfbf2", values), values.to(torch.bfloat16)
    number = ~values.isnan()
    assert torch.equal(found[number].view(torch.int16), expected[number].view(torch.int16))
    assert found[~number].isnan().all()


def test_doubles_are_rounded_once() -> None:
    """A hair more than the middle is rounded up, however small the hair is; a float in between would lose it."""
    middle = 1.0 + 2.0**-8
    values = [middle, middle + 2.0**-50, middle - 2.0**-50, -middle - 2.0**-50, middle + 2.0**-7, 1e300, -1e-300]
    expected = [1.0, 1.0 + 2.0**-7, 1.0, -1.0 - 2.0**-7, 1.0 + 2.0**-6, float("inf"), -0.0]
    found = rounded("__truncdfbf2", torch.tensor(values, dtype=torch.float64)).double()
    assert found.tolist() == pytest.approx(expected, abs=0)
    assert found[-1].signbit()
    assert rounded("__truncdfbf2", torch.tensor([float("nan")], dtype=torch.float64)).isnan().all()
    singles = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rounded("__truncdfbf2", singles.double()), singles.to(torch.bfloat16))


def test_objects_that_round_in_registers_get_nothing() -> None:
    assert soft_float_ir([b"another object"]) == ""
    assert all(f"@{name}(" in soft_float_ir([name.encode()]) for name in SOFT_FLOAT_NAMES)
