"""What a compilation hands over to whoever runs it: objects, a calling convention, and what to prepare once.

The entry function `<entry>` takes one pointer per buffer, each to a dense row-major tensor: inputs in the order of
`arguments`, then the values of `symbols` (an `i64` each), then results in the order of `results`, then, unless `arena`
is 0, that many bytes to work in, aligned to 64; the caller owns every buffer. Tensors without elements are passed to
nobody, unless a call tells that they have none. Two calls at a time need two arenas.

Where `threads` is more than 1, objects call `buddy_fork(task, data, threads)`, which the caller provides: it has to
call `task(data, i, n)`, an `i32` each, for every `i` below some `n` of 1 to `threads`, at the same time if it can.
"""

from __future__ import annotations

import math
import re

import msgspec

from buddy.compiler.protocol.device_program import DeviceProgram

FORK = "buddy_fork"
COUNTERS = "buddy_counters"


class TensorSpec(msgspec.Struct, frozen=True):
    """A dense row-major tensor; `dtype` is a `TensorDType` value such as "f32".

    A size that only a call tells is the text of a `graph.sizes.Size`.
    """

    shape: tuple[int | str, ...]
    dtype: str

    @property
    def bytes(self) -> int | None:
        """What it takes in memory; None where only a call tells."""
        sizes = [size for size in self.shape if isinstance(size, int)]
        if len(sizes) < len(self.shape):
            return None
        bits = re.search(r"\d+", self.dtype)
        assert bits is not None
        return math.prod(sizes) * max(int(bits[0]) // 8, 1) * (2 if self.dtype.startswith("complex") else 1)


class Argument(msgspec.Struct, frozen=True, omit_defaults=True):
    """An argument of the entry: graph input number `source` as it is, or packed.

    When `pack` is set, the argument is a buffer of `spec` that the caller allocates and fills by calling the function
    `<pack>(source, buffer)` once, and again whenever the source tensor has changed. `streamed` is a weight that calls
    read from end to end where it lies.
    """

    source: int
    spec: TensorSpec
    pack: str = ""
    streamed: bool = False


class EagerCall(msgspec.Struct, frozen=True):
    """An op that stays in eager: a symbol the runner provides, which calls `target` on tensors at given addresses.

    `arguments` and `keywords` are the op's arguments in the graph's plain form (see `graph.serialize`), in which
    `{"t": i}` stands for tensor argument `i` of the call. The symbol takes a pointer to each of `inputs`, then to each
    of `results`, all dense and row-major, those without elements left out. Between the two come the values of
    `symbols`, an `i64` each, of which sizes among shapes and arguments are made. A call that `asks` is made on values
    that compiled code has no answer to: what comes after it is of no use, whether `target` raises or not.
    """

    symbol: str
    target: str
    arguments: tuple[object, ...]
    keywords: dict[str, object]
    inputs: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    symbols: tuple[str, ...] = ()
    asks: bool = False


class Symbol(msgspec.Struct, frozen=True):
    """Where a call tells the value of symbol `name`: dim `index` of graph input number `source`, or, where that is -1,
    number `index` among the numbers that the program is called with."""

    name: str
    source: int
    index: int


class Region(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a function whose time is counted: what comes from `nodes`, at the call that region `parent` is.

    `what` names its first op, `@name` where it is a call. Regions of the entry have no parent.
    """

    nodes: tuple[str, ...]
    function: str
    what: str
    parent: int = -1


class Artifact(msgspec.Struct, frozen=True):
    """A compiled graph; one for a GPU is its `device`, and has no objects.

    `threads` says how many its loops are shared by at most; `arena` is in bytes.

    Where there are `regions`, objects call `buddy_counters()`, which the caller provides: it returns the address of a
    word to work with, followed by an `i64` for each region, to which the ticks that pass in it are added. Such code is
    called by one thread at a time.

    `observed` are the stable names of the nodes whose values a call shows, one after another. `target` is the recipe's:
    where it is not "", the objects may be of another machine than this one.
    """

    entry: str
    objects: tuple[bytes, ...]
    arguments: tuple[Argument, ...]
    results: tuple[TensorSpec, ...]
    eager_calls: tuple[EagerCall, ...] = ()
    arena: int = 0
    threads: int = 1
    symbols: tuple[Symbol, ...] = ()
    observed: tuple[str, ...] = ()
    regions: tuple[Region, ...] = ()
    device: DeviceProgram | None = None
    target: str = ""

    @property
    def results_of_eager(self) -> bool:
        """Whether eager gives something to compiled code; it is also asked for what it raises alone."""
        return any(call.results for call in self.eager_calls)


def to_bytes(artifact: Artifact) -> bytes:
    return msgspec.msgpack.encode(artifact)


def from_bytes(data: bytes) -> Artifact:
    return msgspec.msgpack.decode(data, type=Artifact)
