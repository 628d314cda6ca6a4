"""Calls of kernels in a module: one function per distinct kernel, packed weights, and the locations of both."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from buddy.compiler.mlir.bindings import func, ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.mlir.walk import unique_symbol
from buddy.compiler.passes.kernels.crossing import passed_values
from buddy.compiler.passes.kernels.packing import Packing
from buddy.compiler.passes.kernels.streamed import mark_streamed
from buddy.compiler.passes.kernels.weights import PackedWeights, Place

# (name, types of the operands) -> the function, emitted at the insertion point
Build = Callable[[str, Sequence[Any]], func.FuncOp]


class KernelCalls:
    """The kernels of one pass over `root`; with `pack_weights`, weights are packed outside of the call."""

    def __init__(self, root: Any, locations: LocationSets, pack_weights: bool) -> None:
        self.root, self.locations = root, locations
        self.packs = pack_weights
        self._weights = PackedWeights(root)
        self._functions: dict[Hashable, tuple[str, Any, list[Any]]] = {}  # name, function, locations of its calls
        self._packed_for: dict[Packing, list[Any]] = {}  # locations of the ops that read the packed weights

    def parameter(self, value: Any) -> Place | None:
        """Returns where `value` comes from, if it is an unmodified parameter; otherwise `None`."""
        return self._weights.parameter(value)

    def packed(self, place: Place, panels: Packing, location: Any) -> Any:
        """Returns the buffer for the weights at `place`, packed as `panels`."""
        assert self.packs, "only weights that can be packed outside of the call are parameters"
        self._packed_for.setdefault(panels, []).append(location)
        return self._weights.packed(place, panels)

    def streamed(self, place: Place) -> None:
        """Marks the weights at `place`, for the runner, as read sequentially and in place by a kernel."""
        mark_streamed(self._weights, place)

    def call(self, op: Any, key: Hashable, symbol: str, operands: Sequence[Any], location: Any, build: Build) -> None:
        """Calls, in front of `op`, the kernel for `key` and the types of `operands`."""
        types = [value.type for value in operands]
        whole = (key, tuple(str(type_) for type_ in types))
        if whole not in self._functions:
            name = unique_symbol(self.root, symbol)
            with ir.InsertionPoint(self.root.regions[0].blocks[0]), location:
                self._functions[whole] = (name, build(name, types), [])
        name, _, locations = self._functions[whole]
        locations.append(location)
        with ir.InsertionPoint(op), location:
            func.CallOp([], ir.FlatSymbolRefAttr.get(name), passed_values(operands))

    def called(self) -> dict[str, list[Any]]:
        """Returns the locations of the calls of each kernel."""
        return {name: list(locations) for name, _, locations in self._functions.values()}

    def finish(self) -> None:
        """Emits the packing functions, and sets the locations of shared functions to those of all their calls."""
        written = self._weights.finish()
        for _, function, locations in self._functions.values():
            self._locate(function, locations)
        for panels, functions in written.items():
            for function in functions:
                self._locate(function, self._packed_for[panels])

    def _locate(self, function: Any, locations: list[Any]) -> None:
        union = self.locations.union(locations)

        def place(op: Any) -> Any:
            op.location = union
            return ir.WalkResult.ADVANCE

        function.operation.walk(place)
