"""Decompositions that others register, by target. Neither torch nor MLIR: capture looks the targets up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Rule = TypeVar("Rule", bound=Callable[..., Any])

_RULES: dict[str, Callable[..., Any]] = {}


def decomposition(*targets: str) -> Callable[[Rule], Rule]:
    """Register the decorated function as what the ops `targets` are captured as, before all other rules.

    Targets are spelled as in an op class: ATen's without `aten.`, others whole, such as `"demo.squareplus.default"`.
    The function takes the op's arguments, tensors among them, and returns its results in terms of other ops, or
    `NotImplemented` for a case that it leaves alone.
    """

    def decorate(rule: Rule) -> Rule:
        for target in targets:
            _RULES[target] = rule
        return rule

    return decorate


def registered() -> dict[str, Callable[..., Any]]:
    return dict(_RULES)
