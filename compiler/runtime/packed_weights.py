"""Packed copies of weights: shares them between programs, and releases the memory of the weights that are packed.

A released `nn.Parameter` gets other memory of the same size, which reads as NaN and needs no physical memory: one small
file in memory is mapped to all of its pages. Eager code that reads this memory computes NaN, and does not crash. Pages
that are written become normal memory, so new weights can be loaded into the parameter.

A packed weight can be unpacked, because packing only moves elements and adds zeros: packing the positions of the
elements shows where each element is. A released weight is therefore restored when a program packs it in another way or
reads it in place; a restored weight is not released again.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from buddy.compiler.runtime.compare import can_detect_moved_elements

# ---- copies that programs share --------------------------------------------------------------------------------------


# The state of a weight when it was packed, and the shape and element type of its packed copy.
_CopyKey = tuple[object, ...]


class SharedWeights:
    """The packed copies of weights, from `pairs` of a weight and its copy; both must live as long as this object.

    A weight with several copies of the same shape and type is ambiguous, and omitted.
    """

    def __init__(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._copies: dict[_CopyKey, torch.Tensor | None] = {}
        for source, copy in pairs:
            key = _copy_key(source, copy.shape, copy.dtype)
            self._copies[key] = None if key in self._copies else copy

    def of(self, source: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
        """Returns the copy of `source` with this shape and element type, packed in any way; `None` without one."""
        return self._copies.get(_copy_key(source, shape, dtype))


class SharedArgument:
    """Copies that one argument may take from `shared_weights` instead of packing, if they are packed in the same way.

    The check packs the first weight whose elements are distinguishable, and compares the result with the shared copy.
    One weight is enough, because packing moves elements and pads with zeros, independent of their values.
    """

    def __init__(self, shared_weights: SharedWeights) -> None:
        self._shared_weights = shared_weights
        self._packs_equally: bool | None = None

    def of(
        self, source: torch.Tensor, shape: torch.Size, dtype: torch.dtype, pack: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """Returns `source` packed: the shared copy if it is packed in the same way, else the result of `pack`."""
        shared_copy = None if self._packs_equally is False else self._shared_weights.of(source, shape, dtype)
        if shared_copy is None:
            return pack()
        if self._packs_equally is None:
            packed = pack()
            if not torch.equal(packed, shared_copy):
                self._packs_equally = False
                return packed
            if can_detect_moved_elements(source):
                self._packs_equally = True
        return shared_copy


def weight_state(source: torch.Tensor) -> tuple[object, ...]:
    """Returns a key for the memory and the layout of a tensor: equal keys mean equal elements.

    This holds only while the memory is kept alive and not written. Writes that PyTorch counts change the key; many
    writes are not counted.
    """
    lazy = source.is_neg(), source.is_conj()
    version = -1 if source.is_inference() else source._version
    return source.data_ptr(), version, source.shape, source.stride(), source.dtype, lazy


def _copy_key(source: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> _CopyKey:
    return *weight_state(source), shape, dtype


# ---- weights in packed form only -------------------------------------------------------------------------------------


CAN_RELEASE = sys.platform == "linux"
# The minimum size of a weight in bytes: mapping memory for a smaller one would gain nothing.
MIN_RELEASED_BYTES = 1 << 20
# The size of the file that is mapped repeatedly, in bytes: a process may have only 65,530 mappings.
_FILE_BYTES = 16 << 20
# The number of elements that are compared at a time: a comparison makes a mask of as many bytes.
_CHUNK_ELEMENTS = 1 << 20
_MAP_FIXED, _PROT_NONE = 0x10, 0
# Integer types by the number of bytes of an element.
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

Pack = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class _Release:
    """A released parameter, its packed copy, and the function that packs a tensor of its form."""

    weight: weakref.ref[torch.Tensor]
    packed: torch.Tensor
    pack: Pack


# The released and the restored weights, by the address of the memory that read as NaN, until this memory is unmapped.
_released: dict[int, _Release] = {}
_restored: set[int] = set()
# The descriptor of the file in memory; -1 before the first release.
_file = -1
_actions_before_release: list[Callable[[], None]] = []
_has_released = False


def has_released() -> bool:
    """Returns whether any weight has been released in this process, so that weights may read as NaN until restored."""
    return _has_released


def before_first_release(action: Callable[[], None]) -> None:
    """Calls `action` before the first weight is released; never if one has been released already."""
    _actions_before_release.append(action)


def is_released(weight: torch.Tensor) -> bool:
    """Returns whether the elements of `weight` are only in packed form."""
    return bool(_released) and weight.data_ptr() in _released


def release(weight: torch.Tensor, packed: torch.Tensor, pack: Pack) -> bool:
    """Replaces the memory of a parameter by memory that reads as NaN; returns whether the memory was replaced.

    `packed` is `pack(weight)`. Does nothing for a tensor that is not a parameter, is small, has been restored before,
    or whose elements cannot be recovered from `packed`.
    """
    if not isinstance(weight, torch.nn.Parameter) or weight.nbytes < MIN_RELEASED_BYTES:
        return False
    if weight.data_ptr() in _restored or weight.dtype != packed.dtype or weight.itemsize not in _BITS:
        return False
    if weight.untyped_storage().nbytes() != weight.nbytes or _sum_of_bits(weight) != _sum_of_bits(packed):
        return False
    global _has_released
    empty = _memory_of_nan(weight)
    if not _has_released:
        _has_released = True
        for action in _actions_before_release:
            action()
    _released[empty.data_ptr()] = _Release(weakref.ref(weight), packed, pack)
    weight.data = empty
    return_free_memory()
    return True


def restore(weight: torch.Tensor) -> None:
    """Writes the elements of a released weight to its memory again; does nothing for other tensors."""
    released = _released.pop(weight.data_ptr(), None) if _released else None
    if released is None:
        return
    _restored.add(weight.data_ptr())
    if _is_untouched(weight):  # other weights have been written, and have new elements
        bits = _in_memory_order(weight).view(_BITS[weight.itemsize])
        positions, packed = _positions_of_packed(weight, released.pack), released.packed.reshape(-1).view(bits.dtype)
        is_element = positions > 0
        bits[positions[is_element] - 1] = packed[is_element]


def restore_among(tensors: Iterable[object]) -> None:
    """Restores all released weights among `tensors`."""
    for value in tensors if _released else ():
        if isinstance(value, torch.Tensor):
            restore(value)


def restore_all() -> None:
    """Restores all released weights of this process."""
    for released in list(_released.values()):
        weight = released.weight()
        if weight is not None:
            restore(weight)


def holds_new_elements(weight: torch.Tensor) -> bool:
    """Returns whether a released weight has been written.

    If so, its packed copy is out of date, and the weight counts as restored.
    """
    if not is_released(weight) or _is_untouched(weight):
        return False
    del _released[weight.data_ptr()]
    _restored.add(weight.data_ptr())
    return True


def return_free_memory() -> None:
    """Returns the memory that the C library has freed to the operating system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _positions_of_packed(weight: torch.Tensor, pack: Pack) -> torch.Tensor:
    """Returns the position in memory order in `weight`, from 1, of each packed element; 0 for padding."""
    count, total = weight.numel(), 0
    # Positions are packed as the bits of elements, in parts if they do not fit into an element. Of 16 bits, one is the
    # sign, which would spoil the sum of parts.
    bits_per_part = 8 * weight.itemsize if weight.itemsize > 2 else 15
    for shift in range(0, max(1, count.bit_length()), bits_per_part):
        part = torch.arange(1, count + 1) >> shift
        part = (part & ((1 << min(bits_per_part, 63)) - 1)).to(_BITS[weight.itemsize])
        positions = torch.empty_strided(weight.shape, weight.stride(), dtype=weight.dtype)
        _in_memory_order(positions).copy_(part.view(weight.dtype))
        total = total + (pack(positions).reshape(-1).view(part.dtype).long() << shift)
    assert isinstance(total, torch.Tensor)
    return total


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of the elements of a dense tensor as a vector, in the order of their addresses."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _sum_of_bits(tensor: torch.Tensor) -> int:
    """Returns the sum of the elements' bits as integers: packing, which reorders and adds zeros, does not change it."""
    bits = _in_memory_order(tensor).view(_BITS[tensor.itemsize]).numpy()
    return int(np.add.reduce(bits, dtype=np.int64))


def _is_untouched(weight: torch.Tensor) -> bool:
    """Returns whether all elements of a released weight still have the bits of `_memory_of_nan`."""
    flat = _in_memory_order(weight).view(_BITS[weight.itemsize]).numpy()
    return all(bool((flat[i : i + _CHUNK_ELEMENTS] == -1).all()) for i in range(0, flat.size, _CHUNK_ELEMENTS))


def _memory_of_nan(like: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with the form of `like` whose bits are all one, in memory that is allocated when written."""
    size = -(-like.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    address = _map_memory(0, size, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    for start in range(0, size, _FILE_BYTES):
        part = min(_FILE_BYTES, size - start)
        _map_memory(
            address + start, part, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED, _file_of_ones()
        )
    memory = (ctypes.c_byte * like.nbytes).from_address(address)
    weakref.finalize(memory, _unmap_memory, address, size).atexit = False
    flat = torch.frombuffer(memory, dtype=like.dtype, count=math.prod(like.shape))
    return flat.as_strided(like.shape, like.stride())


def _map_memory(address: int, size: int, protection: int, flags: int, file: int) -> int:
    """Calls `mmap` of the C library, and returns the address of the memory. Raises `MemoryError` if it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    mapped = libc.mmap(address, size, protection, flags, file, 0)
    if mapped in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"{size} bytes for a released weight: {os.strerror(ctypes.get_errno())}")
    return int(mapped)


def _unmap_memory(address: int, size: int) -> None:
    """Unmaps the memory that a released weight had, and forgets the weight."""
    _released.pop(address, None)
    _restored.discard(address)
    ctypes.CDLL(None).munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))


def _file_of_ones() -> int:
    """Returns the descriptor of the file in memory, whose bits are all one."""
    global _file
    if _file < 0:
        _file = os.memfd_create("buddy-released-weights", os.MFD_CLOEXEC)
        for _ in range(_FILE_BYTES >> 20):
            os.write(_file, b"\xff" * (1 << 20))
    return _file
