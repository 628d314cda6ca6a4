"""Extensions of capture: installed plug-ins, and decompositions, whose errors only affect their op."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache, wraps
from traceback import extract_tb
from typing import Any

import torch

from buddy.compiler.graph import decompositions, plugins


@lru_cache(maxsize=1)
def load_plugins() -> None:
    """Loads the plug-ins of installed packages, once per process, with a warning for each that fails."""
    for problem in plugins.plugin_problems(plugins.installed_plugins()):
        warnings.warn(str(problem), stacklevel=3)


def plugin_decompositions() -> dict[Any, Callable[..., Any]]:
    """The registered rules by overload; a rule for an op that is not defined yet is left out."""
    found = ((_overload(target), rule) for target, rule in decompositions.registered().items())
    return {overload: _guarded(overload, rule) for overload, rule in found if overload is not None}


def _overload(target: str) -> Any:
    """`add.Tensor` and `aten.add.Tensor` are ATen's; another namespace must be given."""
    namespace, name, overload = target.split(".") if target.count(".") == 2 else ("aten", *target.partition(".")[::2])
    return getattr(getattr(getattr(torch.ops, namespace), name, None), overload or "default", None)


def _guarded(overload: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    """`rule`, which leaves the op unchanged if it raises."""

    @wraps(rule)
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        try:
            return rule(*args, **kwargs)
        except Exception as error:
            frame = extract_tb(error.__traceback__)[-1]
            said = f"raised {type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
            warnings.warn(f"the decomposition of {overload} {_where(rule)} {said}", stacklevel=2)
            return NotImplemented

    return decomposed


def _where(rule: Callable[..., Any]) -> str:
    """The location of a function; for any other callable, such as a `partial`, its repr."""
    code = getattr(rule, "__code__", None)
    return f"at {code.co_filename}:{code.co_firstlineno}" if code else repr(rule)
