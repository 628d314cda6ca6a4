"""Sliding windows over the last dims, for convolutions and pools."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.sizes import largest
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.pads import placed
from buddy.compiler.ops.utils import argument


@dataclass(frozen=True)
class SlidingWindow:
    """A window over the last dims: its size, stride, padding on both sides, and dilation per dim."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def dims(self, first_outer: int, first_inner: int) -> list[st.Dim]:
        """Returns the dims that the window reads; `first_outer` and `first_inner` are its first loops of each kind."""
        pairs = zip(self.stride, self.dilation, strict=True)
        return [st.WindowDim(first_outer + i, step, first_inner + i, gap) for i, (step, gap) in enumerate(pairs)]

    def with_unit_dim(self) -> SlidingWindow:
        """Returns the same window for an input with a leading dim of size 1."""
        return SlidingWindow((1, *self.size), (1, *self.stride), (0, *self.padding), (1, *self.dilation))

    def without_padding(self) -> SlidingWindow:
        return dataclasses.replace(self, padding=(0,) * len(self.size))

    def reach(self, outputs: Sequence[int]) -> list[int]:
        """Returns the sizes of the padded input that `outputs` windows per dim read."""
        return [
            (n - 1) * step + (k - 1) * gap + 1
            for n, step, k, gap in zip(outputs, self.stride, self.size, self.dilation, strict=True)
        ]


def padded(value: Any, window: SlidingWindow, outputs: Sequence[int], fill: float, dtype: TensorDType) -> Any:
    """Returns `value` with its last dims padded by `fill`, as far as the windows reach."""
    shape, spatial = st.shape_of(value), len(window.size)
    lead, sizes = list(shape[:-spatial]), shape[-spatial:]
    needed = [largest(r, p + n) for r, p, n in zip(window.reach(outputs), window.padding, sizes, strict=True)]
    offsets = [0] * len(lead) + list(window.padding)
    return placed(value, offsets, [1] * len(shape), [*lead, *needed], fill, dtype)


def spread(values: Sequence[int] | int | None, count: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """Returns one number per spatial dim, given a number, a list of one or of `count`, or else `default`."""
    if values is None:
        return tuple(default)
    listed = [values] if isinstance(values, int) else list(values)
    if not listed:
        return tuple(default)
    return tuple(listed) * count if len(listed) == 1 else tuple(listed)


def pool_window(node: Op, first: int = 1) -> SlidingWindow:
    """Returns the window of a pool: kernel size, stride (default: kernel size), padding, from argument `first` on."""
    count = spatial_dims(node)
    size = spread(node.args[first], count)
    stride = spread(argument(node, first + 1, "stride"), count, size)
    padding = spread(argument(node, first + 2, "padding"), count, (0,) * count)
    dilation = argument(node, first + 3, "dilation") if node.target.startswith("max") else None
    return SlidingWindow(size, stride, padding, spread(dilation, count, (1,) * count))


def spatial_dims(node: Op) -> int:
    """Returns the number of dims that a node's windows slide over, read from its target, such as 2 of `avg_pool2d`."""
    return int(node.target[node.target.index("d", _first_digit(node.target)) - 1])


def _first_digit(text: str) -> int:
    return next(i for i, letter in enumerate(text) if letter.isdigit())
