"""Base class of convolution kernels: reads of factors, and positions of results."""

from __future__ import annotations

from typing import Any

from buddy.compiler.mlir.bindings import vector
from buddy.compiler.passes.kernels.arithmetic import converted
from buddy.compiler.passes.kernels.conv.shape import Convolution
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter
from buddy.compiler.passes.kernels.epilogue import KernelResults, Place


class ConvKernel:
    """One convolution of the flat image `a` by the packed weights `b`. Offsets are in elements."""

    def __init__(self, e: KernelEmitter, a: Any, b: Any, results: KernelResults, conv: Convolution) -> None:
        self.e, self.a, self.b, self.results, self.conv = e, a, b, results, conv
        self.vector, self.lanes = results.vector, results.lanes

    def emit(self) -> None:
        raise NotImplementedError

    def advance(self, place: Place, **steps: Index) -> Place:
        """Returns `place` advanced along the loops that `steps` names: `line`, `pixel` or `column`, the last one."""
        numbers = {"line": -3, "pixel": -2, "column": -1}
        for name, index in steps.items():
            place = self.results.advance(place, numbers[name], index)
        return place

    def element(self, offset: Index) -> Any:
        """Loads an element of the image into every lane."""
        element = converted(self.e.load_scalar(self.a, offset), self.vector.element_type, self.conv.unsigned[0])
        return vector.broadcast(self.vector, element)

    def factors(self, flat: Any, offset: Index, active: int | None = None) -> Any:
        """Loads a vector of the image or of the weights."""
        unsigned = self.conv.unsigned[0 if flat == self.a else 1]
        return converted(self.e.load(flat, offset, self.lanes, active), self.vector.element_type, unsigned)
