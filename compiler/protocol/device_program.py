"""The result of a compilation for a GPU: the PTX of its kernels, and the host's actions, in order.

Imports neither torch nor MLIR.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Buffer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Device memory of `size` bytes that is neither an argument nor a result; `content` is its initial content."""

    size: int
    content: bytes = b""


class Pointer(msgspec.Struct, frozen=True, tag="pointer"):
    """The address of buffer number `buffer`: arguments first, then results, then the program's own buffers."""

    buffer: int


class KernelScalar(msgspec.Struct, frozen=True, tag="scalar"):
    """A number passed by value to a kernel."""

    kind: Literal["i1", "i8", "i16", "i32", "i64", "f32", "f64"]
    value: int | float


Word = Pointer | KernelScalar


class Launch(msgspec.Struct, frozen=True, tag="launch"):
    """Run kernel `kernel` on `grid` blocks of `block` threads (x, y, z), with `shared` bytes of shared memory per
    block.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    words: tuple[Word, ...]
    shared: int = 0


class Copy(msgspec.Struct, frozen=True, tag="copy"):
    """Copy the first `size` bytes of buffer `source` to buffer `target`."""

    source: int
    target: int
    size: int


class DeviceProgram(msgspec.Struct, frozen=True):
    """`modules` are texts of PTX, each with kernels of distinct names, for `chip` (`sm_75`) and all later chips."""

    chip: str
    modules: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Launch | Copy, ...]
