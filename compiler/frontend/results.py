"""From what compiled code computes to what a graph returns: repeated results, views, inputs, numbers, strides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from buddy.compiler.frontend.convert import Conversion
from buddy.compiler.graph.operation import Op, PlaceholderOp
from buddy.compiler.graph.sizes import Dim, Size, product, value_of

Strides = tuple[Dim, ...] | None


@dataclass(frozen=True)
class _Computed:
    """Result number `index` of the compiled program."""

    index: int


@dataclass(frozen=True)
class _Input:
    index: int


@dataclass(frozen=True)
class _View:
    """A view of an input or a computed result, `offset` elements behind where that one begins."""

    base: _Input | _Computed
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class Results:
    """The results of a converted graph. Of `conversion.graph` those are left to return that have to be computed.

    Raises `UnsupportedGraphError` for strides that no input tells.
    """

    def __init__(self, conversion: Conversion) -> None:
        graph, nodes = conversion.graph, dict(zip(conversion.graph.body, conversion.fx_nodes, strict=True))
        values = {op: nodes[op].meta.get("val") for op in (*graph.placeholders, *graph.results) if isinstance(op, Op)}
        inputs = graph.placeholders[: len(graph.placeholders) - len(conversion.constants)]
        bases = _bases([*inputs, *(op for op in graph.results if isinstance(op, Op))], values)
        computed = list(dict.fromkeys(op for op in graph.results if isinstance(op, Op) and _is_own(op, bases, values)))
        known = {op: _Input(i) for i, op in enumerate(graph.placeholders)} | {
            op: _Computed(i) for i, op in enumerate(computed)
        }
        self._plan = [
            _source(result, bases, values, known) if isinstance(result, Op) else result for result in graph.results
        ]
        self._strides = [_needed(conversion.strides(nodes[op]), op.tensor_meta.shape) for op in computed]
        graph.output._arguments = [tuple(computed)]

    def given(
        self, computed: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], symbols: Mapping[str, int]
    ) -> list[Any]:
        """What the graph returns in a call on `inputs`, where compiled code gave `computed`."""
        laid_out = [_with_strides(t, strides, symbols) for t, strides in zip(computed, self._strides, strict=True)]

        def pick(source: Any) -> Any:
            if isinstance(source, _View):
                base = pick(source.base)
                return base.as_strided(source.shape, source.strides, base.storage_offset() + source.offset)
            if isinstance(source, Size):
                return value_of(source, symbols)
            if isinstance(source, _Computed):
                return laid_out[source.index]
            return inputs[source.index] if isinstance(source, _Input) else source

        return [pick(source) for source in self._plan]


# ---- who shares memory with whom -------------------------------------------------------------------------------------


def _bases(candidates: Sequence[Op], values: Mapping[Op, Any]) -> dict[int, Op]:
    """By storage, the first of `candidates` that fills it: the others there are views of that one."""
    found: dict[int, Op] = {}
    for op in candidates:
        key = _storage(values[op])
        if key is not None and (isinstance(op, PlaceholderOp) or _fills(values[op])):
            found.setdefault(key, op)
    return found


def _storage(value: Any) -> int | None:
    """Which memory a tensor of fixed sizes lies in."""
    if not isinstance(value, torch.Tensor) or not all(isinstance(n, int) for n in (*value.shape, *value.stride())):
        return None
    return int(value.untyped_storage()._cdata)


def _fills(value: torch.Tensor) -> bool:
    """Whether every element of the storage is one of the tensor's, and only once."""
    expected = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return expected * value.element_size() == value.untyped_storage().nbytes()


def _is_own(op: Op, bases: Mapping[int, Op], values: Mapping[Op, Any]) -> bool:
    """Whether a result has to be computed: it is no input, and no view of an input or of another result."""
    return not isinstance(op, PlaceholderOp) and _base(op, bases, values) is None


def _base(op: Op, bases: Mapping[int, Op], values: Mapping[Op, Any]) -> Op | None:
    key = _storage(values[op])
    base = None if key is None else bases.get(key)
    return base if base is not None and base is not op and values[base].dtype == values[op].dtype else None


def _source(
    op: Op, bases: Mapping[int, Op], values: Mapping[Op, Any], known: Mapping[Op, _Input | _Computed]
) -> _Input | _Computed | _View:
    if op in known:
        return known[op]
    base, value = bases[_storage(values[op])], values[op]  # type: ignore[index]
    offset = value.storage_offset() - values[base].storage_offset()
    return _View(known[base], tuple(value.shape), tuple(value.stride()), offset)


# ---- strides ---------------------------------------------------------------------------------------------------------


def _needed(strides: Sequence[Dim], shape: Sequence[Dim]) -> Strides:
    moving = [
        (stride, size, product(shape[i + 1 :])) for i, (stride, size) in enumerate(zip(strides, shape, strict=True))
    ]
    if 0 in shape or all(stride == dense or size == 1 for stride, size, dense in moving):
        return None
    return tuple(strides)


def _with_strides(tensor: torch.Tensor, strides: Strides, symbols: Mapping[str, int]) -> torch.Tensor:
    wanted = None if strides is None else tuple(value_of(stride, symbols) for stride in strides)
    if wanted is None or wanted == tensor.stride():
        return tensor
    # An expanded dim is one element, seen from every position.
    once = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in wanted)]
    return torch.empty_strided(once.shape, wanted, dtype=tensor.dtype).copy_(once).expand(tensor.shape)
