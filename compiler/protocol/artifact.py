"""The result of a compilation: objects and their calling convention, or PTX and the host's steps.

Imports neither torch nor MLIR.

The entry function `<entry>` takes one pointer per buffer, each to a dense row-major tensor: inputs in the order of
`arguments`, then the values of `symbols` (an `i64` each, passed by value), then results in the order of `results`,
then, unless `arena` is 0, `arena` bytes of scratch memory, aligned to 64 bytes; see the fields of `Artifact`. The
caller owns every buffer. Tensors that are known to be empty at compile time are not passed. Concurrent calls need
separate arenas.

If `threads` is more than 1, objects call `buddy_fork(task, data, threads)`, which the caller provides: it chooses a
number `n` from 1 to `threads`, and calls `task(data, i, n)`, with `i32` values, for every `i` below `n`, concurrently
if possible.
"""

from __future__ import annotations

import math
import re
from typing import Literal

import msgspec


class Buffer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Device memory of `size` bytes that is neither an argument nor a result; `content` is its initial content."""

    size: int
    content: bytes = b""


class Pointer(msgspec.Struct, frozen=True, tag="pointer"):
    """The address of buffer number `buffer`, counted over arguments, then results, then `DeviceProgram.buffers`."""

    buffer: int


class KernelScalar(msgspec.Struct, frozen=True, tag="scalar"):
    """A number passed by value to a kernel."""

    kind: Literal["i1", "i8", "i16", "i32", "i64", "f32", "f64"]
    value: int | float


# An argument of a kernel.
KernelArgument = Pointer | KernelScalar


class Launch(msgspec.Struct, frozen=True, tag="launch"):
    """Run kernel `kernel` on `grid` blocks of `block` threads (x, y, z), with `shared` bytes of shared memory per
    block.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[KernelArgument, ...]
    shared: int = 0


class Copy(msgspec.Struct, frozen=True, tag="copy"):
    """Copy the first `size` bytes of buffer `source` to buffer `target`."""

    source: int
    target: int
    size: int


class DeviceProgram(msgspec.Struct, frozen=True):
    """A program for a GPU: `steps` run in order.

    `modules` are PTX texts for `chip`, such as `sm_75`, and all later chips. No two kernels have the same name.
    `buffers` is the device memory that the program needs besides arguments and results.
    """

    chip: str
    modules: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Launch | Copy, ...]


# The functions that objects call and the caller provides: see the docstring of the module, and `Artifact.regions`.
FORK = "buddy_fork"
COUNTERS = "buddy_counters"


class TensorSpec(msgspec.Struct, frozen=True):
    """A dense row-major tensor; `dtype` is a `TensorDType` value such as "f32".

    A symbolic size, known only at the call, is the text of a `graph.sizes.Size`.
    """

    shape: tuple[int | str, ...]
    dtype: str

    @property
    def bytes(self) -> int | None:
        """The size in memory; None if it is known only at the call."""
        sizes = [size for size in self.shape if isinstance(size, int)]
        if len(sizes) < len(self.shape):
            return None
        # The name of a complex type, such as `complex<f32>`, has the bits of one of its two parts.
        bits = re.search(r"\d+", self.dtype)
        assert bits is not None
        part_bytes = max(int(bits[0]) // 8, 1)  # an i1 takes a byte
        return math.prod(sizes) * part_bytes * (2 if self.dtype.startswith("complex") else 1)


class Argument(msgspec.Struct, frozen=True, omit_defaults=True):
    """An argument of the entry: graph input number `source`, unchanged or packed.

    If `pack` is set, the argument is a buffer of `spec` that the caller allocates and fills by calling the function
    `<pack>(input, buffer)` with pointers once, and again whenever the input tensor has changed. `streamed` marks a
    weight that calls read in place and sequentially; the runtime moves such a weight to huge pages.
    """

    source: int
    spec: TensorSpec
    pack: str = ""
    streamed: bool = False


class SavedMemory(msgspec.Struct, frozen=True):
    """Memory of graph input number `source`, from byte `offset` on, whose last use is before the end of the call.

    The input is a tensor that a forward graph saved for this graph. The memory may be longer than the tensor, if more
    memory was allocated than the tensor needs.
    """

    source: int
    offset: int


class EagerCall(msgspec.Struct, frozen=True):
    """An op that runs in eager: compiled code calls the function `symbol` of the runtime, which calls the op `target`.

    `arguments` and `keywords` are the op's arguments in the graph's plain form (see `graph.serialization`), in which
    `{"t": i}` stands for tensor argument `i` of the call. The function takes a pointer to each of `inputs`, then the
    values of `symbols` (an `i64` each) that occur in shapes and arguments, then a pointer to each of `results`. All
    tensors are dense and row-major; empty ones are left out. If compiled code finds values that the op rejects, it
    makes a call `for_error`, in which eager raises its error. The run's results are discarded, even without an
    error.
    """

    symbol: str
    target: str
    arguments: tuple[object, ...]
    keywords: dict[str, object]
    inputs: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    symbols: tuple[str, ...] = ()
    for_error: bool = False


class ArtifactSymbol(msgspec.Struct, frozen=True):
    """The source of the value of symbol `name`: dim `index` of graph input number `source`.

    If `source` is -1, it is scalar argument number `index` of the call.
    """

    name: str
    source: int
    index: int


class TimedRegion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A timed part of a function: the code that comes from `nodes`.

    `label` is the name of its first op, `@name` for a call. `parent` is the number in `Artifact.regions` of the region
    that calls `function`, -1 in the entry function.
    """

    nodes: tuple[str, ...]
    function: str
    label: str
    parent: int = -1


class Artifact(msgspec.Struct, frozen=True):
    """A compiled graph; a graph for a GPU has `device` and no objects.

    `threads` is the maximum number of threads that share its loops; `arena` is in bytes.

    If `regions` is not empty, objects call `buddy_counters()`, which the caller provides: it returns the address of an
    `i64` that the code may overwrite, followed by an `i64` counter of ticks for each region. Such code is not
    thread-safe.

    `observed` are the stable names (`NodeRow.stable`) of the nodes whose values a call reports, in this order. `target`
    is the recipe's target; if it is not "", the objects may be for another machine. `n_nodes` is the number of nodes
    after graph passes, and `eager_nodes` are the stable names of those in eager; `precisions` are the nodes that
    multiply in a reduced precision, each with the precision, and `notes` report precisions that were not applied. Only
    `torch.compile` sets `n_nodes`, `eager_nodes`, `precisions` and `notes`.

    `memory` has pairs: the number of a result, and memory that may be its buffer, because the result is written after
    the last use of that memory.
    """

    entry: str
    objects: tuple[bytes, ...]
    arguments: tuple[Argument, ...]
    results: tuple[TensorSpec, ...]
    eager_calls: tuple[EagerCall, ...] = ()
    arena: int = 0
    threads: int = 1
    symbols: tuple[ArtifactSymbol, ...] = ()
    observed: tuple[str, ...] = ()
    regions: tuple[TimedRegion, ...] = ()
    device: DeviceProgram | None = None
    target: str = ""
    n_nodes: int = 0
    eager_nodes: tuple[str, ...] = ()
    precisions: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    memory: tuple[tuple[int, SavedMemory], ...] = ()

    @property
    def results_of_eager(self) -> bool:
        """Whether compiled code uses results of eager calls. A call that is only made to raise an error has none."""
        return any(call.results for call in self.eager_calls)


def to_bytes(artifact: Artifact) -> bytes:
    """Returns the artifact as MessagePack."""
    return msgspec.msgpack.encode(artifact)


def from_bytes(data: bytes) -> Artifact:
    """Returns the artifact that `to_bytes` encoded. Raises `msgspec.DecodeError` for other data."""
    return msgspec.msgpack.decode(data, type=Artifact)
