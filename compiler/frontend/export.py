"""Captures a module through `torch.export`, which keeps the order of the module's own arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.utils._pytree import tree_leaves

from buddy.compiler.frontend.aten import AtenGraph, InputOrigin
from buddy.compiler.frontend.capture import GraphRecorder
from buddy.compiler.frontend.effects import without_assertions_of_form
from buddy.compiler.frontend.random_numbers import by_counter, new_seed
from buddy.compiler.frontend.resampling import resampled_as_in_eager


class _Module(torch.nn.Module):
    """A function as a module, as `torch.export` requires."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def export(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    decompositions: Mapping[Any, Callable[..., Any]],
    recorder: GraphRecorder,
    dynamic_shapes: Any = None,
) -> None:
    """Records the graph of `function(*args, **kwargs)`, without gradients.

    Parameters, buffers and constants come first, then the arguments in the order that `function` declares them.
    `dynamic_shapes` lists the symbolic sizes as for `torch.export.export`, with `torch.export.Dim`. Raises what
    `torch.export` raises, for example at a graph break.
    """
    module = function if isinstance(function, torch.nn.Module) else _Module(function)
    with torch.no_grad(), resampled_as_in_eager():
        if isinstance(module, _Module) and dynamic_shapes is not None:
            dynamic_shapes = _of_wrapped(dynamic_shapes, len(args), kwargs)
        program = torch.export.export(module, tuple(args), dict(kwargs), strict=False, dynamic_shapes=dynamic_shapes)
        program = program.run_decompositions(dict(decompositions))
        specs = _drop_constants(program)
        given = iter(leaf for leaf in tree_leaves(program.example_inputs) if isinstance(leaf, torch.Tensor))
        tensors = [_tensor(program, spec, given) for spec in specs]
        origins = tuple(InputOrigin(str(spec.target or spec.arg.name), _is_state(spec)) for spec in specs)
        graph = program.graph_module
        without_assertions_of_form(graph)
        drawing = by_counter(graph, decompositions)
        if drawing is not None:
            origins, tensors = (*origins, InputOrigin("random_seed", is_state=False)), [*tensors, new_seed()]
        recorder.record(AtenGraph(graph, "inference", graph, origins, (None,) * len(origins), drawing=drawing), tensors)


def _of_wrapped(dynamic_shapes: Any, positional: int, kwargs: Mapping[str, Any]) -> Any:
    """`dynamic_shapes` of a function's arguments as those of `_Module.forward`, which collects them."""
    given = list(dynamic_shapes.values()) if isinstance(dynamic_shapes, Mapping) else list(dynamic_shapes)
    found = {"args": tuple(given[:positional]), "kwargs": dict(zip(kwargs, given[positional:], strict=False))}
    return {name: shapes for name, shapes in found.items() if shapes}


def _is_state(spec: InputSpec) -> bool:
    return spec.kind is not InputKind.USER_INPUT


def _drop_constants(program: Any) -> list[InputSpec]:
    """Removes arguments that are not tensors, which `torch.export` has made constants, from the program's inputs."""
    kept = []
    for node, spec in zip(_placeholders(program.graph_module), program.graph_signature.input_specs, strict=True):
        if isinstance(spec.arg, TensorArgument):
            kept.append(spec)
        else:
            program.graph_module.graph.erase_node(node)
    program.graph_module.recompile()
    return kept


def _placeholders(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _tensor(program: Any, spec: InputSpec, given: Any) -> torch.Tensor:
    if not _is_state(spec):
        return next(given)
    stored = program.state_dict.get(spec.target)
    return program.constants[spec.target] if stored is None else stored
