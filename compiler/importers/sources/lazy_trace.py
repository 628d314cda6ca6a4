"""Reads the trace of a script that computes on PyTorch's lazy device.

The TorchScript backend of Lazy Tensor prints its trace as a TorchScript graph, which PyTorch parses again and runs on
the tensors that the trace started with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from buddy.compiler.protocol.source_locations import source_error

DEVICE = "lazy"
# A number of the program is a 0-d tensor in the trace; this op converts it to a number.
_NUMBER = re.compile(r": Scalar = aten::ScalarImplicit\(%p(\d+)\)")
# A comment in the trace, which PyTorch's parser does not accept.
_SOURCE = re.compile(r"\[source=\"[^\"]*\"\]")


@dataclass(frozen=True)
class TracedFunction:
    """A function of ATen ops and the tensors it was traced on; `names` are the script's names of its results."""

    function: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]
    names: tuple[str, ...]


def is_lazy(value: object) -> bool:
    """Returns whether a value is a tensor on the lazy device."""
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE


def any_lazy(args: tuple[torch.Tensor, ...], kwargs: Mapping[str, object]) -> bool:
    """Returns whether a call is on the lazy device, where it is traced and therefore not captured."""
    return any(map(is_lazy, tree_leaves((args, kwargs))))


def trace_lazily(names: Mapping[str, object], name: str = "") -> TracedFunction | None:
    """Returns the trace of the lazy tensors among a script's globals, or only of the global `name`.

    `None` if no such tensor has pending computations. Raises `SourceError` if this PyTorch has no TorchScript backend
    of Lazy Tensor.
    """
    lazy_tensors = {key: value for key, value in names.items() if is_lazy(value) and name in ("", key)}
    if not lazy_tensors:
        return None
    backend = _lazy_backend()
    pending = {key: value for key, value in lazy_tensors.items() if "aten::" in backend.text([value])}
    if not pending:
        return None
    values = list(pending.values())
    text = _SOURCE.sub("", backend.graph(values))
    tensors = [tensor.detach().cpu() for tensor in backend.data(values)]
    function = torch._C._create_function_from_graph("forward", torch._C.parse_ir(_inline_numbers(text, tensors)))
    with torch.no_grad():
        return TracedFunction(make_fx(function)(*tensors), tuple(tensors), tuple(pending))


def _inline_numbers(text: str, tensors: Sequence[torch.Tensor]) -> str:
    """Returns the trace with the program's numbers as constants."""

    def make_constant(match: re.Match[str]) -> str:
        number = tensors[int(match[1])].item()
        if isinstance(number, bool):
            return f": bool = prim::Constant[value={int(number)}]()"
        kind = "int" if isinstance(number, int) else "float"
        return f": {kind} = prim::Constant[value={number!r}]()"

    return _NUMBER.sub(make_constant, text)


@dataclass(frozen=True)
class _LazyBackend:
    """PyTorch's functions that return, for lazy tensors, the trace as text, its TorchScript graph, and its inputs."""

    text: Callable[[list[torch.Tensor]], str]
    graph: Callable[[list[torch.Tensor]], str]
    data: Callable[[list[torch.Tensor]], list[torch.Tensor]]


def _lazy_backend() -> _LazyBackend:
    """Returns PyTorch's functions. Raises `SourceError` if this PyTorch lacks them."""
    try:
        lazy, script = torch._C._lazy, torch._C._lazy_ts_backend
        text, graph, data = lazy._get_tensors_text, lazy._get_tensors_backend, script._get_tensors_ts_device_data_node
    except AttributeError as error:
        what = f"PyTorch {torch.__version__} has no TorchScript backend of Lazy Tensor, so its traces cannot be read"
        todo = "run the program on the CPU's device, where TorchDynamo captures it"
        raise source_error(what, "a tensor on the lazy device", todo) from error
    return _LazyBackend(text, graph, lambda tensors: data(tensors)[1])
