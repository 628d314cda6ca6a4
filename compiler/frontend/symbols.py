"""Torch's symbolic sizes as the Buddy graph's own: `SymInt` to `Size`, symbols named `s0`, `s1`, … by their inputs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Node

from buddy.compiler.graph.sizes import Dim, SymbolSource, inexact, symbol


class UnknownSymbolError(ValueError):
    """A size that no input tells, or an expression that a `Size` cannot say."""


class Symbols:
    """The symbols of one graph. `sources` say where a call finds their values, in the order of their names."""

    def __init__(self, placeholders: Iterable[Node]) -> None:
        self._names: dict[str, str] = {}
        self._found: dict[str, SymbolSource] = {}
        numbers = 0
        for node in placeholders:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                for dim, size in enumerate(value.shape):
                    self._bind(size, node.name, dim)
            elif value is not None:
                self._bind(value, "", numbers)
                numbers += 1

    @property
    def sources(self) -> tuple[SymbolSource, ...]:
        return tuple(self._found.values())

    def _bind(self, size: Any, node: str, index: int) -> None:
        """A dim of a tensor is the better source: whoever has the tensors then needs no numbers."""
        expression = _expression(size)
        if type(expression).__name__ != "Symbol":
            return
        name = self._names.setdefault(str(expression), f"s{len(self._names)}")
        known = self._found.get(name)
        if known is None or (node and not known.node):
            self._found[name] = SymbolSource(name, node, index)

    def size(self, value: Any) -> Dim:
        """A number, or a `SymInt` in terms of the graph's own symbols.

        Raises `UnknownSymbolError` for a size that depends on data, and for functions that sizes here do not have.
        """
        if isinstance(value, int):
            return value
        return self._converted(_expression(value))

    def _converted(self, expression: Any) -> Dim:
        kind = type(expression).__name__
        if expression.is_Integer:
            return int(expression)
        if kind == "Symbol":
            if str(expression) not in self._names:
                raise UnknownSymbolError(f"the size {expression}, which no input tells")
            return symbol(self._names[str(expression)])
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
    """What stands behind a size: sympy's expression, or the number."""
    return size.node.expr if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) else size
