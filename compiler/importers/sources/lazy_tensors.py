"""Lazy tensors: loads what a script has traced on PyTorch's lazy device, and not yet run, as a program.

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

from buddy.compiler.importers.sources.program import source_error

DEVICE = "lazy"
# A number of the program is a tensor without dims in the trace, read by an op that takes a number.
_NUMBER = re.compile(r": Scalar = aten::ScalarImplicit\(%p(\d+)\)")
_SOURCE = re.compile(r"\[source=\"[^\"]*\"\]")


@dataclass(frozen=True)
class TracedFunction:
    """A function of ATen ops and the tensors that it was traced on; `names` are those of the script's results."""

    function: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]
    names: tuple[str, ...]


def is_lazy(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE


def any_lazy(args: Any, kwargs: Any) -> bool:
    """Whether a call is on the lazy device: it is traced there, and not captured in addition."""
    return any(map(is_lazy, tree_leaves((args, kwargs))))


def trace_lazily(names: Mapping[str, Any], wanted: str = "") -> TracedFunction | None:
    """The trace of the lazy tensors among a script's globals, or only of the one called `wanted`.

    `None` if there are none with pending computations. Raises `SourceError` if this PyTorch has no TorchScript backend
    of Lazy Tensor.
    """
    found = {key: value for key, value in names.items() if is_lazy(value) and wanted in ("", key)}
    if not found:
        return None
    backend = _backend()
    pending = {key: value for key, value in found.items() if "aten::" in backend.text([value])}
    if not pending:
        return None
    values = list(pending.values())
    text = _SOURCE.sub("", backend.graph(values))
    tensors = [tensor.detach().cpu() for tensor in backend.data(values)]
    function = torch._C._create_function_from_graph("forward", torch._C.parse_ir(_with_numbers(text, tensors)))
    with torch.no_grad():
        return TracedFunction(make_fx(function)(*tensors), tuple(tensors), tuple(pending))


def _with_numbers(text: str, tensors: Sequence[torch.Tensor]) -> str:
    """The trace with the program's numbers as constants."""

    def constant(found: re.Match[str]) -> str:
        number = tensors[int(found[1])].item()
        kind = "bool" if isinstance(number, bool) else "int" if isinstance(number, int) else "float"
        value = int(number) if isinstance(number, bool) else repr(number)
        return f": {kind} = prim::Constant[value={value}]()"

    return _NUMBER.sub(constant, text)


@dataclass(frozen=True)
class _Backend:
    """PyTorch's own functions: the trace of tensors as text and as a TorchScript graph, and its input data."""

    text: Callable[[list[torch.Tensor]], str]
    graph: Callable[[list[torch.Tensor]], str]
    data: Callable[[list[torch.Tensor]], list[torch.Tensor]]


def _backend() -> _Backend:
    try:
        lazy, script = torch._C._lazy, torch._C._lazy_ts_backend
        text, graph, data = lazy._get_tensors_text, lazy._get_tensors_backend, script._get_tensors_ts_device_data_node
    except AttributeError as error:
        what = f"PyTorch {torch.__version__} has no TorchScript backend of Lazy Tensor, so its traces cannot be read"
        todo = "run the program on the CPU's device, where TorchDynamo captures it"
        raise source_error(what, "a tensor on the lazy device", todo) from error
    return _Backend(text, graph, lambda tensors: data(tensors)[1])
