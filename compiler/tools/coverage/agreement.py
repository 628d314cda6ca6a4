"""Compares compiled code with eager: values, dtypes, shapes, strides, and the inputs after the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from buddy.compiler.runtime.compare import EXACT, TOLERANCES, Tolerance, compare

# Their elements are uninitialized in eager too: only dtype, shape and strides can be compared.
UNINITIALISED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_"}
)


def tolerance_of(entry: Any, dtype: torch.dtype) -> tuple[Tolerance, str]:
    """The tolerance for results of `dtype`, or OpInfo's if it declares a wider one for CPU, and its origin.

    OpInfo declares tolerances for tests that compare two ways to compute the same result (`TestCommon`), as is done
    here.
    """
    own = TOLERANCES.get(dtype, EXACT)
    declared = [
        rule.d[dtype]
        for info in entry.decorators
        if getattr(info, "cls_name", "") == "TestCommon" and getattr(info, "device_type", None) in (None, "cpu")
        for rule in info.decorators
        if type(rule).__name__ == "toleranceOverride" and dtype in rule.d
    ]
    if own == EXACT:
        return own, "torch.testing"
    wide = Tolerance(
        max([own.absolute, *(tol.atol for tol in declared)]), max([own.relative, *(tol.rtol for tol in declared)])
    )
    return wide, "OpInfo" if wide != own else "torch.testing"


Allowed = Callable[[torch.dtype], Tolerance]


def disagreement(ours: Any, theirs: Any, allowed: Allowed, values: bool = True) -> tuple[str, float]:
    """Describes the difference of two nested results, "" for none, and the largest absolute difference.

    `allowed` gives the tolerance of a result by its dtype.
    """
    left, right = tree_leaves(ours), tree_leaves(theirs)
    if len(left) != len(right):
        return f"{len(left)} results, eager gives {len(right)}", math.nan
    largest = 0.0
    for number, (mine, other) in enumerate(zip(left, right, strict=True)):
        text, error = _leaf(mine, other, allowed, values)
        largest = max(largest, error)
        if text:
            return (f"result {number}: {text}" if len(left) > 1 else text), error
    return "", largest


def _leaf(ours: Any, theirs: Any, allowed: Allowed, values: bool) -> tuple[str, float]:
    if not isinstance(theirs, torch.Tensor) or not isinstance(ours, torch.Tensor):
        same = type(ours) is type(theirs) and (ours == theirs or ours != ours)
        return ("" if same else f"{ours!r}, eager gives {theirs!r}"), 0.0
    for name in ("layout", "dtype", "shape"):
        if getattr(ours, name) != getattr(theirs, name):
            return f"{name} {getattr(ours, name)}, eager gives {getattr(theirs, name)}", math.nan
    if theirs.layout != torch.strided:
        ours, theirs = ours.to_dense(), theirs.to_dense()
    elif _is_dense(theirs) and _strides(ours) != _strides(theirs):
        return f"strides {ours.stride()} of {tuple(ours.shape)}, eager gives {theirs.stride()}", math.nan
    return _values(ours, theirs, allowed(theirs.dtype)) if values else ("", 0.0)


def _values(ours: torch.Tensor, theirs: torch.Tensor, tolerance: Tolerance) -> tuple[str, float]:
    one, other = (tensor.resolve_conj().resolve_neg() for tensor in (ours, theirs))
    report = compare("", one, other, tolerance, equal_nan=True)
    if report.verdict == "ok":
        return "", report.max_abs
    at = tuple(int(word) for word in report.where.strip("[]").split(",") if word.strip())
    return f"{ours[at].item()!r} at {report.where}, eager gives {theirs[at].item()!r}", report.max_abs


def _strides(tensor: torch.Tensor) -> list[int]:
    """The significant strides: those of dims with more than one element; none for empty tensors."""
    return [s for s, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1] if tensor.numel() else []


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without overlap: only then does eager choose the strides."""
    expected = 1
    dims = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1)
    for stride, size in dims:
        if stride != expected:
            return False
        expected *= size
    return True
