"""A captured graph with its inputs and the eager program to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from buddy.compiler.graph.graph import Graph
from buddy.compiler.protocol import GraphInfo
from buddy.compiler.protocol.imported_ir import GivenIR

if TYPE_CHECKING:
    from buddy.compiler.runtime.sensitivity import Spread

Eager = Callable[[Sequence[torch.Tensor]], list[Any]]


@dataclass
class CapturedGraph:
    """One graph of a program.

    `tensors` are its inputs in placeholder order; parameters share the model's memory. `eager(tensors)` returns the
    graph's results, in order, without writing to `tensors`; `None` if there is nothing to compare with. `table` is the
    FX graph as `print_tabular` prints it, `code` as Python text. `timed(tensors)` is the eager program to time, if that
    is not `eager`: with PyTorch's own random ops, for a graph that generates its random numbers from placeholder
    `seed`. `parameters` are the positions of `nn.Parameter`s among `tensors`. `numbers` are the other arguments, such
    as symbolic sizes. `first()` returns the script's own lowerings, which are searched before all registries,
    `torch_dialect()` imports the graph by torch-mlir; `None` for a part of a captured graph. `runtime.sensitivity`
    caches `spreads`.
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
    torch_dialect: Callable[[], GivenIR] | None = None
    timed: Eager | None = None
    seed: int | None = None
    spreads: tuple[Spread, ...] | None = field(default=None, init=False)
