"""Memory that a forward graph shares with its backward graph, and what both keep from one step of training to the next.

Large gradients are written to the memory of saved tensors after their last use (`plan-memory` gives them their places);
the forward graph allocates such tensors with the size of the gradients. Scratch memory, and results of the forward
graph to which no gradient is written, are not in use between two steps: the optimizer needs memory for its state and
its temporaries instead. This idle memory is freed after each step if the gradients are much larger. Otherwise the next
step would spend a larger part of its time on first writes to pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch.fx import GraphModule, Node

from buddy.compiler.frontend.strided_views import Runner
from buddy.compiler.runtime.buffers import MIN_POOLED_BYTES, Lend, WorkArena, releases_saved_tensors

# Idle memory is freed if the gradients have at least this multiple of its bytes. The first write to a page takes about
# as long as a few passes over it, and a step reads and writes each gradient several times.
_MIN_GRADIENTS_TO_IDLE = 4


@runtime_checkable
class GraphMemory(Protocol):
    """The planned memory of the inputs and results of a compiled graph."""

    def bytes_of_inputs(self) -> dict[int, int]:
        """Returns the bytes that inputs should have so that results can be written to them, by number of the input."""

    def result_bytes(self) -> dict[int, int]:
        """Returns the bytes of results that are tensors of their own, by position."""

    def reserve(self, position: int, size: int) -> None:
        """Makes the tensor at `position` of the results have at least `size` bytes of memory in later calls."""

    def free_after_use(self, position: int) -> None:
        """Makes later tensors at `position` of the results free their memory, instead of keeping it for reuse."""


@dataclass(frozen=True)
class ForwardGraph:
    """The callable of a forward graph, and its ATen graph."""

    run: object
    aten: GraphModule

    def result_names(self) -> list[str]:
        """Returns the names of the nodes that the graph returns; a constant result has the name ""."""
        (results,) = self.aten.graph.output_node().args
        assert isinstance(results, (list, tuple))
        return [node.name if isinstance(node, Node) else "" for node in results]


def share_memory(forward: ForwardGraph, backward: object, aten: GraphModule, scratch: WorkArena) -> None:
    """Sets the sizes of saved tensors and what is freed after each step, once both graphs are compiled.

    `aten` is the graph of `backward`; its inputs have the names of saved tensors. `scratch` is the arena of both.
    Does nothing if a graph runs in eager.
    """
    if not isinstance(forward.run, GraphMemory) or not isinstance(backward, GraphMemory):
        return
    positions = _positions_of_saved_tensors(forward.result_names(), aten)
    sizes = {positions[number]: size for number, size in backward.bytes_of_inputs().items() if number in positions}
    for position, size in sizes.items():
        forward.run.reserve(position, size)
    # Results of the program are idle between steps, too, unless it keeps them.
    idle = {
        position: size
        for position, size in forward.run.result_bytes().items()
        if size >= MIN_POOLED_BYTES and position not in sizes
    }
    idle_bytes = scratch.size + sum(idle.values())
    if 0 < idle_bytes * _MIN_GRADIENTS_TO_IDLE <= sum(backward.result_bytes().values()):
        scratch.free_after_calls()
        for position in idle:
            forward.run.free_after_use(position)


def _positions_of_saved_tensors(results: Sequence[str], backward: GraphModule) -> dict[int, int]:
    """Returns the position of each saved tensor in the forward graph's `results`, by its number among the inputs.

    These are the inputs of `backward`.
    """
    inputs = [node.name for node in backward.graph.nodes if node.op == "placeholder"]
    return {number: results.index(name) for number, name in enumerate(inputs) if results.count(name) == 1}


def lend_saved_tensors(run: Runner, lend: Lend) -> Runner:
    """Returns a function that calls `run`, a backward graph, with a list of arguments, whose memory `lend` lends."""

    def call(arguments: list[Any]) -> Any:
        # AOTAutograd has released the saved tensors: from here on, only `inputs` refers to them.
        inputs = tuple(arguments)
        arguments.clear()
        lent = lend(inputs, is_released=True) if releases_saved_tensors() else None
        if lent is None:
            return run(*inputs)
        with lent:
            return run(*inputs)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
