"""A graph that a script has imported, with the tensors of its placeholders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

import torch

from buddy.compiler.frontend.random_numbers import new_seed
from buddy.compiler.frontend.trace import Trace
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.types import GraphError
from buddy.compiler.protocol.presets import default_recipe, unpacked
from buddy.compiler.runtime.captured import CapturedGraph

Program = Callable[[Sequence[torch.Tensor]], list[Any]]


class Imported:
    """`graph` has its parameters first, then its buffers and constants, then its inputs as `arguments` names them.

    Tensors are associated with placeholders, not with positions, so a script may delete or move placeholders.
    """

    def __init__(self, captured: CapturedGraph, arguments: Sequence[str] = ()) -> None:
        self.graph: Graph = captured.graph
        assert captured.eager is not None, "what TorchDynamo captures has PyTorch to compute it"
        self._eager = captured.eager
        self._captured = list[Op](self.graph.placeholders)
        self._tensors = dict(zip(self._captured, captured.tensors, strict=True))
        self._seed = None if captured.seed is None else self._captured[captured.seed]
        first = {self._captured[position] for position in captured.parameters}
        inputs = {op: _place(op, arguments) for op in self.graph.inputs}
        places = {op: (2, *inputs[op]) if op in inputs else (op not in first,) for op in self._captured}
        self.graph.body = sorted(self.graph.body, key=lambda op: places.get(op, (3,)))

    def state(self) -> list[torch.Tensor]:
        """The tensors of `graph.params`, in order.

        Raises `GraphError` for a parameter that a script has added, since its value is unknown.
        """
        for op in self.graph.params:
            if op not in self._tensors:
                raise GraphError(
                    f"unknown value of {op.name} · graph {self.graph.name}, a parameter that was not "
                    "captured · run graph.compile() and pass all tensors yourself"
                )
        return [self._tensors[op] for op in self.graph.params]

    def all_tensors(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors of all placeholders, in order, from a call with only the inputs, or with everything.

        A missing seed of random numbers is drawn from PyTorch's default generator. Raises `ValueError` for another
        number of tensors.
        """
        inputs, everything = len(self.graph.inputs), len(self.graph.placeholders)
        if self._seed in self.graph.inputs and len(given) in (inputs - 1, everything - 1):
            place = len(given) + 1 - inputs + self.graph.inputs.index(self._seed)
            given = [*given[:place], new_seed(), *given[place:]]
        if len(given) not in (inputs, everything):
            raise ValueError(
                f"{len(given)} tensors were given; the graph takes {inputs} inputs, or {everything} with its state"
            )
        tensors = given if len(given) == everything else [*self.state(), *given]
        placed = dict(zip([*self.graph.params, *self.graph.inputs], tensors, strict=True))
        return [placed[op] for op in self.graph.placeholders]

    def eager(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Runs the captured graph in eager PyTorch. Later rewrites of the graph preserve its meaning."""
        placed = self._tensors | dict(zip(list[Op](self.graph.placeholders), tensors, strict=True))
        return self._eager([placed[op] for op in self._captured])

    def compiled(self, first: Any, trace: Trace) -> Program:
        """The graph in its current state, compiled; `first` is a registry with priority over all others.

        Each call may pass other tensors, and the captured ones may be written to, so no weight is packed ahead.
        """
        from buddy.compiler.driver.compile_graph import compile_graph
        from buddy.compiler.runtime import LoadedProgram

        self.graph.check()
        traced = trace.added_to(self.graph)
        recipe = unpacked(default_recipe(dialect=self.graph.settings.dialect))
        program = LoadedProgram(compile_graph(traced, recipe, first))
        return lambda tensors: trace.taken_off(program(tensors))


def argument_order(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a call's arguments inside `function`, in the order of the call."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        bound = signature(called).bind_partial(*args).arguments
    except (TypeError, ValueError):
        return tuple(kwargs)
    return (*bound, *kwargs)


def _place(op: Op, arguments: Sequence[str]) -> tuple[int, ...]:
    """The position of an input in the call: the number of its argument, then the indices within it.

    TorchDynamo orders inputs by their first use. Inputs that it does not attribute to an argument come last.
    """
    name, *path = op.stable.split(".")
    number = arguments.index(name) if name in arguments else len(arguments)
    return (number, *(int(part) for part in path if part.isdigit()))


class Params(Mapping[Graph, list[torch.Tensor]]):
    """The parameters and buffers of each imported graph in its current state."""

    def __init__(self, imported: Mapping[Graph, Imported]) -> None:
        self._imported = imported

    def __getitem__(self, graph: Graph) -> list[torch.Tensor]:
        return self._imported[graph].state()

    def __iter__(self) -> Iterator[Graph]:
        return iter(self._imported)

    def __len__(self) -> int:
        return len(self._imported)
