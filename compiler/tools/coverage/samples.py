"""PyTorch's operator database: its operators and dtypes, and a limited number of distinct calls of each."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from buddy.compiler.tools.coverage.plan import Pair, Plan

SEED = 0


@dataclass(frozen=True)
class Call:
    """One call of a sample: `function(*args, **kwargs)`; `text` describes it."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    text: str

    def fresh(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A copy of the arguments; strides and sharing of memory between them are preserved."""
        return copy.deepcopy((self.args, self.kwargs))


@lru_cache(maxsize=1)
def database() -> dict[str, Any]:
    """PyTorch's `OpInfo`s by full name (`linalg.norm`, or `div.floor_rounding` for a variant)."""
    from torch.testing._internal import common_methods_invocations

    # Random operators are wrapped to seed themselves, which Dynamo cannot trace; here every program is seeded anyway.
    common_methods_invocations.wrapper_set_seed = _unseeded
    return {entry.full_name: entry for entry in common_methods_invocations.op_db}


def _unseeded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def pairs(plan: Plan) -> list[Pair]:
    """All pairs that `plan` selects, before sharding, in alphabetical order."""
    wanted = [(name, torch_dtype(name)) for name in plan.dtypes]
    return [
        Pair(name, dtype)
        for name, entry in sorted(database().items())
        if plan.wants(name)
        for dtype, found in wanted
        if found in entry.supported_dtypes("cpu")
    ]


def torch_dtype(name: str) -> torch.dtype:
    """Raises `ValueError` for an unknown dtype."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")
    return found


def calls(pair: Pair, limit: int) -> list[Call]:
    """At most `limit` distinct calls of a pair that eager supports, and its in-place form once, if it has one."""
    entry, dtype = database()[pair.op], torch_dtype(pair.dtype)
    _seed()
    distinct: dict[str, Call] = {}
    in_place: list[Call] = []
    for sample in entry.sample_inputs("cpu", dtype, requires_grad=False):
        call = Call(entry.op, (sample.input, *sample.args), dict(sample.kwargs), _described(sample))
        if distinct.setdefault(call.text, call) is call and entry.inplace_variant and not sample.broadcasts_input:
            in_place.append(Call(entry.inplace_variant, call.args, call.kwargs, f"in place {call.text}"))
    found = _answered(_spread(list(distinct.values())), limit)
    return found + _answered(in_place[:8], 1)


def _seed() -> None:
    import numpy

    random.seed(SEED)
    numpy.random.seed(SEED)
    torch.manual_seed(SEED)


def _answered(candidates: Iterable[Call], limit: int) -> list[Call]:
    """The first `limit` calls that eager supports."""
    found: list[Call] = []
    for call in candidates:
        if len(found) == limit:
            break
        args, kwargs = call.fresh()
        try:
            with torch.no_grad():
                call.function(*args, **kwargs)
        except Exception:
            continue
        found.append(call)
    return found


def _spread(found: Sequence[Call]) -> list[Call]:
    """Reorders the calls so that any prefix is spread over the list: first, last, the middle, the quarters."""
    order, step = [0, len(found) - 1], len(found)
    while step > 1:
        step = (step + 1) // 2
        order += range(step, len(found), step)
    return [found[i] for i in dict.fromkeys(order) if 0 <= i < len(found)]


def _described(sample: Any) -> str:
    """Shapes, dtypes, layouts and plain values of a sample: samples with equal descriptions are duplicates."""
    parts = [sample.input, *sample.args]
    words = [_word(part) for part in parts] + [f"{key}={_word(value)}" for key, value in sample.kwargs.items()]
    return "(" + ", ".join(words) + ")"


def _word(value: Any) -> str:
    text = str(tree_map_only(torch.Tensor, _Shape, value))
    return text if len(text) < 200 else text[:197] + "..."


class _Shape:
    """The properties of a tensor that matter to a compiler."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = "x".join(map(str, tensor.shape)) or "scalar"
        self._text = f"{size} {str(tensor.dtype).removeprefix('torch.')}"
        if tensor.layout != torch.strided:
            self._text += f" {tensor.layout}"
        elif not tensor.is_contiguous():
            self._text += f" strides {tuple(tensor.stride())}"
        if tensor.is_conj() or tensor.is_neg():
            self._text += " lazy"

    def __repr__(self) -> str:
        return self._text
