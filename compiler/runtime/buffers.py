"""Memory of compiled code: reused results, huge pages, packed weights, and conversions between tensors and memory.

The first write to a page is slow, because the operating system has to find, clear and map the page. So a call reuses
the memory of earlier results that have been released. Address translation with pages of 4 KiB takes a third of the time
of reading, so large tensors request huge pages, which Linux may grant. Packed weights are in one block, since each call
reads them sequentially.

A backward graph may write gradients to the memory of saved tensors after their last use, so that gradients and saved
tensors need not be in memory at the same time. A call may write only to saved tensors that nothing else uses. Others
are results of the program, are kept by hooks, or are needed by another backward pass.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from sys import getrefcount
from typing import Any, Protocol

import torch

from buddy.compiler.codegen.arena import ALIGNMENT
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.protocol.artifact import TensorSpec
from buddy.compiler.runtime.torch_values import to_torch_dtype
from buddy.compiler.support.target import CACHE_LINE

HUGE_PAGE_BYTES = 2 << 20  # bytes of a huge page, on x86-64 and on AArch64 with pages of 4 KiB
# In bytes; smaller tensors mostly get memory that has been written before.
_MIN_HUGE_PAGE_TENSOR = 2 * HUGE_PAGE_BYTES
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # from <sys/mman.h> of Linux, the second one since 6.1


def request_huge_pages(address: int, size: int) -> None:
    """Requests huge pages for `size` bytes of memory that has not been written yet."""
    _advise(address, size, _MADV_HUGEPAGE)


def huge_page_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns a new tensor, in huge pages if it is large: first writes to a page are slow."""
    tensor = torch.empty(shape, dtype=dtype, device="cpu")  # ignores `torch.set_default_device`
    size = tensor.nbytes
    if size >= _MIN_HUGE_PAGE_TENSOR:
        start = -(-tensor.data_ptr() // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        request_huge_pages(start, (tensor.data_ptr() + size) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES - start)
    return tensor


def move_to_huge_pages(tensor: torch.Tensor) -> None:
    """Moves the memory of a dense `tensor` to huge pages; addresses and contents do not change.

    A page that two tensors share is moved with the tensor that has the larger part of it, so that adjacent weights are
    moved completely.
    """
    start, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    first_page, end_page = (round(address / HUGE_PAGE_BYTES) for address in (start, start + size))
    for page in range(first_page, end_page):
        # Separate calls, so that a page that cannot be moved does not affect the others.
        _advise(page * HUGE_PAGE_BYTES, HUGE_PAGE_BYTES, _MADV_COLLAPSE)


def _advise(address: int, size: int, advice: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), advice)


# The C library reuses blocks of fewer bytes, which have mostly been written before (M_MMAP_THRESHOLD of glibc's
# malloc).
MIN_POOLED_BYTES = 128 << 10
# Blocks kept for each result: one that a caller still holds during the next call, and one that the next call writes.
MAX_BUFFERS = 2
# Maximum number of bytes in the pool of one program.
MAX_POOLED_BYTES = 256 << 20

# Returns the number of users of a storage's memory; `None` if this version of PyTorch has no such function.
storage_use_count = getattr(torch._C, "_storage_Use_Count", None)
# The listed object of `references_of_listed_object`.
_PROBES = [object()]


@dataclass(frozen=True)
class LentMemory:
    """Memory for a result of one call: a storage from byte `offset` on."""

    storage: torch.UntypedStorage
    offset: int


class BufferPool:
    """The memory of the results of one program, reused after a result has been released.

    A weak reference to a result's storage, such as `StorageWeakRef`, stays valid when the storage is reused.
    """

    def __init__(self, n_results: int) -> None:
        self._storages: list[list[torch.UntypedStorage]] = [[] for _ in range(n_results)]
        self._reserved_bytes = [0] * n_results
        self._freed_after_use: set[int] = set()
        self._lock = threading.Lock()
        self._lent = threading.local()

    def reserve(self, number: int, size: int) -> None:
        """Makes later tensors for result `number` have at least `size` bytes of memory."""
        with self._lock:
            self._reserved_bytes[number] = max(self._reserved_bytes[number], size)
            self._storages[number].clear()

    def free_after_use(self, number: int) -> None:
        """Makes memory of later tensors for result `number` be freed with them, instead of being kept for reuse."""
        with self._lock:
            self._freed_after_use.add(number)
            self._storages[number].clear()

    @contextmanager
    def lend(self, memory: dict[int, LentMemory]) -> Iterator[None]:
        """Makes a call in this thread inside the `with` block use `memory`: memory for results, by their numbers."""
        self._lent.memory = memory
        try:
            yield
        finally:
            self._lent.memory = None

    def tensor(self, number: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns an uninitialised dense tensor for result `number`."""
        size = math.prod(shape) * dtype.itemsize
        lent: dict[int, LentMemory] | None = getattr(self._lent, "memory", None)
        if lent and (memory := lent.pop(number, None)) is not None:
            with self._lock:
                self._storages[number].clear()  # only calls without lent memory need them, and these are rare
            return torch.empty(0, dtype=dtype, device="cpu").set_(
                memory.storage, memory.offset // dtype.itemsize, tuple(shape), row_major_strides(shape)
            )
        if size < MIN_POOLED_BYTES or storage_use_count is None:
            return huge_page_tensor(shape, dtype)
        size = max(size, self._reserved_bytes[number])
        with self._lock:
            storage = self._find_idle(self._storages[number], size)
        if storage is None:
            storage = huge_page_tensor((size,), torch.uint8).untyped_storage()
            with self._lock:
                self._retain(number, storage)
        return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, tuple(shape), row_major_strides(shape))

    def _find_idle(self, storages: list[torch.UntypedStorage], size: int) -> torch.UntypedStorage | None:
        """Returns a storage of `size` bytes that nothing outside of the pool uses or refers to; `None` without one."""
        assert storage_use_count is not None
        baseline = references_of_listed_object()
        for storage in storages:
            references = getrefcount(storage)
            if (
                references <= baseline
                and storage.nbytes() == size
                and storage_use_count(storage._cdata) == 1
                and not storage.is_shared()
            ):
                return storage
        return None

    def _retain(self, number: int, storage: torch.UntypedStorage) -> None:
        """Keeps `storage` for reuse unless the pool is full; drops the oldest one if the result has `MAX_BUFFERS`."""
        if number in self._freed_after_use:
            return
        storages = self._storages[number]
        del storages[: max(0, len(storages) - MAX_BUFFERS + 1)]
        pooled_bytes = sum(other.nbytes() for blocks in self._storages for other in blocks)
        if pooled_bytes + storage.nbytes() <= MAX_POOLED_BYTES:
            storages.append(storage)


def references_of_listed_object() -> int:
    """Returns the reference count of an object that only a sequence and a loop refer to.

    The count depends on how the interpreter calls `getrefcount`, which Dynamo changes.
    """
    baseline = 0
    for probe in _PROBES:
        baseline = getrefcount(probe)
    return baseline


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a dense tensor of this shape."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(1, extent)
    return tuple(reversed(strides))


def torch_dtype(spec: TensorSpec) -> torch.dtype:
    """Returns torch's element type of a spec."""
    return to_torch_dtype(TensorDType(spec.dtype))


def view_memory(address: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor of `shape` that views the memory at `address`; valid as long as that memory is."""
    count = math.prod(shape)
    if not count:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    memory = (ctypes.c_byte * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).reshape(tuple(shape))


class WorkArena:
    """`size` bytes of scratch memory, reused by each call. Overlapping calls get separate memory.

    The first call allocates the memory: programs are also created inside `torch.compile`, where tensors are fake.
    Native calls access `words` under the interpreter lock. Word 0 is the address of the memory, or 0 before `lend` has
    allocated it; word 1 is 1 while a call uses the memory, else 0. `borrow` yields other memory than native calls use.
    Programs whose calls mostly do not overlap, such as a forward and a backward graph, may use one arena; each reserves
    what it needs before its calls.
    """

    def __init__(self, size: int = 0) -> None:
        self._size = size
        self._is_kept = True
        self._lent: torch.Tensor | None = None
        self._borrowed: torch.Tensor | None = None
        self._outgrown: list[torch.Tensor] = []
        self._lock, self._borrowing = threading.Lock(), threading.Lock()
        self.words = (ctypes.c_int64 * 2)()

    @property
    def size(self) -> int:
        """The size of the memory of later calls, in bytes."""
        return self._size

    def reserve(self, size: int) -> None:
        """Makes the memory of later calls at least `size` bytes."""
        with self._lock:
            if size > self._size:
                self._size = size
                self._drop_lent()

    def free_after_calls(self) -> None:
        """Makes later calls allocate their memory, and free it when they end."""
        with self._lock:
            self._is_kept = False
            self._drop_lent()
            self._borrowed = None  # a call that uses the memory refers to it

    def _drop_lent(self) -> None:
        # In this order: once the address is 0, no further call can take the memory.
        self.words[0] = 0
        if self._lent is not None and self.words[1]:
            self._outgrown.append(self._lent)  # a call in another thread uses it
        self._lent = None

    def lend(self) -> tuple[torch.Tensor, int]:
        """Returns memory for one native call, and its address; the first memory is stored in `words`, as in use."""
        memory = _allocate_aligned(self._size)
        with self._lock:
            if self._is_kept and self._lent is None and len(memory) == self._size:
                self._lent = memory
                # In this order: other threads take the memory once they see its address.
                self.words[1], self.words[0] = 1, memory.data_ptr()
        return memory, memory.data_ptr()

    @contextmanager
    def borrow(self) -> Iterator[torch.Tensor]:
        """Yields the memory for one call."""
        if not self._is_kept or not self._borrowing.acquire(blocking=False):
            yield _allocate_aligned(self._size)
            return
        try:
            if self._borrowed is None or len(self._borrowed) < self._size:
                self._borrowed = None  # released before the larger memory is allocated
                self._borrowed = _allocate_aligned(self._size)
            yield self._borrowed
        finally:
            self._borrowing.release()


def _allocate_aligned(size: int) -> torch.Tensor:
    memory = huge_page_tensor((size + ALIGNMENT,), torch.uint8)
    start = -memory.data_ptr() % ALIGNMENT
    return memory[start : start + size]


def spec_bytes(spec: TensorSpec) -> int:
    """Returns the bytes of a dense tensor with a spec of static sizes."""
    return math.prod(spec.shape) * torch_dtype(spec).itemsize


class PackedStore:
    """A buffer for each of `specs`, in one allocation of `allocated` bytes, made on first use."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._specs = list(specs)
        self._offsets, self._size = list[int](), 0
        for spec in specs:
            self._offsets.append(self._size)
            self._size += -(-spec_bytes(spec) // CACHE_LINE) * CACHE_LINE
        self.allocated = self._size + _store_alignment(self._size) if self._size else 0
        self._memory: torch.Tensor | None = None
        self._lock = threading.Lock()

    def buffer(self, number: int) -> torch.Tensor:
        """Returns the buffer of spec `number`, aligned to a cache line; repeated calls return the same memory."""
        with self._lock:
            if self._memory is None:
                self._memory = _allocate_packed(self._size)
        spec, start = self._specs[number], self._offsets[number]
        return self._memory[start : start + spec_bytes(spec)].view(torch_dtype(spec)).view(spec.shape)


def _store_alignment(size: int) -> int:
    """Returns the alignment of a store of `size` bytes: a huge page, or a cache line for a smaller store."""
    return HUGE_PAGE_BYTES if size >= HUGE_PAGE_BYTES else CACHE_LINE


def _allocate_packed(size: int) -> torch.Tensor:
    alignment = _store_alignment(size)
    memory = torch.empty(size + alignment, dtype=torch.uint8, device="cpu")
    start = -memory.data_ptr() % alignment
    if alignment == HUGE_PAGE_BYTES:
        request_huge_pages(memory.data_ptr() + start, size)
    return memory[start : start + size]


# ---- memory of saved tensors -----------------------------------------------------------------------------------------


def releases_saved_tensors() -> bool:
    """True inside a backward pass that releases saved tensors after use, and whose results have no gradients."""
    # Compiled autograd runs this under Dynamo, which cannot trace the calls below.
    if torch.compiler.is_compiling():
        return False
    return not torch.is_grad_enabled() and not torch._C._autograd._get_current_graph_task_keep_graph()


class Lend(Protocol):
    """Returns a context in which a call may write results to those of its inputs `tensors` that nothing else uses.

    Returns `None` if the program never writes to inputs. See `unshared_storages` for the parameters.
    """

    def __call__(
        self, tensors: Sequence[torch.Tensor], is_released: bool = False
    ) -> AbstractContextManager[None] | None: ...


def unshared_storages(
    tensors: Sequence[torch.Tensor], numbers: Iterable[int], is_released: bool = False
) -> dict[int, torch.UntypedStorage]:
    """Returns the storages of the tensors at positions `numbers` that nothing else uses, by position.

    A tensor that does not begin at the start of its storage is left out: scratch memory may lie after the tensor.
    `tensors` are a tuple with saved tensors, made inside the backward function of an autograd function. In Python, only
    this tuple may refer to them, and only a `BufferPool` to their storages. `is_released` says that the autograd
    function has released its saved tensors.
    """
    expected = _expected_uses()
    if expected is None:
        return {}
    if is_released:
        expected = (0, expected[1])  # the autograd function has no references
    return {
        number: tensors[number].untyped_storage()
        for number in numbers
        if tensors[number].storage_offset() == 0 and _count_uses(tensors, number) == expected
    }


def _count_uses(tensors: Sequence[torch.Tensor], number: int) -> tuple[int, int]:
    """Returns the uses of a tensor: references beyond those of a listed object, and users of its storage.

    The second number is -1 if other processes share the storage.
    """
    assert storage_use_count is not None
    tensor = tensors[number]
    references = getrefcount(tensor) - references_of_listed_object()
    storage = tensor.untyped_storage()
    return references, -1 if storage.is_shared() else storage_use_count(storage._cdata)


@lru_cache(maxsize=1)
def _expected_uses() -> tuple[int, int] | None:
    """Returns the result of `_count_uses` for a saved tensor that nothing else uses; `None` if PyTorch cannot count."""
    if storage_use_count is None:
        return None
    counts: list[tuple[int, int]] = []

    class SaveOne(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(torch.zeros(4, device="cpu"))
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            inputs = (*ctx.saved_tensors, gradient)
            counts.append(_count_uses(inputs, 0))
            return gradient

    with torch.enable_grad():
        x = torch.ones(4, device="cpu", requires_grad=True)
        torch.autograd.grad(SaveOne.apply(x).sum(), x)
    return counts[0] if counts and counts[0][1] > 0 else None
