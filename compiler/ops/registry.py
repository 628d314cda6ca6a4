"""`Registry`, the type of each module's `ops_registry`: maps op class names to lowerings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from buddy.compiler.graph.node import Op
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops.utils import SymbolTable

# What a lowering returns: a value, an op with its results, or a value per result; `None` for a result without one.
Results = ir.Value | ir.Operation | Sequence[ir.Value | None]
Lowering = Callable[[Op, SymbolTable], Results]


class Registry(dict[str, Lowering]):
    """Lowerings by op class name.

    A lowering takes a node and the symbol table, and returns an MLIR value, an op, or a list of values.
    `absence_reasons` maps op class names to the reason why the dialect has no lowering of them, which the table of
    nodes shows.
    """

    def __init__(self, *registries: dict[str, Lowering]) -> None:
        """Makes a registry with the lowerings of `registries`, without their `absence_reasons`."""
        super().__init__()
        self.absence_reasons: dict[str, str] = {}
        for registry in registries:
            self.update(registry)

    def lowering(self, *names: str) -> Callable[[Lowering], Lowering]:
        """Registers the decorated function as the lowering of the op classes `names`."""

        def decorate(function: Lowering) -> Lowering:
            for name in names:
                self[name] = function
            return function

        return decorate

    def absence_reason(self, name: str) -> str:
        """Returns the reason why the registry has no lowering of the op class `name`."""
        return self.absence_reasons.get(name, f"no lowering of {name}")
