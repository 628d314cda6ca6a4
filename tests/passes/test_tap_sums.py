"""Gradients of kernels in groups of few channels: sums of taps in registers, read in place along channels or lines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from buddy.compiler.passes.convolutions_to_kernels import ConvolutionsToKernels
from tests.support.mlir_jit import TARGETS, Compiled

Array = np.ndarray[Any, Any]
EPSILON = {"f32": 2.0**-23, "f64": 2.0**-52}
STORED = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


@dataclass(frozen=True)
class Taps:
    """The sums `C[g, o, i, kh, kw] += A[n, g, i, kh * dilation + y * stride, ...] * B[n, g, o, y, x]`.

    Without `outputs` and `inputs` of a group, there is no loop over either. Channels are last if so.
    """

    batch: int
    channels: int
    rows: int
    columns: int
    taps: tuple[int, int]
    stride: int = 1
    dilation: int = 1
    factor: str = "f32"
    element: str = "f32"
    channels_last: bool = False
    outputs: int = 0
    inputs: int = 0

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Of the image, the gradient and the taps, with channels first."""
        image = [
            (taps - 1) * self.dilation + (size - 1) * self.stride + 1
            for taps, size in zip(self.taps, (self.rows, self.columns), strict=True)
        ]
        leading = (self.batch, self.channels)
        o, i = ((size,) if size else () for size in (self.outputs, self.inputs))
        return (*leading, *i, *image), (*leading, *o, self.rows, self.columns), (self.channels, *o, *i, *self.taps)

    def stored(self, values: Array) -> Array:
        """An array with channels first, in the layout of the function."""
        moved = np.moveaxis(values, values.ndim - 3, -1) if self.channels_last else values
        return np.ascontiguousarray(moved)

    def text(self, name: str) -> str:
        o, i = (["o"] if self.outputs else []), (["i"] if self.inputs else [])
        y, x = (f"{tap} * {self.dilation} + {place} * {self.stride}" for tap, place in ("vy", "wx"))
        indices = (["n", "g", *i, y, x], ["n", "g", *o, "y", "x"], ["g", *o, *i, "v", "w"])
        if self.channels_last:
            indices = ["n", y, x, "g"], ["n", "y", "x", "g"], ["v", "w", "g"]
        loops = ", ".join(["g", *o, *i, "v", "w", "n", "y", "x"])
        maps = ", ".join(f"affine_map<({loops}) -> ({', '.join(each)})>" for each in indices)
        types = [
            f"memref<{'x'.join(map(str, self.stored(np.empty(shape)).shape))}x{kind}>"
            for shape, kind in zip(self.shapes, (self.factor, self.factor, self.element), strict=True)
        ]
        is_narrow = self.factor != self.element
        casts = [f"%{v}w = arith.extf %{v} : {self.factor} to {self.element}" for v in "xy"] if is_narrow else []
        x_name, y_name = ("%xw", "%yw") if is_narrow else ("%x", "%y")
        kinds = ", ".join(['"parallel"'] * (3 + len(o) + len(i)) + ['"reduction"'] * 3)
        return f"""
func.func @{name}(%a: {types[0]}, %b: {types[1]}, %c: {types[2]}) attributes {{llvm.emit_c_interface}} {{
  linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}}
      ins(%a, %b : {types[0]}, {types[1]}) outs(%c : {types[2]}) {{
    ^bb0(%x: {self.factor}, %y: {self.factor}, %total: {self.element}):
      {" ".join(casts)}
      %product = arith.mulf {x_name}, {y_name} : {self.element}
      %sum = arith.addf %total, %product : {self.element}
      linalg.yield %sum : {self.element}
  }}
  return
}}"""

    def expected(self, image: Array, gradient: Array) -> Array:
        found = np.zeros(self.shapes[2])
        o, i = ("o" if self.outputs else ""), ("i" if self.inputs else "")
        for v in range(self.taps[0]):
            for w in range(self.taps[1]):
                top, left = v * self.dilation, w * self.dilation
                seen = image[..., top :: self.stride, left :: self.stride][..., : self.rows, : self.columns]
                operands = seen.astype(np.float64), gradient.astype(np.float64)
                found[..., v, w] = np.einsum(f"ng{i}yx,ng{o}yx->g{o}{i}", *operands)
        return found


CASES = [
    Taps(2, 5, 9, 21, (3, 3)),
    Taps(2, 37, 6, 7, (3, 2), dilation=2),
    Taps(1, 3, 8, 40, (5, 5), stride=2),  # on AVX2, several blocks of taps
    Taps(3, 18, 11, 5, (7, 7)),  # several blocks of taps everywhere
    Taps(2, 4, 5, 17, (2, 3), element="f64", factor="f64"),
    Taps(2, 19, 7, 18, (3, 3), stride=2, factor="f16"),
    Taps(1, 6, 9, 33, (1, 3), stride=2, dilation=3),
]


GROUPED = [
    Taps(2, 5, 9, 21, (3, 3), outputs=8, inputs=8),
    Taps(1, 3, 11, 18, (3, 2), outputs=3, inputs=5, stride=2),
    Taps(2, 4, 7, 9, (1, 5), outputs=2, inputs=1, factor="f16"),
    Taps(2, 3, 12, 7, (3, 3), outputs=1, inputs=7, element="f64", factor="f64"),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_numbers(channels_last: bool, target: str) -> None:
    cases = [replace(case, channels_last=channels_last) for case in CASES] + GROUPED * (not channels_last)
    text = "\n".join(case.text(f"f{i}") for i, case in enumerate(cases))
    module = Compiled(text, [ConvolutionsToKernels()], target=TARGETS[target])
    assert "linalg.generic" not in module.text, module.remarks
    where = "channels at once" if channels_last else "products of a channel at once"
    assert all(where in remark for remark in module.remarks), module.remarks
    draw = np.random.default_rng(0)
    for i, case in enumerate(cases):
        depth = case.batch * case.rows * case.columns
        image, gradient = (draw.standard_normal(shape) for shape in case.shapes[:2])
        gradient /= depth**0.5
        image, gradient = (values.astype(STORED[case.factor]) for values in (image, gradient))
        start = draw.standard_normal(case.shapes[2]).astype(STORED[case.element])
        found = case.stored(start).copy()
        module(f"f{i}", case.stored(image), case.stored(gradient), found)
        # Sums are around one, so the roundings of `depth` products add up to about the root of `depth` epsilons.
        expected, allowed = case.stored(start + case.expected(image, gradient)), 8 * EPSILON[case.element] * depth**0.5
        np.testing.assert_allclose(found, expected, rtol=0, atol=allowed, err_msg=str(case))


def test_a_step_of_three_along_a_line_is_left_to_other_kernels() -> None:
    module = Compiled(Taps(2, 5, 9, 21, (3, 3), stride=3).text("f0"), [ConvolutionsToKernels()])
    assert "taps in registers" not in module.remarks[0]
