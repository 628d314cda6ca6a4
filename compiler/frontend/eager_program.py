"""Runs a captured graph in eager PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from buddy.compiler.frontend.aten import AtenGraph, plain_index
from buddy.compiler.frontend.random_numbers import draws_seeds, restores_states
from buddy.compiler.runtime.captured import Eager


def eager_program(aten: AtenGraph, arguments: Sequence[Any] = (), constants: int = 0) -> Eager:
    """The eager computation of `aten`: the Dynamo graph's torch calls if its results can be identified.

    Training graphs, and those whose inputs or outputs AOTAutograd has rearranged, run their ATen ops instead. Values
    among `arguments`, those of the call, that are not tensors stay fixed.
    """
    mapping = None if draws_seeds(aten.module) else _output_mapping(aten)
    program = _AtenProgram(aten.module, constants) if mapping is None else _DynamoProgram(aten, mapping)
    # Without the tensors: they are passed at each call, and must not be kept alive.
    numbers = [(None, True) if isinstance(value, torch.Tensor) else (value, False) for value in arguments]
    if all(is_tensor for _, is_tensor in numbers):
        return program

    def with_numbers(tensors: Sequence[torch.Tensor]) -> list[Any]:
        left = iter(tensors)
        return program([*(next(left) if is_tensor else value for value, is_tensor in numbers), *left])

    return with_numbers


def drawing_program(aten: AtenGraph, arguments: Sequence[Any], constants: int = 0) -> Eager | None:
    """Like `eager_program`, with PyTorch's random ops in place of bits from a seed; None for a graph without a seed.

    Also None for a graph that recomputes another one's random numbers: PyTorch's ops need the generator's state for
    that, but the graph gets a seed.
    """
    if aten.drawing is None or restores_states(aten.drawing):
        return None
    drawing = replace(
        aten, module=aten.drawing, origins=aten.origins[:-1], input_of=aten.input_of[:-1], drawing=None
    )  # fmt: skip
    program = eager_program(drawing, arguments[:-1], constants)
    place = sum(isinstance(value, torch.Tensor) for value in arguments[:-1])
    return lambda tensors: program([*tensors[:place], *tensors[place + 1 :]])


class _AtenProgram:
    """Runs the ATen graph, op by op. The last `constants` tensors are the graph's own."""

    def __init__(self, module: torch.fx.GraphModule, constants: int) -> None:
        self._module = module
        self._constants = constants

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        return list(self._module(*tensors[: len(tensors) - self._constants]))


class _DynamoProgram:
    """Runs the Dynamo graph on clones of what it mutates, and orders results like the ATen graph."""

    def __init__(self, aten: AtenGraph, mapping: list[tuple[str, int]]) -> None:
        self._module = aten.dynamo
        self._order = [aten.input_of.index(index) for index in range(len(aten.input_of))]
        self._mapping = mapping
        self._mutated = {index for kind, index in mapping if kind == "input"}
        self._autocast = aten.autocast

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        inputs = [tensors[position] for position in self._order]
        for index in self._mutated:
            inputs[index] = inputs[index].clone()
        with torch.autocast("cpu", self._autocast, enabled=self._autocast is not None):
            outputs = self._module(*inputs)
        sources = {"output": outputs, "input": inputs}
        return [sources[kind][index] for kind, index in self._mapping]


def _output_mapping(aten: AtenGraph) -> list[tuple[str, int]] | None:
    """For each ATen result the corresponding Dynamo output or mutated input.

    None if there is another kind of result.
    """
    if aten.kind != "inference" or set(aten.input_of) != set(range(_count_inputs(aten.dynamo))):
        return None
    output = next(iter(reversed(aten.module.graph.nodes)))
    found = [_output_source(description) for description in output.meta.get("desc") or [None]]
    return None if None in found else [source for source in found if source is not None]


def _output_source(description: Any) -> tuple[str, int] | None:
    index = plain_index(description, "PlainAOTOutput")
    if index is not None:
        return ("output", index)
    index = plain_index(getattr(description, "mutated_input", None), "PlainAOTInput")
    return None if index is None else ("input", index)


def _count_inputs(module: torch.fx.GraphModule) -> int:
    return sum(node.op == "placeholder" for node in module.graph.nodes)
