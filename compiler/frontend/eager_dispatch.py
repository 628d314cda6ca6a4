"""Overrides decompositions of PyTorch that differ from eager, where a table of decompositions cannot.

For some ops, the Python dispatcher gives a kernel of PyTorch in Python priority over any table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from buddy.compiler.frontend import formulas, linear_algebra, recurrent_layers, resampling

# The dispatch keys whose kernels decompose an op; the kernels of other keys only compute shapes.
_DECOMPOSING_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
# Rules with priority over PyTorch's own, by overload.
_RULES: dict[Any, Sequence[Callable[..., Any]]] = {
    **formulas.DISPATCHER_RULES,
    **linear_algebra.DISPATCHER_RULES,
    **recurrent_layers.DISPATCHER_RULES,
    **resampling.DISPATCHER_RULES,
}


@contextmanager
def dispatch_like_eager() -> Iterator[None]:
    """Makes tracing in the `with` block use `_RULES` in place of PyTorch's own rules, which differ from eager."""
    original = [(overload, key, rule) for overload in _RULES for key, rule in overload.py_kernels.items()]
    without_rule = [overload for overload in _RULES if not overload.py_kernels]
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    try:
        for overload in without_rule:
            kernel = partial(overload._op_dk, composite)  # PyTorch's own, in C++
            _install_kernel(overload, composite, _try_candidates(kernel, _RULES[overload]))
        for overload, key, rule in original:
            if key in _DECOMPOSING_KEYS:
                _install_kernel(overload, key, _try_candidates(rule, _RULES[overload]))
        yield
    finally:
        for overload, key, rule in original:
            _install_kernel(overload, key, rule)
        for overload in without_rule:
            overload.py_kernels.clear()
            overload._dispatch_cache.clear()


def _install_kernel(overload: torch._ops.OpOverload, key: torch.DispatchKey, rule: Callable[..., object]) -> None:
    """Makes `rule` the kernel of an overload for a dispatch key."""
    overload.py_kernels[key] = rule
    overload._dispatch_cache.clear()


def _try_candidates(rule: Callable[..., object], candidates: Sequence[Callable[..., object]]) -> Callable[..., object]:
    """Returns a rule that tries `candidates` in order, and calls `rule` if all of them return `NotImplemented`."""

    def dispatch(x: torch.Tensor, *rest: object, **kwargs: object) -> object:
        results = (candidate(x, *rest, **kwargs) for candidate in candidates)
        result = next((item for item in results if item is not NotImplemented), NotImplemented)
        return rule(x, *rest, **kwargs) if result is NotImplemented else result

    return dispatch
