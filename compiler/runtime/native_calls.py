"""Makes built-in functions that call a program without running Python code for each tensor.

`native_ir` has the code of these functions. They read two values for which PyTorch's C interface has no function: the
tensor of a Python object, and the dispatch keys of a tensor, which distinguish a plain CPU tensor from all others. The
offsets of these values are found by a search in tensors whose values are known. If an offset or a function is not
found, calls go through Python.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import sysconfig
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from llvmlite import binding as llvm
from torch.utils._python_dispatch import _disable_current_modes

from buddy.compiler.runtime.buffers import MIN_POOLED_BYTES, WorkArena, row_major_strides
from buddy.compiler.runtime.linker import jit_compiler
from buddy.compiler.runtime.native_ir import (
    ANY_ADDRESS,
    LIBC,
    NATIVE_FUNCTION,
    NO_ADDRESS,
    PYTHON,
    TORCH,
    TYPE_OFFSET,
    WRAP,
    WRAP_SYMBOLS,
    ArgumentRecord,
    CallRecord,
    CopyRecord,
    ResultRecord,
    TensorLayout,
    native_ir,
)
from buddy.compiler.runtime.packed_weights import MIN_RELEASED_BYTES, before_first_release, has_released

# CPython's flag of functions that are called with an array of arguments.
_METH_FASTCALL = 0x80
# A built-in function of Python that calls a program on its inputs by the native function, and returns the results.
BuiltinCall = Callable[..., list[torch.Tensor]]
Shape = tuple[int, ...]


class _MethodDefinition(ctypes.Structure):
    """CPython's `PyMethodDef`: how a built-in function is called."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@lru_cache(maxsize=1)
def _method_definition() -> _MethodDefinition:
    """Returns the definition of the built-in functions, which CPython reads as long as one of them exists."""
    doc = b"Calls compiled code on its inputs, without Python for each of them."
    return _MethodDefinition(b"compiled", native_function_address(), _METH_FASTCALL, doc)


class PackedCopy:
    """The packed copy of a weight, for native functions, which pass it while the weight has the same state.

    They read `record`, also while another thread writes it. So the address of the weight is cleared first and written
    last.
    """

    def __init__(self) -> None:
        self.record = CopyRecord()
        self._owned: tuple[object, ...] = ()
        self.clear()

    def clear(self) -> None:
        """Makes native functions call `take` instead of passing the copy."""
        self.record.source.address = NO_ADDRESS

    def set(self, source: torch.Tensor, packed: torch.Tensor) -> None:
        """Makes native functions pass `packed` for `source`, if it is dense and PyTorch counts writes to it.

        Keeps the memory of both alive until the next call of this method.
        """
        self.clear()
        if not native_function_address() or source.is_inference() or not source.is_contiguous():
            return
        sizes = (ctypes.c_int64 * source.dim())(*source.shape)
        record, expected = self.record, self.record.source
        record.version, record.address, record.tensor = source._version, packed.data_ptr(), id(packed)
        expected.dtype, expected.rank, expected.sizes = dtype_code(source.dtype), len(sizes), ctypes.addressof(sizes)
        self._owned = (source.detach(), packed, sizes)
        expected.address = source.data_ptr()


@dataclass(frozen=True)
class NativeArgument:
    """An argument of the entry that comes from graph input number `source`.

    `use` says when a dense tensor with this shape and element type is passed unchanged: "in place" always; "streamed"
    after `take` has returned the same tensor, until its address changes; "packed" never. Otherwise `take` returns the
    tensor to pass. After the first release of weights in the process, all large tensors go through `take`, which
    restores released ones.

    `copy` holds the last result of `take` for a frozen weight that is "packed"; it is passed without a call of `take`.
    """

    source: int
    shape: Shape
    dtype: torch.dtype
    use: Literal["in place", "streamed", "packed"]
    take: Callable[[torch.Tensor], torch.Tensor]
    copy: PackedCopy | None = None

    @property
    def may_be_released(self) -> bool:
        return math.prod(self.shape) * self.dtype.itemsize >= MIN_RELEASED_BYTES


@dataclass(frozen=True)
class NativeResult:
    """A result of the entry, whose address is an argument of the entry if `is_passed`.

    `make` allocates it unless it is small; the native function allocates small results itself.
    """

    shape: Shape
    dtype: torch.dtype
    is_passed: bool
    make: Callable[[], torch.Tensor]

    @property
    def is_small(self) -> bool:
        return math.prod(self.shape) * self.dtype.itemsize < MIN_POOLED_BYTES


class NativeCalls:
    """Makes the built-in functions that call one program. `native_function_address()` must not be 0.

    `entry` is the address of the compiled function that takes a block of arguments. `failures` is a number that changes
    if an op in eager fails. `arena` is `None` if the entry takes none. `owner` holds references to the code and its
    callbacks.
    """

    def __init__(
        self, entry: int, arguments: Sequence[NativeArgument], results: Sequence[NativeResult],
        arena: WorkArena | None, failures: ctypes.c_int64, owner: object,
    ) -> None:  # fmt: skip
        self._entry, self._arguments, self._results = entry, arguments, results
        self._arena, self._failures, self._owner = arena, failures, owner

    def make_function(
        self,
        inputs: Sequence[int | torch.Tensor],
        finish: Callable[..., object],
        owner: object = None,
    ) -> BuiltinCall:
        """Returns a built-in function that calls the program and returns the list of its results.

        `inputs` are the inputs of the graph: each is the number of an argument of the function, or a constant tensor.
        After a failure of an op in eager, the function calls `finish` with its arguments. If that returns a value, the
        value is returned in place of the results. The function keeps `owner` alive.
        """
        arguments = (ArgumentRecord * len(self._arguments))()
        results = (ResultRecord * len(self._results))()
        record = CallRecord(
            entry=self._entry,
            n_inputs=1 + max((number for number in inputs if isinstance(number, int)), default=-1),
            n_arguments=len(arguments), arguments=ctypes.addressof(arguments),
            n_results=len(results), results=ctypes.addressof(results),
            failures=ctypes.addressof(self._failures), finish=id(finish), is_long=1,
        )  # fmt: skip
        # The records have only addresses of these objects, so the function has to own them.
        owned: list[object] = [self._owner, self._failures, owner, arguments, results, record, finish, inputs]
        if self._arena is not None:
            lend = self._arena.lend
            record.arena, record.make_arena = ctypes.addressof(self._arena.words), id(lend)
            owned += [self._arena, lend]
        for argument, argument_record in zip(self._arguments, arguments, strict=True):
            owned += _fill_argument(argument_record, argument, inputs[argument.source])
        for result, result_record in zip(self._results, results, strict=True):
            owned += _fill_result(result_record, result)
        new = ctypes.pythonapi.PyCFunction_NewEx
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
        function: BuiltinCall = new(ctypes.addressof(_method_definition()), (ctypes.addressof(record), owned), None)
        return function


# The records of arguments that may be weights large enough to be released, by their functions `take`.
_large_arguments: weakref.WeakKeyDictionary[Callable[..., Any], ArgumentRecord] = weakref.WeakKeyDictionary()


def _take_large_arguments() -> None:
    """Makes all large arguments go through `take`, because they may be released from now on."""
    for record in list(_large_arguments.values()):
        record.address = NO_ADDRESS


before_first_release(_take_large_arguments)


def _fill_argument(record: ArgumentRecord, argument: NativeArgument, source: int | torch.Tensor) -> list[object]:
    """Fills the record of an argument; returns the objects whose addresses the record has, which must be kept alive.

    `source` is the number of an argument of the built-in function, or a constant tensor.
    """
    is_streamed = argument.use == "streamed"

    def take(given: torch.Tensor) -> tuple[torch.Tensor, int]:
        tensor = argument.take(given)
        address = tensor.data_ptr()
        if is_streamed and tensor is given and not (argument.may_be_released and has_released()):
            record.address = address
        return tensor, address

    sizes = (ctypes.c_int64 * len(argument.shape))(*argument.shape)
    record.input, record.constant = (source, None) if isinstance(source, int) else (0, id(source))
    record.dtype, record.rank, record.sizes = dtype_code(argument.dtype), len(sizes), ctypes.addressof(sizes)
    is_in_place = argument.use == "in place" and not (argument.may_be_released and has_released())
    record.address = ANY_ADDRESS if is_in_place else NO_ADDRESS
    record.take = id(take)
    record.copy = None if argument.copy is None else ctypes.addressof(argument.copy.record)
    if argument.may_be_released:
        _large_arguments[take] = record
    return [sizes, take, argument.copy]


def _fill_result(record: ResultRecord, result: NativeResult) -> list[object]:
    """Fills the record of a result; returns the objects whose addresses the record has, which must be kept alive."""

    def make() -> tuple[torch.Tensor, int]:
        tensor = result.make()
        return tensor, tensor.data_ptr()

    sizes, strides = (
        (ctypes.c_int64 * len(numbers))(*numbers) for numbers in (result.shape, row_major_strides(result.shape))
    )
    record.dtype, record.rank = dtype_code(result.dtype), len(sizes)
    record.sizes, record.strides = ctypes.addressof(sizes), ctypes.addressof(strides)
    record.small, record.passed, record.make = result.is_small, result.is_passed, id(make)
    return [sizes, strides, make]


# ---- CPython's and PyTorch's functions and layouts -------------------------------------------------------------------


@lru_cache(maxsize=1)
def native_function_address() -> int:
    """Returns the address of the native function; 0 if calls go through Python (see `native_call_problem`)."""
    return _compile_native_function()[0]


@lru_cache(maxsize=1)
def native_call_problem() -> str:
    """Returns why calls go through Python, or "" if they do not."""
    return _compile_native_function()[1]


@lru_cache(maxsize=1)
def _compile_native_function() -> tuple[int, str]:
    """Returns the address of the native function and ""; or 0 and the reason why it cannot be used."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return 0, "this Python has no interpreter lock"
    if sys.platform == "win32":
        return 0, "not supported on Windows"
    symbols = _symbol_addresses()
    missing = sorted(name for name, address in symbols.items() if not address)
    if missing:
        provider = "Python" if missing[0].lstrip("_").startswith("Py") else "PyTorch"
        return 0, f"this build of {provider} has no {missing[0]}"
    layout = _find_layout()
    if layout is None:
        return 0, "this build of PyTorch or Python lays tensors out in an unknown way"
    builder = llvm.JITLibraryBuilder()
    for name, address in symbols.items():
        builder.import_symbol(name, address)
    library = (
        builder.add_ir(native_ir(layout)).export_symbol(NATIVE_FUNCTION).link(jit_compiler(), "buddy_native_calls")
    )
    _loaded_libraries.append(library)
    return library[NATIVE_FUNCTION], ""


# Keeps the code of the native function loaded.
_loaded_libraries: list[Any] = []


def _symbol_addresses() -> dict[str, int]:
    """Returns the addresses of the functions that the native function calls; 0 for those that are not found."""
    process = ctypes.CDLL(None)
    cpu, python = _torch_library("torch_cpu"), _torch_library("torch_python")
    addresses = {name: _symbol_address(ctypes.pythonapi, name) for name in PYTHON}
    addresses |= {name: _symbol_address(process, name) for name in LIBC}
    addresses |= {name: _symbol_address(cpu, name) for name in TORCH}
    addresses[WRAP] = next(filter(None, (_symbol_address(python, name) for name in WRAP_SYMBOLS)), 0)
    return addresses


def _torch_library(name: str) -> ctypes.CDLL | None:
    """Returns a library of PyTorch, `None` if this process has not loaded it."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    path = Path(torch.__file__).parent / "lib" / f"lib{name}.{suffix}"
    try:
        return ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


def _symbol_address(library: ctypes.CDLL | ctypes.PyDLL | None, name: str) -> int:
    """Returns the address of a function of a library; 0 if the function or the library does not exist."""
    function = None if library is None else getattr(library, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


# How many 8-byte words are searched, of a Python tensor object and of the tensor itself. In all versions of PyTorch,
# both are larger than that.
_OBJECT_WORDS, _TENSOR_WORDS = 4, 24


@lru_cache(maxsize=1)
def _find_layout() -> TensorLayout | None:
    """Returns the layout of tensors in memory, by a search for values that PyTorch's Python API also returns.

    Returns `None` if such a value is not at the same offset in tensors of different kinds.
    """
    with torch._C._DisableTorchDispatch(), _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        plain = torch.empty(2, 3, device="cpu")
        lazy = torch.empty(2, dtype=torch.complex64, device="cpu").conj()
        tensors = [plain, torch.nn.Parameter(torch.empty(4, device="cpu")), lazy, lazy.imag, plain.to_sparse()]
        tensors.append(torch.empty(3, device="meta"))
    with torch.inference_mode(), torch._C._DisableTorchDispatch(), _disable_current_modes():
        inference = torch.empty(5, device="cpu")  # has no dispatch key of autograd
    tensors.append(inference)
    if any(_read_words(id(tensor) + TYPE_OFFSET, 1)[0] != id(type(tensor)) for tensor in tensors):
        return None
    tensor_offset = _find_offset(tensors, id, lambda tensor: tensor._cdata, _OBJECT_WORDS)
    keys_offset = _find_offset(tensors, lambda tensor: tensor._cdata, _dispatch_keys, _TENSOR_WORDS)
    if tensor_offset is None or keys_offset is None:
        return None
    return TensorLayout(tensor_offset, keys_offset, plain=_dispatch_keys(plain), base=_dispatch_keys(inference))


@cache
def dtype_code(dtype: torch.dtype) -> int:
    """Returns PyTorch's number of an element type. `native_function_address()` must not be 0."""
    layout, cpu, code = _find_layout(), _torch_library("torch_cpu"), ctypes.c_int32()
    assert layout is not None
    assert cpu is not None
    with torch._C._DisableTorchDispatch(), _disable_current_modes():
        tensor = torch.empty(0, dtype=dtype, device="cpu")
    cpu.aoti_torch_get_dtype(ctypes.c_void_p(id(tensor) + layout.tensor_offset), ctypes.byref(code))
    return code.value


def _dispatch_keys(tensor: torch.Tensor) -> int:
    """Returns the set of dispatch keys of a tensor as a number, one bit for each key."""
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def _read_words(address: int, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(address))


def _find_offset(
    tensors: Sequence[torch.Tensor], start: Callable[[torch.Tensor], int], value: Callable[[torch.Tensor], int],
    n_words: int,
) -> int | None:  # fmt: skip
    """Returns the only offset from `start`, in bytes, where each tensor has its `value`; `None` if it is not unique."""
    offsets = [
        {8 * number for number, word in enumerate(_read_words(start(tensor), n_words)) if word == value(tensor)}
        for tensor in tensors
    ]
    common = set.intersection(*offsets)
    return common.pop() if len(common) == 1 else None
