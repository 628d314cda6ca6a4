"""Decompositions that plug-ins register, by target. Imports neither torch nor MLIR: capture resolves the targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Rule = TypeVar("Rule", bound=Callable[..., Any])

_RULES: dict[str, Callable[..., Any]] = {}


def decomposition(*targets: str) -> Callable[[Rule], Rule]:
    """Registers the decorated function as the decomposition of the ops `targets` on capture, before all other rules.

    Targets are spelled as in an op class: ATen's without `aten.`, others in full, such as `"demo.squareplus.default"`.
    The function takes the op's arguments, including tensors, and returns its results in terms of other ops, or
    `NotImplemented` for a case that it does not handle.
    """

    def decorate(rule: Rule) -> Rule:
        for target in targets:
            _RULES[target] = rule
        return rule

    return decorate


def registered() -> dict[str, Callable[..., Any]]:
    """Returns the decompositions of plug-ins, by target."""
    return dict(_RULES)
