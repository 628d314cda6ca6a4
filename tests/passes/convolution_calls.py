"""Calls of compiled convolutions: their packed weights, what they should give, and convolutions with an epilogue."""

from __future__ import annotations

import re

import numpy as np

from tests.passes.windows import STORED, Array, Window
from tests.support.mlir_jit import Compiled
from tests.support.mlir_text import memref

EPSILON = {"f32": 2.0**-23, "f64": 2.0**-52}


def weights_of(compiled: Compiled, name: str, weights: Array) -> list[Array]:
    """The arguments of function `name` that stand for `weights`: packed, as they are, or both."""
    signature = re.search(rf"func.func @{name}\((.*)\)", compiled.text)
    assert signature
    found = []
    for shape, element, flags in re.findall(r"memref<([\dx]+)x(\w+)> {(.*?)}", signature.group(1)):
        pack = re.search(r'buddy.pack = "(\w+)"', flags)
        if pack is None and "buddy.parameter" not in flags:
            continue
        found.append(weights)
        if pack is not None:
            found[-1] = np.full(
                [int(size) for size in shape.split("x")], np.nan if element[0] == "f" else 99, STORED[element]
            )
            compiled(pack.group(1), weights, found[-1])
    return found


def check(module: Compiled, number: int, window: Window, *, parameter: bool = True, start: float = np.nan) -> None:
    """Function `f{number}` gives what PyTorch does, added to `start` where that is a number."""
    image, weights = window.operands()
    a, b, c = window.arrays(image, weights)
    if not np.isnan(start):
        c[...] = start
    name = f"f{number}"
    module(name, a, *(weights_of(module, name, b) if parameter else [b]), c)
    expected = window.expected(image, weights) + (0 if np.isnan(start) else start)
    np.testing.assert_allclose(c, expected, rtol=0, atol=allowed(window), err_msg=str(window))


def allowed(window: Window) -> float:
    """Sums of `depth` products are around one, so their roundings add up to about the root of `depth` epsilons; results
    up to eight times as large as that occur."""
    depth = window.channels // window.groups * window.kernel**2
    return 8 * EPSILON[window.element] * depth**0.5 if window.is_float else 0


_RELU = """%u = arith.addf %x, %y : f32
          %v = arith.maximumf %u, %z : f32"""
_REQUANTISATION = """%real = arith.sitofp %x : i32 to f32
          %u = arith.mulf %real, %y : f32
          %even = math.roundeven %u : f32
          %low = arith.maximumf %even, %least : f32
          %high = arith.minimumf %low, %most : f32
          %v = arith.fptosi %high : f32 to i8"""


def with_epilogue(window: Window) -> str:
    """`relu(convolution + shift per channel)`, inside of a buffer with a border of one pixel.

    Sums of bytes are multiplied by the numbers per channel instead, and rounded to bytes.
    """
    batch, rows, columns, *channels = window.shapes[2]
    element, body = ("f32", _RELU) if window.is_float else ("i8", _REQUANTISATION)
    result, shift = memref(batch, rows, columns, *channels, element=window.element), memref(*channels)
    inside = memref(batch, rows, columns, *channels, element=element)
    outer = memref(batch, rows + 2, columns + 2, *channels, element=element)
    strides = [1]
    for size in (*reversed(channels), columns + 2, rows + 2):
        strides.insert(0, strides[0] * size)
    inner = inside.replace(">", f", strided<{strides}, offset: {strides[1] + strides[2]}>>")
    dims = ["n", "h", "w", "g", "o"][: len(strides)]
    every, last = (f"affine_map<({','.join(dims)})->({','.join(d)})>" for d in (dims, dims[3:]))
    kinds = ",".join(['"parallel"'] * len(dims))
    rest = ", 0" * len(channels)
    epilogue = f"""
      %in = memref.subview %out[0, 1, 1{rest}] {window.shapes[2]} {[1] * len(dims)} : {outer} to {inner}
      linalg.generic {{indexing_maps = [{every}, {last}, {every}], iterator_types = [{kinds}]}}
          ins(%c, %shift : {result}, {shift}) outs(%in : {inner}) {{
        ^bb0(%x: {window.element}, %y: f32, %t: {element}):
          {body}
          linalg.yield %v : {element}
      }}
      return""".replace(f" {window.shapes[2]} ", f" {list(window.shapes[2])} ")
    text = window.function("f0").replace(f"%c: {result})", f"%shift: {shift}, %out: {outer} {{buddy.result}})")
    allocation = f"%c = memref.alloc() : {result}"
    limits = "%least = arith.constant -128.0 : f32\n      %most = arith.constant 127.0 : f32"
    text = text.replace("%z = arith", f"{allocation}\n      {limits}\n      %z = arith")
    return epilogue.join(text.rsplit("\n      return", 1))


def check_epilogue(module: Compiled, window: Window) -> None:
    """The function of `with_epilogue` gives what PyTorch does, and leaves the border alone."""
    image, weights = window.operands()
    a, b, c = window.arrays(image, weights)
    shift = np.linspace(-1, 1, window.out, dtype=np.float32).reshape(c.shape[3:])
    border = np.nan if window.is_float else 99
    dtype = np.float32 if window.is_float else np.int8
    out = np.full((c.shape[0], c.shape[1] + 2, c.shape[2] + 2, *c.shape[3:]), border, dtype)
    sums = window.expected(image, weights)
    if window.is_float:
        expected = np.maximum(sums + shift, 0)
    else:
        shift *= np.float32(1e-3)
        expected = np.clip(np.round(sums.astype(np.float32) * shift), -128, 127)
    module("f0", a, *weights_of(module, "f0", b), shift, out)
    np.testing.assert_allclose(out[:, 1:-1, 1:-1], expected, rtol=0, atol=allowed(window))
    out[:, 1:-1, 1:-1] = border
    np.testing.assert_array_equal(out, border, "the border is another's")
