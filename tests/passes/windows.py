"""Convolutions on channels-last buffers as MLIR functions, with operands and what PyTorch makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.support.mlir_text import memref

Array = np.ndarray[Any, Any]

_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
# The arrays in which elements are passed: NumPy has no bfloat16.
STORED = {
    "f16": np.float16, "bf16": np.int16, "f32": np.float32, "f64": np.float64, "i8": np.int8, "i16": np.int16,
    "i32": np.int32,
}  # fmt: skip


@dataclass(frozen=True)
class Window:
    """A convolution: square windows of `kernel` over an image of `height` x `width`, the same padding on all sides.

    Image and weights have elements of type `factor`, or else of the result's type `element`. `unsigned` says for both
    whether bytes are unsigned.
    """

    height: int
    width: int
    channels: int
    out: int
    kernel: int = 3
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    batch: int = 1
    element: str = "f32"
    factor: str = ""
    unsigned: tuple[bool, bool] = (False, False)

    def _outputs(self, size: int) -> int:
        return (size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    @property
    def outputs(self) -> tuple[int, int]:
        return self._outputs(self.height), self._outputs(self.width)

    @property
    def flops(self) -> int:
        rows, columns = self.outputs
        return 2 * self.batch * rows * columns * self.out * (self.channels // self.groups) * self.kernel**2

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The padded image, the weights and the result, with a dim of their own for groups where there are some."""
        k, g = self.kernel, self.groups
        split = [[g, self.channels // g], [g, self.out // g]] if g > 1 else [[self.channels], [self.out]]
        padded = [size + 2 * self.padding for size in (self.height, self.width)]
        weights = [*split[1], self.channels // g, k, k]
        return (self.batch, *padded, *split[0]), tuple(weights), (self.batch, *self.outputs, *split[1])

    def function(self, name: str, *, zero: bool = True, parameter: bool = True) -> str:
        """A function (A, B, C); with `zero` it overwrites C, else it adds to it."""
        factor = self.factor or self.element
        types = zip(self.shapes, (factor, factor, self.element), strict=True)
        a, b, c = (memref(*shape, element=element) for shape, element in types)
        kind = "f" if self.is_float else "i"
        casts = ["arith.extf"] * 2 if self.is_float else ["arith.extui" if u else "arith.extsi" for u in self.unsigned]
        is_narrow = factor != self.element
        widened = [f"%{v}w = {op} %{v} : {factor} to {self.element}" for v, op in zip("xy", casts, strict=True)]
        x, y = ("%xw", "%yw") if is_narrow else ("%x", "%y")
        group = "g," if self.groups > 1 else ""
        loops = f"n,h,w,{group}o,c,x,y"
        reads = ",".join(f"{i} * {self.stride} + {j} * {self.dilation}" for i, j in (("h", "x"), ("w", "y")))
        dims = (f"n,{reads},{group}c", f"{group}o,c,x,y", f"n,h,w,{group}o")
        maps = ",".join(f"affine_map<({loops})->({d})>" for d in dims)
        kinds = ",".join(['"parallel"'] * (5 if group else 4) + ['"reduction"'] * 3)
        mark = " {buddy.parameter, buddy.source = 1 : i64}" if parameter else ""
        fill = f"linalg.fill ins(%z : {self.element}) outs(%c : {c})" if zero else ""
        return f"""
    func.func @{name}(%a: {a}, %b: {b}{mark}, %c: {c}) attributes {{llvm.emit_c_interface}} {{
      %z = arith.constant {"0.0" if self.is_float else "0"} : {self.element}
      {fill}
      linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}} ins(%a, %b : {a}, {b}) outs(%c : {c}) {{
        ^bb0(%x: {factor}, %y: {factor}, %t: {self.element}):
          {" ".join(widened) if is_narrow else ""}
          %m = arith.mul{kind} {x}, {y} : {self.element}
          %s = arith.add{kind} %t, %m : {self.element}
          linalg.yield %s : {self.element}
      }}
      return
    }}"""

    @property
    def is_float(self) -> bool:
        return self.element.startswith("f")

    def operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        """An image [batch, channels, height, width], and weights as PyTorch has them.

        Weights that are floats are scaled for sums around one; bytes are of the whole range.
        """
        generator = torch.Generator().manual_seed(0)
        inner = self.channels // self.groups
        if not self.is_float:
            shapes = (self.batch, self.channels, self.height, self.width), (self.out, inner, self.kernel, self.kernel)
            ranges = [(0, 256, torch.uint8) if flag else (-128, 128, torch.int8) for flag in self.unsigned]
            image, weights = (
                torch.randint(low, high, shape, generator=generator, dtype=dtype)
                for shape, (low, high, dtype) in zip(shapes, ranges, strict=True)
            )
            return image, weights
        dtype = _DTYPES[self.factor or self.element]
        image = torch.randn(self.batch, self.channels, self.height, self.width, generator=generator, dtype=dtype)
        weights = torch.randn(self.out, inner, self.kernel, self.kernel, generator=generator, dtype=dtype)
        return image, weights / max(1, inner * self.kernel**2) ** 0.5

    def arrays(self, image: torch.Tensor, weights: torch.Tensor) -> tuple[Array, Array, Array]:
        """The function's arguments: the padded image with channels last, the weights, and a result full of NaN or 7."""
        a, b, c = self.shapes
        padded = torch.nn.functional.pad(image.permute(0, 2, 3, 1), (0, 0, *[self.padding] * 4)).contiguous()
        result = np.full(c, np.nan if self.is_float else 7, STORED[self.element])
        return _stored(padded).reshape(a), _stored(weights).reshape(b), result

    def eager(self, image: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """PyTorch's result."""
        return torch.nn.functional.conv2d(
            image, weights, None, self.stride, self.padding, self.dilation, self.groups
        )  # fmt: skip

    def expected(self, image: torch.Tensor, weights: torch.Tensor) -> Array:
        """The result in double precision, in the shape of C."""
        exact = self.eager(image.double(), weights.double())
        return exact.permute(0, 2, 3, 1).numpy().reshape(self.shapes[2])


def _stored(tensor: torch.Tensor) -> Array:
    stored: Array = (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return stored
