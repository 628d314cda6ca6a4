"""A captured graph with its inputs and the eager program to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from buddy.compiler.graph.graph import Graph
from buddy.compiler.protocol import GraphInfo
from buddy.compiler.protocol.plain_values import ImportedIR
from buddy.compiler.runtime.graph_interpreter import compute_results

if TYPE_CHECKING:
    from buddy.compiler.ops.utils import Registry


# Runs a program in eager: takes the tensors of the graph's placeholders, and returns the graph's results.
Eager = Callable[[Sequence[torch.Tensor]], list[Any]]
# Returns the results on tensors, with random errors from a seed, and with the same errors of the opposite sign.
Disturbed = Callable[[Sequence[torch.Tensor], int], tuple[list[Any], list[Any]]]


class Spread(NamedTuple):
    """The size of the differences between two tensors: the maximum, the root mean square, and that of each slice.

    `slices` maps a dim to the root mean squares of the slices along it, as a tensor of the dim's size. Unless it
    `is_complete`, a spread may be too small: some ops do not support double precision, and were computed in the
    program's precision in both runs.
    """

    largest: float
    rms: float
    slices: Mapping[int, torch.Tensor] = {}
    is_complete: bool = True

    def maximum_with(self, other: Spread) -> Spread:
        """Returns the spread with the larger value of each measure."""
        slices = {dim: torch.maximum(rms, other.slices[dim]) for dim, rms in self.slices.items()}
        is_complete = self.is_complete and other.is_complete
        return Spread(max(self.largest, other.largest), max(self.rms, other.rms), slices, is_complete)


@dataclass
class CapturedGraph:
    """One graph of a program.

    `tensors` are its real inputs in placeholder order; parameters share the model's memory. `parameters` are the
    positions of `nn.Parameter`s among `tensors`. `numbers` are the arguments that are not tensors, such as sizes that
    no tensor's shape contains.

    `eager(tensors)` returns the graph's results, in order, without writing to `tensors`; if it is `None`, the graph has
    no reference. `eager_to_time(tensors)`, if given, is timed instead of `eager`: it uses PyTorch's own random ops,
    where the graph computes random numbers from a seed, which is placeholder `seed`.

    `result_names` are the names that the program gives its results, such as the keys of a dict that it returns;
    `names_of_results()` are these, or the nodes' names if the program gives none.

    `table` is the FX graph as `print_tabular` prints it, `code` as Python text. `user_lowerings()` returns the
    lowerings of the script, which have priority over all registries. `torch_dialect()` imports the graph by torch-mlir;
    it is `None` for a piece of a captured graph.

    `onnx_model` is the ONNX model that the graph was read from, with its weights as inputs; b"" for other programs.

    `disturbed(tensors, seed)` returns the results of two runs of the reference with random errors of the size of
    roundings. It is given for programs whose ops PyTorch does not have, and which round to integers.

    `precisions` are the reduced precisions of nodes, by stable name, if `eager` computes these nodes in them.

    The other fields are caches of `runtime.sensitivity`. `spreads` are those of the results, and `further_spreads`
    those of runs with random errors, by seed. `exact_results` are the results of a run in double precision that starts
    from the generator's state `random_state`; the list is empty until such a run is needed. If the program has
    `disturbed`, they are those of eager.
    """

    graph: Graph
    info: GraphInfo
    tensors: list[torch.Tensor]
    eager: Eager | None
    table: str = ""
    parameters: frozenset[int] = frozenset()
    numbers: tuple[Any, ...] = ()
    user_lowerings: Callable[[], Registry | None] = lambda: None
    code: str = ""
    torch_dialect: Callable[[], ImportedIR] | None = None
    eager_to_time: Eager | None = None
    seed: int | None = None
    result_names: tuple[str, ...] = ()
    precisions: Mapping[str, str] = field(default_factory=dict)
    onnx_model: bytes = b""
    disturbed: Disturbed | None = None
    spreads: tuple[Spread, ...] | None = field(default=None, init=False)
    further_spreads: dict[int, tuple[Spread, ...]] = field(default_factory=dict, init=False)
    exact_results: list[Any] = field(default_factory=list, init=False)
    random_state: torch.Tensor | None = field(default=None, init=False)

    def in_precisions(self, precisions: Mapping[str, str]) -> CapturedGraph:
        """Returns this program, with an eager program that computes nodes in `precisions` by reference arithmetic."""
        if not precisions or self.eager is None:
            return self
        graph, numbers = self.graph, self.numbers

        def eager(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            return compute_results(graph, tensors, numbers, precisions)

        return replace(self, eager=eager, precisions=precisions)

    def names_of_results(self) -> tuple[str, ...]:
        """Returns the name of each result of the graph, in order."""
        return self.result_names or tuple(map(str, self.graph.results))
