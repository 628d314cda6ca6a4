"""A compiled program, linked into this process and callable on torch tensors."""

from __future__ import annotations

import ctypes
import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Literal

import torch

from buddy.compiler.codegen.machines import check_runs_here
from buddy.compiler.protocol.artifact import COUNTERS, Argument, Artifact, TensorSpec
from buddy.compiler.runtime.buffers import (
    BufferPool,
    LentMemory,
    PackedStore,
    WorkArena,
    move_to_huge_pages,
    spec_bytes,
    torch_dtype,
    unshared_storages,
)
from buddy.compiler.runtime.callbacks import EagerOps
from buddy.compiler.runtime.linker import SEQUENTIAL, BlockFunction, Library, function_sizes, torch_fork
from buddy.compiler.runtime.native_calls import (
    BuiltinCall,
    NativeArgument,
    NativeCalls,
    NativeResult,
    PackedCopy,
    native_function_address,
)
from buddy.compiler.runtime.on_device import LoadedDeviceProgram
from buddy.compiler.runtime.packed_weights import (
    SharedArgument,
    SharedWeights,
    holds_new_elements,
    is_released,
    release,
    restore,
    weight_state,
)
from buddy.compiler.runtime.torch_values import RuntimeShape, bind_symbols, dense
from buddy.compiler.support import blas
from buddy.compiler.support.target import cores

# Maximum number of addresses per weight that are remembered as moved to huge pages; moving again has no effect.
_MAX_MOVED_ADDRESSES = 16


def call_block_function(function: BlockFunction, words: Sequence[torch.Tensor | int]) -> None:
    """Calls `function` with a block of `words`: numbers, and the addresses of tensors.

    Tensors must be dense, and stay alive until the call returns.
    """
    block = (ctypes.c_int64 * len(words))(*[word if isinstance(word, int) else word.data_ptr() for word in words])
    function(ctypes.addressof(block))


class PlainArgument:
    """An input that is passed unpacked, after conversion to a dense tensor if necessary."""

    use: Literal["in place", "streamed", "packed"] = "in place"  # see `NativeArgument`

    def __init__(self, argument: Argument) -> None:
        self._argument = argument
        self._shape = RuntimeShape(argument.spec)
        self._dtype = torch_dtype(argument.spec)

    def value(self, source: torch.Tensor, symbols: Mapping[str, int]) -> torch.Tensor:
        """Returns the dense tensor to pass for the input `source`. Raises `ValueError` for another shape or type."""
        if is_released(source):
            restore(source)
        shape = self._shape.at(symbols) if self._shape.dynamic else self._shape.sizes
        if source.shape != shape or source.dtype is not self._dtype:
            raise ValueError(_describe_wrong_input(self._argument, source))
        return dense(source)


class StreamedArgument(PlainArgument):
    """A weight that is read sequentially in place; it is moved to huge pages on first use."""

    use = "streamed"

    def __init__(self, argument: Argument) -> None:
        super().__init__(argument)
        self._moved: set[int] = set()

    def value(self, source: torch.Tensor, symbols: Mapping[str, int]) -> torch.Tensor:
        weight = super().value(source, symbols)
        if weight is source and weight.data_ptr() not in self._moved:
            move_to_huge_pages(weight)
            if len(self._moved) >= _MAX_MOVED_ADDRESSES:
                self._moved.clear()
            self._moved.add(weight.data_ptr())
        return weight


class PackedArgument:
    """A packed copy of one input, which is made in each call, or once if weights are `frozen`.

    Not all writes to a tensor can be detected (`p.data.mul_()`, a fused optimizer, another process), so copies are
    cached only for weights that do not change, until `forget()`. The source memory is kept alive, so that its address
    is not reused. With `sequential_calls`, calls do not overlap and all copies may use the same memory. A weight that
    another program has packed in the same way is taken from `shared_weights`. With `releases`, the packed copy
    replaces the memory of a frozen parameter (see `packed_weights.release`).

    `pack` is called with a block of two words: the addresses of the weight and of the copy, which is buffer `number` of
    `store`.
    """

    use: Literal["in place", "streamed", "packed"] = "packed"

    def __init__(
        self, argument: Argument, pack: BlockFunction, store: PackedStore, number: int, frozen: bool = False,
        sequential_calls: bool = False, shared_weights: SharedWeights | None = None, releases: bool = False,
    ) -> None:  # fmt: skip
        self._releases = frozen and releases
        self._frozen = frozen
        self._calls_are_sequential = sequential_calls
        self._shared_argument = None if shared_weights is None else SharedArgument(shared_weights)
        self._argument = argument
        self._pack = pack
        self._store, self._number = store, number
        self._has_used_store = False
        self._source: torch.Tensor | None = None
        self._source_state: tuple[object, ...] = ()
        self._buffer = torch.empty(0, device="cpu")
        # Released weights may be restored in place, so each call has to check whether they were.
        self.copy = PackedCopy() if frozen and not releases else None
        self._lock = threading.Lock()

    def value(self, source: torch.Tensor, symbols: Mapping[str, int]) -> torch.Tensor:
        """Returns the packed copy of the input `source`; packs it unless it is frozen and was packed before."""
        if not self._frozen:
            restore(source)
            return self._run_pack(source)
        state = weight_state(source)
        with self._lock:
            if self._source is None or state != self._source_state:
                if self.copy is not None:
                    self.copy.clear()
                restore(source)
                self._buffer = self._pack_or_share(source)
                if self._releases and release(source, self._buffer, self._run_pack):
                    state = weight_state(source)
                # A detached tensor keeps the memory alive even if `source` gets other memory (`p.data = …`).
                self._source, self._source_state = source.detach(), state
                if self.copy is not None:
                    self.copy.set(source, self._buffer)
            return self._buffer

    def weight_and_copy(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Returns the weight that was packed last, with its copy."""
        return None if self._source is None else (self._source, self._buffer)

    def forget(self) -> None:
        """Makes the next call pack the weight again, unless the packed copy is the only one."""
        with self._lock:
            if self._source is not None and is_released(self._source) and not holds_new_elements(self._source):
                return
            self._source, self._source_state = None, ()
            # A shared copy may have been made before a write that PyTorch has not counted.
            self._shared_argument = None
            if self.copy is not None:
                self.copy.clear()

    def _pack_or_share(self, source: torch.Tensor) -> torch.Tensor:
        if self._shared_argument is None:
            return self._run_pack(source, self._store_buffer())
        spec = self._argument.spec
        # Without the store: if the shared copy is used, a buffer in the store would be wasted memory.
        return self._shared_argument.of(
            source, torch.Size(spec.shape), torch_dtype(spec), partial(self._run_pack, source)
        )

    def _store_buffer(self) -> torch.Tensor | None:
        """Returns the buffer in the store, or `None` if another call may still read it."""
        can_use_store = self._calls_are_sequential or not self._has_used_store
        self._has_used_store = True
        return self._store.buffer(self._number) if can_use_store else None

    def _run_pack(self, source: torch.Tensor, buffer: torch.Tensor | None = None) -> torch.Tensor:
        spec = self._argument.spec
        buffer = torch.empty(spec.shape, dtype=torch_dtype(spec), device="cpu") if buffer is None else buffer
        call_block_function(self._pack, [dense(source.detach()), buffer])
        return buffer


class LoadedProgram:
    """An artifact ready to run.

    Takes the graph's inputs in placeholder order, and number arguments; returns new tensors. Inputs may have any
    strides; results are dense and owned by the caller. A call raises `ValueError` for inputs of another shape or
    element type, and the errors of ops that run in eager. Several threads may call it at a time: each then uses
    separate memory, unless `sequential_calls` promises that calls do not overlap. `threads` is the number of threads
    per loop: 1 if the process has no OpenMP runtime. With `with_addresses`, `functions` has the address and size of
    each function.

    Weights may change between calls, so those that the code needs in packed form are packed in each call. With
    `frozen`, the caller promises that weights do not change while the program lives, and they are packed once. Frozen
    weights that another program has packed in the same way are taken from `shared_weights`. With `releases`, the memory
    of frozen parameters that the code reads only in packed form is released. `scratch` is memory that calls of other
    programs use too.

    Construction raises `MachineError` for code of another architecture, and `LinkError`.
    """

    def __init__(
        self, artifact: Artifact, frozen: bool = False, sequential_calls: bool = False, with_addresses: bool = False,
        shared_weights: SharedWeights | None = None, releases: bool = False, scratch: WorkArena | None = None,
    ) -> None:  # fmt: skip
        check_runs_here(artifact.target)
        sizes = function_sizes(artifact.objects) if with_addresses else {}
        self._eager = EagerOps(artifact.eager_calls)
        fork = torch_fork() if artifact.threads > 1 else SEQUENTIAL
        self.threads = artifact.threads if fork.is_parallel else 1
        self.arena_bytes = artifact.arena
        self._counters = (ctypes.c_int64 * (1 + len(artifact.regions)))() if artifact.regions else None
        self._library = Library(
            artifact.objects,
            _arities(artifact),
            imports={**self._eager.addresses(), **fork.symbols, **blas.gemm_addresses(artifact.objects, self.threads)},
            support=(fork.ir if artifact.threads > 1 else "") + _counters_ir(self._counters),
            exported=tuple(sizes),
        )
        self.functions = {name: (address, sizes[name]) for name, address in self._library.addresses.items()}
        self._entry = self._library[artifact.entry]
        self._arena = WorkArena() if scratch is None else scratch
        self._arena.reserve(artifact.arena)
        self._artifact_arguments = artifact.arguments
        self._arguments = self._make_arguments(frozen, sequential_calls, shared_weights, releases)
        sources = [argument.source for argument in artifact.arguments]
        self._argument_values = [
            (argument.value, source) for argument, source in zip(self._arguments, sources, strict=True)
        ]
        self._symbols = artifact.symbols
        self._results = [(RuntimeShape(spec), torch_dtype(spec)) for spec in artifact.results]
        self._result_pool = BufferPool(len(self._results))
        self._all_are_passed = all(shape.is_passed for shape, _ in self._results)
        # For each result that may be in memory of an input: its number, that memory, and the offset of its end.
        self._results_in_inputs = [
            (number, memory, memory.offset + spec_bytes(artifact.results[number])) for number, memory in artifact.memory
        ]
        self._native = self._make_native_calls(artifact)
        n_inputs = 1 + max(sources, default=-1)
        self._call = (
            None if self._native is None else self._native.make_function(range(n_inputs), self._eager.reraise_after)
        )

    def _make_arguments(
        self, frozen: bool, sequential_calls: bool, shared_weights: SharedWeights | None, releases: bool
    ) -> list[PlainArgument | PackedArgument]:
        """Returns the arguments of the entry, and sets `packed_bytes`."""
        store = PackedStore([argument.spec for argument in self._artifact_arguments if argument.pack])
        self.packed_bytes = store.allocated if frozen else 0
        uses = Counter(argument.source for argument in self._artifact_arguments)
        numbers = itertools.count()
        arguments: list[PlainArgument | PackedArgument] = []
        for argument in self._artifact_arguments:
            if not argument.pack:
                arguments.append(StreamedArgument(argument) if argument.streamed else PlainArgument(argument))
                continue
            pack = partial(_call_pack, self._library, argument.pack)
            may_release = releases and uses[argument.source] == 1
            arguments.append(
                PackedArgument(
                    argument, pack, store, next(numbers), frozen, sequential_calls, shared_weights, may_release
                )
            )
        return arguments

    def _make_native_calls(self, artifact: Artifact) -> NativeCalls | None:
        """Returns the maker of native functions for this program; `None` if calls have to go through Python."""
        if not native_function_address() or artifact.symbols or any(shape.dynamic for shape, _ in self._results):
            return None
        arguments = [
            NativeArgument(
                description.source,
                RuntimeShape(description.spec).at({}),
                torch_dtype(description.spec),
                argument.use,
                partial(argument.value, symbols={}),
                argument.copy if isinstance(argument, PackedArgument) else None,
            )
            for description, argument in zip(artifact.arguments, self._arguments, strict=True)
        ]
        results = [
            NativeResult(
                shape.at({}), dtype, shape.is_passed, partial(self._result_pool.tensor, number, shape.at({}), dtype)
            )
            for number, (shape, dtype) in enumerate(self._results)
        ]
        arena = self._arena if artifact.arena else None
        owner = (self._library, self._eager, self._counters)
        entry = self._library.block_address(artifact.entry)
        return NativeCalls(entry, arguments, results, arena, self._eager.failures, owner)

    def native_function(
        self, inputs: Sequence[int | torch.Tensor], on_error: Callable[[Exception, Sequence[torch.Tensor]], object]
    ) -> BuiltinCall | None:
        """Returns a built-in function that calls this program faster than the program itself, or `None`.

        `inputs` are the inputs of the graph: each is the number of an argument of the function, or a constant tensor.
        `on_error` gets the error of an op in eager, with the arguments; it raises, or returns the value of the call.
        """
        if self._native is None:
            return None
        return self._native.make_function(inputs, partial(self._eager.report, on_error), self)

    def lend(self, tensors: Sequence[torch.Tensor], is_released: bool = False) -> AbstractContextManager[None] | None:
        """Lends the memory of inputs for results (see `Lend`)."""
        if not self._results_in_inputs:
            return None
        storages = unshared_storages(tensors, self.bytes_of_inputs, is_released)
        return self._result_pool.lend(
            {
                number: LentMemory(storages[memory.source], memory.offset)
                for number, memory, end in self._results_in_inputs
                if memory.source in storages and storages[memory.source].nbytes() >= end
            }
        )

    @property
    def bytes_of_inputs(self) -> dict[int, int]:
        """The bytes of memory that inputs should have, so that results can be written to them (see `lend`)."""
        sizes: dict[int, int] = {}
        for _, memory, end in self._results_in_inputs:
            sizes[memory.source] = max(sizes.get(memory.source, 0), end)
        return sizes

    def reserve(self, number: int, size: int) -> None:
        """Makes later tensors for result `number` have at least `size` bytes of memory."""
        self._result_pool.reserve(number, size)

    def free_after_use(self, number: int) -> None:
        """Makes memory of later tensors for result `number` be freed with them, instead of being kept for reuse."""
        self._result_pool.free_after_use(number)

    @property
    def result_bytes(self) -> list[int]:
        """The bytes of each result; 0 for one of dynamic size."""
        return [0 if shape.dynamic else math.prod(shape.at({})) * dtype.itemsize for shape, dtype in self._results]

    def __call__(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int] = ()) -> list[torch.Tensor]:
        if self._call is not None:
            return self._call(*tensors)
        # Keep this short: for a small program, these lines take longer than the compiled code.
        symbols = bind_symbols(self._symbols, tensors, numbers) if self._symbols else {}
        words: list[torch.Tensor | int] = [value(tensors[source], symbols) for value, source in self._argument_values]
        words += symbols.values()
        new_tensor = self._result_pool.tensor
        results = [new_tensor(number, shape.at(symbols), dtype) for number, (shape, dtype) in enumerate(self._results)]
        words += results if self._all_are_passed else self._passed_results(results)
        if self.arena_bytes:
            with self._arena.borrow() as arena:
                call_block_function(self._entry, [*words, arena])
        else:
            call_block_function(self._entry, words)
        self._eager.reraise()
        return results

    def _passed_results(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [result for result, (shape, _) in zip(results, self._results, strict=True) if shape.is_passed]

    def notes(self) -> tuple[str, ...]:
        """Returns notes for the timings: none on the CPU."""
        return ()

    def take_ticks(self) -> list[int]:
        """Returns the ticks of the cycle counter in each region since the last call of this method.

        Only one call at a time may run code with regions.
        """
        if self._counters is None:
            return []
        ticks = list(self._counters[1:])
        ctypes.memset(self._counters, 0, ctypes.sizeof(self._counters))
        return ticks

    def pack(self, tensors: Sequence[torch.Tensor]) -> None:
        """Packs the frozen weights among `tensors` now instead of in the first call, on all cores."""
        packed = [
            (argument, tensors[description.source])
            for argument, description in zip(self._arguments, self._artifact_arguments, strict=True)
            if isinstance(argument, PackedArgument)
        ]
        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(lambda pair: pair[0].value(pair[1], {}), packed))

    def packed_pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns pairs of a weight and its packed copy."""
        pairs = (argument.weight_and_copy() for argument in self._arguments if isinstance(argument, PackedArgument))
        return [pair for pair in pairs if pair is not None]

    @property
    def packed_specs(self) -> set[tuple[int, TensorSpec]]:
        """For each packed argument, the number of the graph's input, and the shape and type of the copy."""
        return {(argument.source, argument.spec) for argument in self._artifact_arguments if argument.pack}

    def packed_copies(self) -> SharedWeights:
        """Returns the packed copies, for other programs on the same weights; valid while this one lives."""
        return SharedWeights(self.packed_pairs())

    def refreeze(self) -> None:
        """Makes the next call pack frozen weights again, after a change of the weights."""
        for argument in self._arguments:
            if isinstance(argument, PackedArgument):
                argument.forget()


def _arities(artifact: Artifact) -> dict[str, int]:
    """Returns the number of words that the entry and each packing function take."""
    n_passed_results = sum(0 not in result.shape for result in artifact.results)
    n_words = len(artifact.arguments) + len(artifact.symbols) + n_passed_results + bool(artifact.arena)
    return {artifact.entry: n_words, **{argument.pack: 2 for argument in artifact.arguments if argument.pack}}


def _call_pack(library: Library, name: str, block: int) -> None:
    """Calls a packing function; the reference to `library` keeps its code loaded."""
    library[name](block)


def _counters_ir(counters: ctypes.Array[ctypes.c_int64] | None) -> str:
    """Returns LLVM IR of the function that returns the address of `counters`; "" without counters."""
    if counters is None:
        return ""
    address = f"inttoptr (i64 {ctypes.addressof(counters)} to ptr)"
    return f"\ndefine ptr @{COUNTERS}() {{\n  ret ptr {address}\n}}\n"


def _describe_wrong_input(argument: Argument, tensor: torch.Tensor) -> str:
    """Returns the message about a tensor whose shape or element type is not that of `argument`."""
    expected = "x".join([*map(str, argument.spec.shape), argument.spec.dtype])
    actual = "x".join([*map(str, tensor.shape), str(tensor.dtype).removeprefix("torch.")])
    return f"input {argument.source} is {actual}, but the program was compiled for {expected}"


Loaded = LoadedProgram | LoadedDeviceProgram


def load_artifact(artifact: Artifact, frozen: bool = False) -> Loaded:
    """Returns the program, callable on torch tensors. Raises the errors of `LoadedProgram` or `LoadedDeviceProgram`."""
    return LoadedProgram(artifact, frozen) if artifact.device is None else LoadedDeviceProgram(artifact)
