"""A captured graph with its real inputs and the eager program it must agree with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from buddy.compiler.frontend.aten import AtenGraph, plain_index
from buddy.compiler.frontend.errors import UnsupportedGraphError
from buddy.compiler.frontend.random_numbers import draws_seeds, restores_states
from buddy.compiler.graph.graph import Graph
from buddy.compiler.protocol import Diagnostic, GraphInfo
from buddy.compiler.protocol.imported_ir import GivenIR

if TYPE_CHECKING:
    from buddy.compiler.runtime.sensitivity import Spread

Eager = Callable[[Sequence[torch.Tensor]], list[Any]]


def _not_whole() -> GivenIR:
    raise UnsupportedGraphError(
        Diagnostic(
            "torch-mlir imports whole graphs as they were captured, and this is a part of one",
            "the graph",
            "leave it to the frontend dynamo",
        )
    )


@dataclass
class CapturedGraph:
    """One graph of a program.

    `tensors` are its real inputs in placeholder order; parameters share the model's memory. `eager(tensors)` returns
    the graph's results, in order, without writing to `tensors`; where it is `None`, there is nothing to compare with.
    `table` is the FX graph as `print_tabular` prints it, `code` as Python text.
    `timed(tensors)` is what eager's time is measured of, where that is not `eager`: PyTorch's own random ops, for a
    graph that makes its numbers of a seed, which is placeholder `seed`.
    `parameters` are the positions of `nn.Parameter`s among `tensors`. `numbers` are what it was called with besides, as
    sizes that only a call tells. `first()` are lowerings of the script's own, to be searched before all registries,
    `torch_dialect()` is what torch-mlir's importer makes of the graph. `spreads` is kept by `runner.sensitivity`.
    """

    graph: Graph
    info: GraphInfo
    tensors: list[torch.Tensor]
    eager: Eager | None
    table: str = ""
    parameters: frozenset[int] = frozenset()
    numbers: tuple[Any, ...] = ()
    first: Callable[[], Mapping[str, Any] | None] = lambda: None
    code: str = ""
    torch_dialect: Callable[[], GivenIR] = _not_whole
    timed: Eager | None = None
    seed: int | None = None
    spreads: tuple[Spread, ...] | None = field(default=None, init=False)


def eager_program(aten: AtenGraph, arguments: Sequence[Any] = (), constants: int = 0) -> Eager:
    """What eager PyTorch would do for `aten`: the Dynamo graph's torch calls where its results can be told apart.

    Training graphs, and those whose inputs or outputs AOTAutograd has rearranged, run their ATen ops instead. What is
    no tensor among `arguments`, those of the call, stays what it was.
    """
    mapping = None if draws_seeds(aten.module) else _output_mapping(aten)
    program = _AtenProgram(aten.module, constants) if mapping is None else _DynamoProgram(aten, mapping)
    # Without the tensors: they are given anew, and need not be kept.
    numbers = [(None, True) if isinstance(value, torch.Tensor) else (value, False) for value in arguments]
    if all(is_tensor for _, is_tensor in numbers):
        return program

    def with_numbers(tensors: Sequence[torch.Tensor]) -> list[Any]:
        left = iter(tensors)
        return program([*(next(left) if is_tensor else value for value, is_tensor in numbers), *left])

    return with_numbers


def drawing_program(aten: AtenGraph, arguments: Sequence[Any], constants: int = 0) -> Eager | None:
    """As `eager_program`, with PyTorch's random ops in the place of bits from a seed; None for a graph without a seed.

    It is None, too, for a graph that recomputes another one's random numbers: PyTorch's ops need the generator's state
    for that, and the graph is given a seed.
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
    """Runs the Dynamo graph on its own clones of what it mutates, and orders results as the ATen graph does."""

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
    """For each ATen result the Dynamo output or mutated input that it is; None when that is not the whole story."""
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
