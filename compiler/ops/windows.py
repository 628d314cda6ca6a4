"""Windows that slide over the last dims, as convolutions and pools have them."""

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
class Sliding:
    """A window over the last dims: its size, and per dim stride, padding on both sides, and dilation."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def dims(self, first_outer: int, first_inner: int) -> list[st.Dim]:
        """What the window reads when its outer and its inner loops start at these dims."""
        pairs = zip(self.stride, self.dilation, strict=True)
        return [st.Window(first_outer + i, step, first_inner + i, gap) for i, (step, gap) in enumerate(pairs)]

    def with_unit_dim(self) -> Sliding:
        """The same window on an input with a dim of size 1 in front of its others."""
        return Sliding((1, *self.size), (1, *self.stride), (0, *self.padding), (1, *self.dilation))

    def without_padding(self) -> Sliding:
        return dataclasses.replace(self, padding=(0,) * len(self.size))

    def reach(self, outputs: Sequence[int]) -> list[int]:
        """The padded input sizes that windows at `outputs` positions touch."""
        return [
            (n - 1) * step + (k - 1) * gap + 1
            for n, step, k, gap in zip(outputs, self.stride, self.size, self.dilation, strict=True)
        ]


def padded(value: Any, window: Sliding, outputs: Sequence[int], fill: float, dtype: TensorDType) -> Any:
    """`value` with its last dims padded by `fill`, as far as the windows reach."""
    shape, spatial = st.shape_of(value), len(window.size)
    lead, sizes = list(shape[:-spatial]), shape[-spatial:]
    needed = [largest(r, p + n) for r, p, n in zip(window.reach(outputs), window.padding, sizes, strict=True)]
    offsets = [0] * len(lead) + list(window.padding)
    return placed(value, offsets, [1] * len(shape), [*lead, *needed], fill, dtype)


def spread(values: Sequence[int] | int | None, count: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """One number per spatial dim, from a number, a list of one, or a full list."""
    if values is None:
        return tuple(default)
    listed = [values] if isinstance(values, int) else list(values)
    if not listed:
        return tuple(default)
    return tuple(listed) * count if len(listed) == 1 else tuple(listed)


def pool_window(node: Op, first: int = 1) -> Sliding:
    """Kernel size, stride (the kernel's size by default) and padding, which a pool has as arguments from `first` on."""
    count = spatial_dims(node)
    size = spread(node.args[first], count)
    stride = spread(argument(node, first + 1, "stride"), count, size)
    padding = spread(argument(node, first + 2, "padding"), count, (0,) * count)
    dilation = argument(node, first + 3, "dilation") if node.target.startswith("max") else None
    return Sliding(size, stride, padding, spread(dilation, count, (1,) * count))


def spatial_dims(node: Op) -> int:
    """How many dims the windows of a node slide over: the number in its target's name, `2` in `avg_pool2d`."""
    return int(node.target[node.target.index("d", _first_digit(node.target)) - 1])


def _first_digit(text: str) -> int:
    return next(i for i, letter in enumerate(text) if letter.isdigit())
