"""Frames that request a comparison of every node with eager, and its report."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from buddy.compiler.protocol.connection import Frame, Request
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.run_report import InputChoice

# Where a node's value is. "observed": the value is in memory anyway. "fused": it is never in memory, because the
# node is fused into its users. "materialised": it was written to memory for the comparison, which changes the program.
# "folded": a graph pass has removed the node.
ValueState = Literal["observed", "fused", "materialised", "folded"]
Reference = Literal["eager", "float64"]


class Deviation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The error of a tensor with respect to its reference, over elements where both are finite.

    `largest` is the greatest absolute difference, `relative` the root mean square of the differences divided by that of
    the reference. `of_tolerance` is the greatest ratio of a difference to its tolerance (an upper bound if it is below
    1). It is -1 if an infinity or a NaN of one tensor is not matched by the same value in the other; `largest` and
    `relative` are then 0. `where` is the first index out of tolerance. `nans` and `infs` are the numbers of NaN and
    infinite elements of the tensor.
    """

    largest: float = 0.0
    relative: float = 0.0
    of_tolerance: float = 0.0
    nans: int = 0
    infs: int = 0
    where: str = ""

    @property
    def ok(self) -> bool:
        return 0.0 <= self.of_tolerance <= 1.0

    @property
    def matches_nonfinite(self) -> bool:
        """Whether both tensors have the same infinities and NaNs."""
        return self.of_tolerance >= 0.0


class NodeNumbers(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node's errors.

    `error` is the error of its value in the compiled program. `own_error` is its error if it is compiled alone and runs
    on the reference's inputs. An error that was not measured is `None`; `why` is the reason why `own_error` was not
    measured, if known. `nans` and `infs` are the numbers of NaN and infinite elements of the reference. `precision` is
    the reduced precision in which the node multiplies, or "".

    Errors are differences from the reference. If reduced precisions contribute to a value, `of_tolerance` of its error
    comes from a comparison with the same arithmetic in PyTorch, and `tolerance` mentions this.
    """

    node: str
    value_state: ValueState
    error: Deviation | None = None
    own_error: Deviation | None = None
    tolerance: str = ""
    nans: int = 0
    infs: int = 0
    why: str = ""
    precision: str = ""

    @property
    def ok(self) -> bool:
        return (self.error is None or self.error.ok) and (self.own_error is None or self.own_error.ok)


class NanOrigin(msgspec.Struct, frozen=True):
    """The first node whose result has a NaN or an infinity (`kind`), in the compiled program or in eager (`side`).

    Nodes that get it from an input of the graph are skipped. If there are no others, `node` is the first of them, and
    `from_graph_input` is true.
    """

    kind: Literal["nan", "inf"]
    side: Literal["compiled", "eager"]
    node: str
    from_graph_input: bool = False


class NumericsReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Every node of a graph compared with the reference.

    `first` is the first node out of tolerance. `first_by` is "own" if its `own_error` is out of tolerance, or "error".
    `suspects` are the unobserved nodes between `first` and the observed nodes before it. `results` are the nodes that
    the graph returns. `seconds` is the duration of the comparison, including the runs of the compiled program and the
    reference; `compile_seconds` is the time to compile the programs for it.
    """

    graph: int
    reference: Reference
    nodes: tuple[NodeNumbers, ...]
    first: str = ""
    first_by: Literal["", "own", "error"] = ""
    suspects: tuple[str, ...] = ()
    origins: tuple[NanOrigin, ...] = ()
    results: tuple[str, ...] = ()
    seconds: float = 0.0
    compile_seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def compared(self) -> int:
        """The number of nodes with an error of either kind."""
        return sum(numbers.error is not None or numbers.own_error is not None for numbers in self.nodes)

    @property
    def ok(self) -> bool:
        """Whether something was compared, and all of it is within its tolerance."""
        return not self.first and self.compared > 0

    def by_node(self) -> dict[str, NodeNumbers]:
        return {numbers.node: numbers for numbers in self.nodes}


class NodeUse(NamedTuple):
    """A node that a program computes: the FX names of its inputs, and its results.

    A result is its stable name, and its index in the node's tuple of results: -1 for a single result.
    """

    inputs: tuple[str, ...]
    results: tuple[tuple[str, int], ...]


class NodeProgram(msgspec.Struct, frozen=True):
    """The artifact of a node that was compiled alone, and `uses`: all equal nodes of the captured graph.

    If the nodes only move elements (`moves`), their results are not rounded, so they must be exact.
    """

    artifact: bytes
    uses: tuple[NodeUse, ...]
    moves: bool = False


class ObservedProgram(msgspec.Struct, frozen=True):
    """The instrumented program, and each node compiled alone.

    `recipe` is the recipe of the instrumented program; `value_states`, `why` (the reason why a node is not compiled
    alone) and `precisions` (the reduced precision in which a node multiplies) are keyed by stable name. `seconds` is
    the time of all compilations.
    """

    recipe: Recipe
    artifact: bytes
    value_states: dict[str, ValueState]
    node_programs: tuple[NodeProgram, ...] = ()
    why: dict[str, str] = {}
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    precisions: dict[str, str] = {}


class CompareNodes(Request["NodesCompared"], frozen=True):
    """Compile a recipe to a program that reports the values of its nodes, and compare each value with the reference.

    Answered by `Progress`, then `NodesCompared` or `Failed`. The compilation on the screen is not replaced. With
    `every`, also fused values are written to memory and compared; with `own_errors`, each node is also compiled alone.
    The comparison, including compilation, is stopped after `timeout` seconds.
    """

    recipe: Recipe
    reference: Reference = "eager"
    own_errors: bool = True
    every: bool = False
    timeout: float = 600.0
    inputs: InputChoice = InputChoice()


class NodesCompared(Frame, frozen=True):
    """The comparison of every node with the reference."""

    request: int
    report: NumericsReport
