"""The gradient of a depthwise kernel: sums of taps in registers, read in place along channels or along lines."""

from __future__ import annotations

from dataclasses import dataclass
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
    """The sums `C[c, kh, kw] += A[n, c, kh * dilation + y * stride, ...] * B[n, c, y, x]`; channels are last if so."""

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

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Of the image, the gradient and the taps, with channels first."""
        image = [
            (taps - 1) * self.dilation + (size - 1) * self.stride + 1
            for taps, size in zip(self.taps, (self.rows, self.columns), strict=True)
        ]
        leading = (self.batch, self.channels)
        return (*leading, *image), (*leading, self.rows, self.columns), (self.channels, *self.taps)

    def stored(self, values: Array) -> Array:
        """An array with channels first, in the layout of the function."""
        moved = np.moveaxis(values, values.ndim - 3, -1) if self.channels_last else values
        return np.ascontiguousarray(moved)

    def text(self, name: str) -> str:
        y, x = (f"d{1 + i} * {self.dilation} + d{4 + i} * {self.stride}" for i in range(2))
        indices = (["d3", "d0", y, x], ["d3", "d0", "d4", "d5"], ["d0", "d1", "d2"])
        if self.channels_last:
            indices = ["d3", y, x, "d0"], ["d3", "d4", "d5", "d0"], ["d1", "d2", "d0"]
        maps = ", ".join(f"affine_map<(d0, d1, d2, d3, d4, d5) -> ({', '.join(each)})>" for each in indices)
        types = [
            f"memref<{'x'.join(map(str, self.stored(np.empty(shape)).shape))}x{kind}>"
            for shape, kind in zip(self.shapes, (self.factor, self.factor, self.element), strict=True)
        ]
        is_narrow = self.factor != self.element
        casts = [f"%{v}w = arith.extf %{v} : {self.factor} to {self.element}" for v in "xy"] if is_narrow else []
        x_name, y_name = ("%xw", "%yw") if is_narrow else ("%x", "%y")
        kinds = ", ".join(['"parallel"'] * 3 + ['"reduction"'] * 3)
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
        for i in range(self.taps[0]):
            for j in range(self.taps[1]):
                top, left = i * self.dilation, j * self.dilation
                seen = image[:, :, top:, left:][:, :, :: self.stride, :: self.stride][:, :, : self.rows, : self.columns]
                found[:, i, j] = (seen.astype(np.float64) * gradient).sum((0, 2, 3))
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


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_numbers(channels_last: bool, target: str) -> None:
    cases = [Taps(**{**case.__dict__, "channels_last": channels_last}) for case in CASES]
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
