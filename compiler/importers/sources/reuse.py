"""Restores the graph of an earlier capture, so that a model that still computes the same is not captured again.

A capture depends on more than can be listed: files that the script reads as data, settings of libraries, globals.
Therefore a known graph is used only if the module has the same structure, its tensors have the same forms, and the
graph gives the results of a call of the module bit by bit. A run on these inputs is then valid for the module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from buddy.compiler.frontend.capture import named_tensors
from buddy.compiler.frontend.eager_program import EagerCode, eager_code_of, program_from_code
from buddy.compiler.graph import serialization
from buddy.compiler.graph.types import NodeType
from buddy.compiler.protocol import GraphInfo
from buddy.compiler.protocol.recipe import digest
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.torch_values import dense_bytes

_log = logging.getLogger("buddy.host")
_SIMPLE_TYPES = (bool, int, float, str, type(None))


class _KnownTensor(msgspec.Struct, frozen=True):
    """The source of a tensor of a graph, and its form.

    The source is the parameter or buffer `state` of the module or, if that is "", tensor number `argument` of its
    arguments.
    """

    state: str
    argument: int
    form: str


class KnownGraph(msgspec.Struct, frozen=True):
    """A captured graph without its tensors. `structure` is the `structure_hash`, `arguments` the `_arguments_hash`."""

    graph: bytes
    info: GraphInfo
    table: str
    code: str
    eager: EagerCode
    tensors: tuple[_KnownTensor, ...]
    parameters: tuple[int, ...]
    result_names: tuple[str, ...]
    structure: str
    arguments: str


def describe_graph(
    captured: CapturedGraph, module: object, args: Sequence[object], kwargs: Mapping[str, object], structure: str
) -> bytes:
    """Returns what `restore_graph` needs to make `captured`, the only graph of a call of `module`, again.

    `structure` is the module's `structure_hash` before the call. Returns b"" if the graph cannot be restored: for
    functions, whose tensors have no names, and for graphs with constants, numbers, random ops, mutated inputs or
    lowerings of the script.
    """
    eager = eager_code_of(captured.eager)
    is_plain = not (captured.numbers or captured.graph.mutated or captured.info.strict or captured.user_lowerings())
    if eager is None or not is_plain or captured.seed is not None or not isinstance(module, torch.nn.Module):
        return b""
    states, arguments = _states(module), _tensors_of(args, kwargs)
    by_layout = {_memory_layout(tensor): name for name, tensor in states.items()}
    sources = []
    for tensor, kind, op in zip(captured.tensors, captured.graph.kinds, captured.graph.placeholders, strict=False):
        state = by_layout.get(_memory_layout(tensor), "") if kind is NodeType.FakeNode else ""
        # A capture copies buffers, so they are at other addresses.
        if not state and op.stable in states and _is_same(tensor, states[op.stable]):
            state = op.stable
        number = -1 if state else _index_of(tensor, arguments)
        if not state and number < 0:
            return b""
        sources.append(_KnownTensor(state, number, _form(tensor)))
    if len(sources) < len(captured.tensors):
        return b""
    known = KnownGraph(
        serialization.to_bytes(captured.graph),
        captured.info,
        captured.table,
        captured.code,
        eager,
        tuple(sources),
        tuple(sorted(captured.parameters)),
        captured.result_names,
        structure,
        _arguments_hash(args, kwargs),
    )
    return msgspec.msgpack.encode(known)


def restore_graph(
    data: bytes, module: object, args: Sequence[object], kwargs: Mapping[str, object]
) -> CapturedGraph | None:
    """Returns the graph that `describe_graph` has described, with the tensors of this call of `module`.

    Calls the module once, without gradients. Returns `None` if the graph may not be that of the call.
    """
    try:
        known = msgspec.msgpack.decode(data, type=KnownGraph)
    except msgspec.MsgspecError:
        return None
    if not isinstance(module, torch.nn.Module) or structure_hash(module) != known.structure:
        return None
    if _arguments_hash(args, kwargs) != known.arguments:
        return None
    states, arguments = _states(module), _tensors_of(args, kwargs)
    tensors = []
    for source in known.tensors:
        tensor = states.get(source.state) if source.state else next(iter(arguments[source.argument :]), None)
        if tensor is None or _form(tensor) != source.form:
            return None
        tensors.append(tensor.detach() if source.state else tensor.detach().clone())
    captured = CapturedGraph(
        serialization.from_bytes(known.graph),
        known.info,
        tensors,
        program_from_code(known.eager),
        known.table,
        frozenset(known.parameters),
        code=known.code,
        result_names=known.result_names,
    )
    return captured if _gives_results_of(captured, module, args, kwargs) else None


def _gives_results_of(
    captured: CapturedGraph, module: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> bool:
    """Returns whether the graph returns exactly the tensors that a call of `module` returns, under the same names."""
    try:
        with torch.random.fork_rng(), torch.no_grad():
            expected = list(named_tensors(module(*args, **kwargs)))
            assert captured.eager is not None
            results = captured.eager(captured.tensors)
    except Exception as error:  # the capture reports errors of the module, and the saved code may be of another one
        _log.debug("the known graph does not run", exc_info=error)
        return False
    names = captured.names_of_results()
    matching = [
        (name, value)
        for name, value in expected
        if any(
            name in ("", result_name) and _is_same(value, result)
            for result_name, result in zip(names, results, strict=True)
        )
    ]
    is_returned = [any(_is_same(value, result) for _, value in matching) for result in results]
    return len(matching) == len(expected) and all(is_returned)


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether two tensors have the same form and the same bits."""
    return _form(a) == _form(b) and bytes(dense_bytes(a)) == bytes(dense_bytes(b))


def _states(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the parameters and buffers by name; a shared one has its first name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _memory_layout(tensor: torch.Tensor) -> tuple[object, ...]:
    """Returns the place of a tensor in memory: equal for two views of the same elements."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _form(tensor: torch.Tensor) -> str:
    """Returns the class, element type, shape and strides; a parameter counts as a plain tensor.

    A parameter of a lazy module has neither shape nor strides before the module's first call.
    """
    if is_lazy(tensor):
        return f"uninitialized {tensor.dtype} {tensor.device}"
    kind = torch.Tensor if isinstance(tensor, torch.nn.Parameter) else type(tensor)
    return f"{kind.__name__} {tensor.dtype} {tuple(tensor.shape)} {tensor.layout} {tensor.device} {_strides(tensor)}"


def _strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    return tensor.stride() if tensor.layout is torch.strided else None


def _tensors_of(args: Sequence[object], kwargs: Mapping[str, object]) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves((tuple(args), dict(kwargs))) if isinstance(leaf, torch.Tensor)]


def _arguments_hash(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """Returns a hash of the arguments' names, their forms if they are tensors, and their values if they are not."""
    leaves = [
        _form(leaf) if isinstance(leaf, torch.Tensor) else _describe_value(leaf)
        for leaf in tree_leaves((tuple(args), dict(kwargs)))
    ]
    return digest(len(args), list(kwargs), leaves)


def _describe_value(value: object) -> str:
    return repr(value) if isinstance(value, _SIMPLE_TYPES) else f"{type(value).__module__}.{type(value).__qualname__}"


def _index_of(tensor: torch.Tensor, arguments: Sequence[torch.Tensor]) -> int:
    """Returns the position of the first argument with these elements, or -1."""
    return next((index for index, argument in enumerate(arguments) if _is_same(tensor, argument)), -1)


def structure_hash(module: object) -> str:
    """Returns a hash of a module's submodules with their classes and settings, and of the forms of their tensors.

    Returns "" for a function. Calls may change settings, so hashes are compared as they were before the first call.
    """
    if not isinstance(module, torch.nn.Module):
        return ""
    modules = [(name, _describe_value(part), part.training, _settings(part)) for name, part in module.named_modules()]
    states = [(name, _form(tensor), tensor.requires_grad) for name, tensor in _states(module).items()]
    return digest(modules, states)


def _settings(module: torch.nn.Module) -> list[tuple[str, Any]]:
    """Returns the attributes of a module that are numbers, texts or tuples of these, such as a stride."""
    attributes = sorted(vars(module).items())
    return [(name, repr(value)) for name, value in attributes if _is_setting(value)]


def _is_setting(value: object) -> bool:
    return isinstance(value, _SIMPLE_TYPES) or (isinstance(value, tuple) and all(map(_is_setting, value)))
