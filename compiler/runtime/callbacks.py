"""Makes C functions that run ops in eager; compiled code calls them with pointers to dense tensors."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from buddy.compiler.graph.sizes import parse_size, value_of
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.protocol.artifact import EagerCall
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.runtime import torch_ops  # noqa: F401  (defines the ops of random bits)
from buddy.compiler.runtime.buffers import torch_dtype, view_memory
from buddy.compiler.runtime.torch_ops import Observer as Observer  # defines the op that compiled code may call
from buddy.compiler.runtime.torch_values import RuntimeShape, from_opaque, to_torch_dtype


class EagerOps:
    """The callbacks of an artifact. An exception in a callback is stored, and `reraise` raises it after the call.

    The error is per thread: callbacks run on the thread that called the compiled code. `failures` is a number that
    changes with each error, by which native code finds out that a callback has failed.
    """

    def __init__(self, calls: Sequence[EagerCall]) -> None:
        self._thread_local = threading.local()
        self.failures, self._failure_numbers = ctypes.c_int64(), itertools.count(1)
        self._functions = {call.symbol: self._c_function(call) for call in calls}

    def addresses(self) -> dict[str, int]:
        """Returns the addresses of the C functions by symbol."""
        return {
            symbol: ctypes.cast(function, ctypes.c_void_p).value or 0 for symbol, function in self._functions.items()
        }

    def reraise(self) -> None:
        """Raises the error that a callback has stored in this thread, if any, and clears it."""
        error = getattr(self._thread_local, "error", None)
        self._thread_local.error = None
        if error is not None:
            raise error

    def reraise_after(self, *_: torch.Tensor) -> None:
        """Does what `reraise` does; gets the arguments of the call, which it ignores."""
        self.reraise()

    def report(
        self, on_error: Callable[[Exception, Sequence[torch.Tensor]], object], *arguments: torch.Tensor
    ) -> object:
        """Calls `on_error` with the stored error and the `arguments` of the call, and returns its value.

        Returns `None` if no error is stored.
        """
        stored: Exception | None = None
        try:
            self.reraise()
        except Exception as error:
            stored = error
        return None if stored is None else on_error(stored, arguments)

    def _c_function(self, call: EagerCall) -> Any:
        """Returns the C function of a call.

        Its arguments are the addresses of the inputs that have elements, the sizes of the call's symbols, and the
        addresses of the results that have elements. If an earlier call has failed, it does nothing.
        """
        run = _make_runner(call)

        def call_back(*addresses: int) -> None:
            if getattr(self._thread_local, "error", None) is None:
                try:
                    run(addresses)
                    if call.for_error:
                        raise UnsupportedValuesError(f"compiled code does not support these values of {call.target}")
                except BaseException as error:
                    is_check = not call.results  # eager was called only for its error
                    if is_check and isinstance(error, Exception):
                        _mark_rejection(error)
                    self._thread_local.error = error
                    self.failures.value = next(self._failure_numbers)  # one that no other thread has stored

        n_inputs, n_results = (sum(0 not in spec.shape for spec in specs) for specs in (call.inputs, call.results))
        sizes = [ctypes.c_int64] * len(call.symbols)
        argument_types = [*[ctypes.c_void_p] * n_inputs, *sizes, *[ctypes.c_void_p] * n_results]
        return ctypes.CFUNCTYPE(None, *argument_types)(call_back)


class UnsupportedValuesError(BuddyError):
    """A check of compiled code failed, but eager accepts the values: the whole graph has to run in eager."""


def _mark_rejection(error: Exception) -> None:
    """Marks an error that eager raised for values that a check of compiled code had rejected."""
    error.buddy_rejection = True  # type: ignore[attr-defined]


def is_rejection(error: Exception) -> bool:
    """True if eager raised `error` for a value that a check of compiled code had rejected."""
    return getattr(error, "buddy_rejection", False)


def _make_runner(call: EagerCall) -> Callable[[Sequence[int]], None]:
    """Returns a function that runs the op of `call` on the arguments of its C function; see `EagerOps._c_function`."""
    function = resolve_op(call.target)
    input_shapes, result_shapes = ([RuntimeShape(spec) for spec in specs] for specs in (call.inputs, call.results))

    def run(addresses: Sequence[int]) -> None:
        n_inputs = sum(shape.is_passed for shape in input_shapes)
        symbols = dict(zip(call.symbols, addresses[n_inputs:], strict=False))
        pointers = iter([*addresses[:n_inputs], *addresses[n_inputs + len(symbols) :]])
        shapes_and_specs = zip((*input_shapes, *result_shapes), (*call.inputs, *call.results), strict=True)
        # A buffer without elements may have a null address, which ctypes passes as None.
        tensors = [
            view_memory((next(pointers) or 0) if shape.is_passed else 0, shape.at(symbols), torch_dtype(spec))
            for shape, spec in shapes_and_specs
        ]
        inputs, buffers = tensors[: len(call.inputs)], tensors[len(call.inputs) :]
        arguments = [_to_torch_argument(value, inputs, symbols) for value in call.arguments]
        keywords = {key: _to_torch_argument(value, inputs, symbols) for key, value in call.keywords.items()}
        # AOTAutograd runs a first call under a mode in which some ops lose track of lazy conjugation.
        with torch.no_grad(), _disable_current_modes():
            results = function(*arguments, **keywords)
            _copy_out(results, buffers)

    return run


def resolve_op(target: str) -> torch._ops.OpOverload:
    """Returns the torch op of a graph target, which is `PACKET.OVERLOAD` or `NAMESPACE.PACKET.OVERLOAD`.

    The default namespace is `aten`, or `prims` if `aten` has no such op. Raises `AttributeError` if torch has none.
    """
    parts = target.split(".")
    namespaces = [parts[0]] if len(parts) == 3 else ["aten", "prims"]
    packet, overload = parts[-2], parts[-1]
    for namespace in namespaces:
        op = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload, None)
        if op is not None:
            return op
    raise AttributeError(f"torch has no op {target!r}")


def _to_torch_argument(value: object, tensors: Sequence[torch.Tensor], symbols: Mapping[str, int]) -> object:
    """Converts an argument from its plain form to torch's.

    A dictionary has one key: "t" for the tensor of that number, "s" for a size, "d" for an element type, "f" for a
    float that JSON does not have, "o" for another value of torch (`torch_values.from_opaque`).
    """
    if isinstance(value, dict):
        ((tag, content),) = value.items()
        if tag == "s":
            return value_of(parse_size(content), symbols)
        decode: dict[str, Callable[[Any], Any]] = {
            "t": tensors.__getitem__,
            "d": _parse_dtype,
            "f": float,
            "o": from_opaque,
        }
        return decode[tag](content)
    if isinstance(value, (list, tuple)):
        return [_to_torch_argument(item, tensors, symbols) for item in value]
    return value


def _parse_dtype(text: str) -> torch.dtype:
    return to_torch_dtype(TensorDType(text))


def _copy_out(results: object, buffers: Sequence[torch.Tensor]) -> None:
    """Copies results into their buffers; without buffers, eager was called only for the errors that it raises.

    A result that the op leaves undefined is not copied: nothing reads it.
    """
    if not buffers:
        return
    values = list(results) if isinstance(results, (list, tuple)) else [results]
    if len(values) != len(buffers):
        values = [value for value in values if isinstance(value, torch.Tensor)]
    for buffer, value in zip(buffers, values, strict=True):
        if isinstance(value, torch.Tensor):
            buffer.copy_(value)
