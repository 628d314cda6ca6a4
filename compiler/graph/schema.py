"""What PyTorch says of the arguments and results of an ATen op, as plain data: it travels with a graph.

A node says only what its call said. Who makes the call again in another form (`ops.torch_mlir`) needs the arguments
that were left out, and the type that each is taken as.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Parameter(msgspec.Struct, frozen=True):
    """A parameter by name. `type` is as torch spells it (`Tensor`, `Optional[int]`, `List[float]`, `number`)."""

    name: str
    type: str
    default: Any = None


class Schema(msgspec.Struct, frozen=True):
    """The parameters in order, and the types of the results."""

    parameters: tuple[Parameter, ...]
    results: tuple[str, ...]

    def arguments(self, args: list[Any], kwargs: dict[str, Any]) -> list[tuple[Any, str]]:
        """Every argument of a call with its type, those that the call left out by their defaults."""
        given = dict(zip((parameter.name for parameter in self.parameters), args, strict=False)) | kwargs
        return [(given.get(p.name, p.default), p.type) for p in self.parameters]
