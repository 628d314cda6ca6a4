"""What comparing every node with eager gave, as plain values that frames carry. Neither torch nor MLIR."""

from __future__ import annotations

from typing import Literal

import msgspec

from buddy.compiler.protocol.recipe import Recipe

# How a node's value came to be seen: it lies in memory as the program is; it is in none, being fused into what reads
# it; it was put into memory to be seen, which makes the program another one; a graph pass has taken the node out.
Seen = Literal["observed", "fused", "materialised", "folded"]
Reference = Literal["eager", "float64"]


class Deviation(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a tensor is from the one it should be, over elements where both are finite.

    `largest` is the greatest absolute difference, `relative` the root mean square of the differences over that of the
    reference. `share` is the greatest difference as a share of what is tolerated (an upper bound where it is below 1),
    -1 where an element is infinite or NaN on one side alone; `where` is the first index beyond it. `nans` and `infs`
    are those of the tensor.
    """

    largest: float = 0.0
    relative: float = 0.0
    share: float = 0.0
    nans: int = 0
    infs: int = 0
    where: str = ""

    @property
    def ok(self) -> bool:
        return 0.0 <= self.share <= 1.0


class NodeNumbers(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node's errors: `error` of its value in the compiled program, `own` of the node alone on the reference's inputs.

    Either is absent where it was not measured; `why` says why `own` was not. `nans` and `infs` are the reference's.
    """

    node: str
    seen: Seen
    error: Deviation | None = None
    own: Deviation | None = None
    tolerance: str = ""
    nans: int = 0
    infs: int = 0
    why: str = ""

    @property
    def ok(self) -> bool:
        return (self.error is None or self.error.ok) and (self.own is None or self.own.ok)


class NanOrigin(msgspec.Struct, frozen=True):
    """The first node whose result has a NaN, or an infinity, while nothing that it reads has one."""

    kind: Literal["nan", "inf"]
    side: Literal["compiled", "eager"]
    node: str
    inputs_have: bool = False


class NumericsReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Every node of a graph beside the reference.

    `first` is the first node that leaves its tolerance, `first_by` whether by its own error or by what has come to it;
    `suspects` are the nodes fused into it whose values nobody sees. `results` are the nodes that the graph returns.
    `seconds` is what the comparison took, compiled program and reference included; `compile_seconds` what making the
    programs for it took. `peak` is in bytes, on top of weights and inputs; 0 where it was not asked for.
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
        """How many nodes have a value that was held beside the reference."""
        return sum(found.error is not None or found.own is not None for found in self.nodes)

    @property
    def ok(self) -> bool:
        """Whether something was compared, and all of it is within its tolerance."""
        return not self.first and self.compared > 0

    def by_node(self) -> dict[str, NodeNumbers]:
        return {found.node: found for found in self.nodes}


class OwnProgram(msgspec.Struct, frozen=True):
    """A node compiled alone: an artifact, which of the captured graph's values it takes, and which it gives.

    `uses` has an entry for each node that it stands for: the names of the inputs, and stable names of the results with
    their number in the node's tuple of results, -1 where it gives a single one. What only `moves` elements does so
    whatever they are.
    """

    artifact: bytes
    uses: tuple[tuple[tuple[str, ...], tuple[tuple[str, int], ...]], ...]
    moves: bool = False


class ObservedProgram(msgspec.Struct, frozen=True):
    """The compiled program with what shows its values, and each node compiled alone.

    `recipe` is the one that it was compiled by; `seen` and `why` (no program of its own) are by stable name.
    """

    recipe: Recipe
    artifact: bytes
    seen: dict[str, Seen]
    own: tuple[OwnProgram, ...] = ()
    why: dict[str, str] = {}
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
