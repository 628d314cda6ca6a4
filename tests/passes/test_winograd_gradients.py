"""Gradients of 3x3 kernels by Winograd's algorithm: numbers, infinities and extremes, and where it is chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from buddy.compiler.passes.convolutions_to_kernels import ConvolutionsToKernels
from buddy.compiler.passes.kernels.conv.winograd.transforms import transforms
from tests.support.mlir_jit import TARGETS, Compiled
from tests.support.mlir_text import memref

Array = np.ndarray[Any, Any]
EPSILON = {"f32": 2.0**-23, "f64": 2.0**-52}
STORED = {"f32": np.float32, "f64": np.float64}


@dataclass(frozen=True)
class Gradient:
    """The sums `C[c, v, w, o] += A[n, c, y * stride + v, x * stride + w] * B[n, o, y, x]` over 3x3 taps.

    `last` says for A and B whether channels are last. C is [o, c, v, w] if `taps_last`.
    """

    batch: int
    channels: int
    out: int
    rows: int
    columns: int
    last: tuple[bool, bool] = (False, False)
    taps_last: bool = False
    stride: int = 1
    element: str = "f32"

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the padded image and the gradient with channels first, and of the taps as they are stored."""
        padded = [(size - 1) * self.stride + 3 for size in (self.rows, self.columns)]
        taps = (self.out, self.channels, 3, 3) if self.taps_last else (self.channels, 3, 3, self.out)
        return (self.batch, self.channels, *padded), (self.batch, self.out, self.rows, self.columns), taps

    def stored(self, image: Array, gradient: Array) -> list[Array]:
        """Both operands in the layout of the function."""
        pairs = zip((image, gradient), self.last, strict=True)
        return [np.ascontiguousarray(values.transpose(0, 2, 3, 1) if last else values) for values, last in pairs]

    def text(self, name: str) -> str:
        y, x = (f"{place} * {self.stride} + {tap}" for tap, place in ("vy", "wx"))
        a, b = ["n", "c", y, x], ["n", "o", "y", "x"]
        orders = [[0, 2, 3, 1] if last else [0, 1, 2, 3] for last in self.last]
        c = ["o", "c", "v", "w"] if self.taps_last else ["c", "v", "w", "o"]
        indices = ([a[i] for i in orders[0]], [b[i] for i in orders[1]], c)
        loops = "o, c, v, w, n, y, x" if self.taps_last else "c, v, w, o, n, y, x"
        maps = ", ".join(f"affine_map<({loops}) -> ({', '.join(each)})>" for each in indices)
        stored = [[shape[i] for i in order] for shape, order in zip(self.shapes[:2], orders, strict=True)]
        types = [memref(*shape, element=self.element) for shape in (*stored, self.shapes[2])]
        kinds = ", ".join(['"parallel"'] * 4 + ['"reduction"'] * 3)
        return f"""
func.func @{name}(%a: {types[0]}, %b: {types[1]}, %c: {types[2]}) attributes {{llvm.emit_c_interface}} {{
  linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}}
      ins(%a, %b : {types[0]}, {types[1]}) outs(%c : {types[2]}) {{
    ^bb0(%x: {self.element}, %y: {self.element}, %total: {self.element}):
      %product = arith.mulf %x, %y : {self.element}
      %sum = arith.addf %total, %product : {self.element}
      linalg.yield %sum : {self.element}
  }}
  return
}}"""

    def operands(self) -> tuple[Array, Array]:
        """An image and a gradient, scaled for sums around one."""
        draw, (image, gradient, _) = np.random.default_rng(0), self.shapes
        values = draw.standard_normal(image), draw.standard_normal(gradient) / self.depth**0.5
        return values[0].astype(STORED[self.element]), values[1].astype(STORED[self.element])

    @property
    def depth(self) -> int:
        return self.batch * self.rows * self.columns

    def expected(self, image: Array, gradient: Array) -> Array:
        """The taps in double precision."""
        found = np.zeros((self.channels, 3, 3, self.out))
        for v in range(3):
            for w in range(3):
                seen = image[..., v :: self.stride, w :: self.stride][..., : self.rows, : self.columns]
                operands = seen.astype(np.float64), gradient.astype(np.float64)
                found[:, v, w] = np.einsum("ncyx,noyx->co", *operands)
        return found.transpose(3, 0, 1, 2) if self.taps_last else found


LAYOUTS = [(False, False), (True, True), (False, True), (True, False)]
CASES = [
    Gradient(2, 5, 19, 9, 21),
    Gradient(1, 17, 33, 8, 6),
    Gradient(3, 2, 3, 7, 65),  # a line with more tiles than a vector
    Gradient(2, 40, 48, 5, 33),  # on AVX2, whole vectors of tiles and one tile of a pixel
    Gradient(2, 9, 16, 6, 8, taps_last=True),
    Gradient(1, 6, 7, 9, 5, element="f64"),
]


def compiled(cases: list[Gradient], target: str = "avx512", winograd: str = "2") -> Compiled:
    text = "\n".join(case.text(f"f{i}") for i, case in enumerate(cases))
    return Compiled(text, [ConvolutionsToKernels(winograd=winograd)], target=TARGETS[target])


def run(case: Gradient, image: Array, gradient: Array, target: str = "avx512") -> Array:
    found = np.zeros(case.shapes[2], STORED[case.element])
    compiled([case], target)("f0", *case.stored(image, gradient), found)
    return found


def allowed(case: Gradient) -> float:
    """Sums are around one, so the roundings of `depth` products add up to about the root of `depth` epsilons."""
    return float(8 * EPSILON[case.element] * case.depth**0.5)


def test_the_transforms_give_the_taps_of_two_positions() -> None:
    draw = np.random.default_rng(0)
    d, g, found = draw.normal(size=4), draw.normal(size=2), transforms(3, 2)
    of_input, of_weights, of_output = (np.array(m) for m in (found.of_input, found.of_weights, found.of_output))
    expected = [d[i : i + 2] @ g for i in range(3)]
    # Sums of some ten products around one in double precision.
    np.testing.assert_allclose(of_output @ ((of_weights @ g) * (of_input @ d)), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("last", LAYOUTS)
@pytest.mark.slow
def test_numbers(last: tuple[bool, bool], target: str) -> None:
    cases = [replace(case, last=last) for case in CASES]
    module = compiled(cases, target)
    assert "linalg.generic" not in module.text, module.remarks
    assert all("winograd 2x2 in strips" in remark for remark in module.remarks), module.remarks
    for i, case in enumerate(cases):
        image, gradient = case.operands()
        start = np.random.default_rng(1).standard_normal(case.shapes[2]).astype(STORED[case.element])
        found = start.copy()
        module(f"f{i}", *case.stored(image, gradient), found)
        expected = start + case.expected(image, gradient)
        np.testing.assert_allclose(found, expected, rtol=0, atol=allowed(case), err_msg=str(case))


@pytest.mark.parametrize("last", LAYOUTS)
def test_strips_that_do_not_divide_the_lines_and_chunks_that_do_not_divide_the_channels(
    last: tuple[bool, bool],
) -> None:
    strips, chunks = Gradient(2, 4, 5, 13, 8, last), Gradient(1, 129, 15, 4, 6, last)
    module = compiled([strips, chunks], "small cache")
    # 14 lines of tiles in strips of three, and two lines in one strip, for 65 and 64 channels.
    assert "in strips of 3 lines of tiles" in module.remarks[0], module.remarks
    assert "in strips of 2 lines of tiles" in module.remarks[1], module.remarks
    for i, case in enumerate((strips, chunks)):
        image, gradient = case.operands()
        found = np.zeros(case.shapes[2], np.float32)
        module(f"f{i}", *case.stored(image, gradient), found)
        np.testing.assert_allclose(found, case.expected(image, gradient), rtol=0, atol=allowed(case))


@pytest.mark.parametrize("last", LAYOUTS)
def test_infinity_and_nan_stay_in_their_taps(last: tuple[bool, bool]) -> None:
    case = Gradient(2, 5, 19, 9, 12, last)
    image, gradient = case.operands()
    # In the first line and the last column, which some taps do not read, and within the image.
    image[0, 1, 0, 5], image[1, 3, 4, 13], image[0, 4, 5, 5] = np.inf, -np.inf, np.nan
    with np.errstate(invalid="ignore"):
        expected = case.expected(image, gradient)
    assert np.isinf(expected).any()
    assert np.isfinite(expected[1]).any()
    np.testing.assert_allclose(run(case, image, gradient), expected, rtol=0, atol=allowed(case))
    gradient[0, 7, 2, 3] = np.inf
    with np.errstate(invalid="ignore"):
        expected = case.expected(image, gradient)
    np.testing.assert_allclose(run(case, image, gradient), expected, rtol=0, atol=allowed(case))


@pytest.mark.parametrize("last", LAYOUTS)
def test_nan_beside_the_image_is_not_read(last: tuple[bool, bool]) -> None:
    """A last tile of one line or pixel must not see what follows the operands: here the next image, full of NaN."""
    case = Gradient(1, 3, 17, 7, 5, last)
    image, gradient = case.operands()
    expected = case.expected(image, gradient)
    operands = []
    for values in case.stored(image, gradient):
        followed = np.full((2, *values.shape[1:]), np.nan, np.float32)
        followed[:1] = values
        operands.append(followed[:1])
    found = np.zeros(case.shapes[2], np.float32)
    compiled([case])("f0", *operands, found)
    np.testing.assert_allclose(found, expected, rtol=0, atol=allowed(case))


@pytest.mark.parametrize("scale", [3e38, 1e-41])
def test_extreme_numbers(scale: float) -> None:
    """Sums of neighbours overflow where the products do not; denormals lose no more than one of them at each point."""
    case = Gradient(1, 3, 17, 6, 7)
    image, gradient = case.operands()
    image = (np.sign(image) * scale).astype(np.float32)
    gradient = (gradient / 32 if scale > 1 else np.sign(gradient)).astype(np.float32)
    exact = case.expected(image, gradient)
    assert np.abs(exact).max() < np.finfo(np.float32).max
    smallest = float(np.finfo(np.float32).smallest_subnormal)
    # Eight epsilons of the largest sum, or the smallest number for each of a tile's 16 points in each of 12 tiles.
    limit = 8 * EPSILON["f32"] * float(np.abs(exact).max()) + smallest * 16 * 12
    np.testing.assert_allclose(run(case, image, gradient), exact, rtol=0, atol=limit)


def test_auto_takes_it_where_it_is_faster() -> None:
    wide = Gradient(2, 64, 64, 14, 14)
    cases = [wide, replace(wide, stride=2), Gradient(2, 1, 3, 14, 14), replace(wide, rows=3, columns=3)]
    remarks = compiled(cases, winograd="auto").remarks
    assert "winograd 2x2 in strips" in remarks[0]
    assert not any("strips" in remark for remark in remarks[1:]), remarks
    assert "strips" not in compiled([wide], winograd="never").remarks[0]
