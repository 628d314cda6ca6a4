"""PyTorch's schema of an ATen op as plain data, which the graph stores.

A node has only the arguments that were passed in its call. Conversion to the torch dialect (`ops.torch_mlir`) also
needs the omitted arguments, and the type of each.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Parameter(msgspec.Struct, frozen=True):
    """A parameter by name. `type` is spelled as in torch (`Tensor`, `Optional[int]`, `List[float]`, `number`)."""

    name: str
    type: str
    default: Any = None


class Schema(msgspec.Struct, frozen=True):
    """The parameters in order, and the types of the results."""

    parameters: tuple[Parameter, ...]
    results: tuple[str, ...]

    def arguments(self, args: list[Any], kwargs: dict[str, Any]) -> list[tuple[Any, str]]:
        """Returns every argument of a call with its type; omitted ones have their defaults."""
        passed = dict(zip((parameter.name for parameter in self.parameters), args, strict=False)) | kwargs
        return [(passed.get(p.name, p.default), p.type) for p in self.parameters]
