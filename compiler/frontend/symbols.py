"""Converts torch's symbolic sizes to the Buddy graph's: `SymInt` to `Size`, symbols named `s0`, `s1`, … by their
inputs.

Symbols that may be negative, such as numbers among the inputs, are named `i0`, `i1`, ….
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from buddy.compiler.graph.sizes import SIGNED, Dim, SymbolSource, inexact, symbol


class UnknownSymbolError(ValueError):
    """A size that is not determined by inputs, or an expression that `Size` does not support."""


class GraphSymbols:
    """The symbols of one graph. `sources` say where a call finds their values, in the order of their names.

    A number among the inputs that is not determined by others, such as a rounded float, is a separate symbol.
    """

    def __init__(self, placeholders: Iterable[Node]) -> None:
        self._names: dict[str, str] = {}
        self._found: dict[str, SymbolSource] = {}
        self._defined: dict[str, Dim] = {}
        values = [(node.name, node.meta.get("val")) for node in placeholders]
        # A dim of a tensor is the better source: it is never negative, and available from the tensors alone.
        for name, value in values:
            for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                self._bind(size, name, dim)
        numbers = [value for _, value in values if value is not None and not isinstance(value, torch.Tensor)]
        for place, number in enumerate(numbers):
            self._bind(number, "", place)
        for place, number in enumerate(numbers):
            if isinstance(number, torch.SymInt) and not self._tells(number):
                self._name(number, "", place)

    @property
    def sources(self) -> tuple[SymbolSource, ...]:
        return tuple(self._found.values())

    def _bind(self, size: Any, node: str, index: int) -> None:
        expression = _expression(size)
        if type(expression).__name__ == "Symbol" and str(expression) not in self._names:
            self._name(size, node, index)

    def _tells(self, size: torch.SymInt) -> bool:
        try:
            self.size(size)
        except UnknownSymbolError:
            return False
        return True

    def _name(self, size: Any, node: str, index: int) -> None:
        expression = _expression(size)
        counted = node or (isinstance(size, torch.SymInt) and statically_known_true(size >= 0))
        name = self._names[str(expression)] = f"{'s' if counted else SIGNED}{len(self._names)}"
        self._found[name] = SymbolSource(name, node, index)

    def define(self, size: Any, value: Dim) -> None:
        """Defines a torch symbol that is not determined by inputs."""
        expression = _expression(size)
        if type(expression).__name__ == "Symbol" and str(expression) not in self._names:
            self._defined[str(expression)] = value

    def size(self, value: Any) -> Dim:
        """A number, or a `SymInt` in terms of the graph's own symbols.

        Raises `UnknownSymbolError` for a data-dependent size, and for functions that `Size` does not support.
        """
        if isinstance(value, int):
            return value
        return self._converted(_expression(value))

    def _converted(self, expression: Any) -> Dim:
        kind = type(expression).__name__
        if expression.is_Integer:
            return int(expression)
        if str(expression) in self._names:
            return symbol(self._names[str(expression)])
        if str(expression) in self._defined:
            return self._defined[str(expression)]
        if kind == "Symbol":
            raise UnknownSymbolError(f"the size {expression}, which no input tells")
        if kind == "Pow" and expression.exp.is_Integer and expression.exp > 0:
            return functools.reduce(operator.mul, [self._converted(expression.base)] * int(expression.exp))
        if kind not in _FUNCTIONS:
            raise UnknownSymbolError(f"the size {expression}")
        return functools.reduce(_FUNCTIONS[kind], [self._converted(part) for part in expression.args])


_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Mul": operator.mul,
    "FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv,
    "Mod": operator.mod, "PythonMod": operator.mod,
    "Max": functools.partial(inexact, "max"), "Min": functools.partial(inexact, "min"),
}  # fmt: skip


def _expression(size: Any) -> Any:
    """The sympy expression of a size, or the number."""
    return size.node.expr if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) else size
