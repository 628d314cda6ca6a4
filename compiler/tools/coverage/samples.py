"""PyTorch's operator database, its operators and dtypes, the Core ATen list, and gradients of a sample's results."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from buddy.compiler.frontend.aten import default_decompositions, target_key
from buddy.compiler.frontend.complex_numbers import RULES
from buddy.compiler.frontend.distributions import RULES as OF_RANDOM_BITS
from buddy.compiler.frontend.graph_splitter import BETWEEN
from buddy.compiler.graph.node import default_ops_map
from buddy.compiler.ops import registries
from buddy.compiler.tools.coverage.plan import CoreOp, CoveragePlan, OpDtypePair

# Stands for the rules of `frontend/complex_numbers` in the list of registries.
_BY_PARTS = "complex numbers"


def core_ops() -> list[CoreOp]:
    """Each overload with our registries that lower its class, or the rules for complex numbers.

    Without either, whether it is decomposed. A number read out of a tensor is read at a graph break.

    Overloads that write to their arguments are functionalized, since graphs contain no others.
    """
    classes, found, rules = default_ops_map(), registries(), default_decompositions()
    ops = []
    for op in _overloads():
        seen = _functional(op)
        cls = classes.get(target_key(seen))
        lowered = tuple(name for name, registry in found.items() if cls is not None and cls.__name__ in registry)
        if not lowered and op in RULES and op not in rules:
            lowered = (_BY_PARTS,)
        if op is torch.ops.aten._local_scalar_dense.default:
            lowered = (BETWEEN,)
        decomposed = seen in rules or seen in OF_RANDOM_BITS or _is_composite(seen)
        why = "" if cls is None or lowered or seen in OF_RANDOM_BITS else cls.only_eager
        ops.append(CoreOp(target_key(op), lowered, not lowered and decomposed, why))
    return ops


def _functional(op: Any) -> Any:
    """The overload that replaces a mutating one in graphs; other overloads are returned unchanged."""
    if not op._schema.is_mutable:
        return op
    name = op._schema.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, f"{name}_functional", None)
    overload = op._overloadname.removesuffix("out").removesuffix("_") or "default"
    return getattr(packet or getattr(torch.ops.aten, name), overload, op)


def _is_composite(op: Any) -> bool:
    """Whether PyTorch itself expresses it by other ops, or by its argument's sizes, before capture."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"))


def _overloads() -> Iterator[Any]:
    for name in sorted(dir(torch.ops.aten)):
        packet = getattr(torch.ops.aten, name)
        if isinstance(packet, torch._ops.OpOverloadPacket):
            overloads = (getattr(packet, overload) for overload in packet.overloads())
            yield from (op for op in overloads if torch.Tag.core in op.tags)


SEED = 0


class Gradients(NamedTuple):
    """One dense tensor for each leaf; `any` says whether some result depends on some leaf."""

    tensors: tuple[torch.Tensor, ...]
    any: bool


def leaves_of(arguments: Any) -> list[torch.Tensor]:
    """The tensors in a nest of arguments whose gradients are wanted."""
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def differentiate(results: Any, leaves: Sequence[torch.Tensor]) -> Gradients:
    """The gradients of `leaves`, of a nest of results of a call that autograd has followed.

    Autograd says None of a leaf that results do not depend on, or gives zeros, which is the same: it is zeros here.
    The strides of gradients are nobody's promise, so all are contiguous.
    """
    wanted, seeds = [], []
    for number, result in enumerate(tree_leaves(results)):
        if isinstance(result, torch.Tensor) and result.requires_grad:
            chance = torch.Generator().manual_seed(SEED + number)
            wanted.append(result)
            seeds.append(torch.randn(result.shape, dtype=result.dtype, generator=chance))
    found = torch.autograd.grad(wanted, leaves, seeds, allow_unused=True) if wanted and leaves else [None] * len(leaves)
    made = [
        torch.zeros_like(leaf) if gradient is None else gradient for leaf, gradient in zip(leaves, found, strict=True)
    ]
    dense = [gradient.to_dense() if gradient.layout != torch.strided else gradient for gradient in made]
    return Gradients(
        tuple(gradient.detach().contiguous() for gradient in dense), any(gradient is not None for gradient in found)
    )


@dataclass(frozen=True)
class SampleCall:
    """One call of a sample: `function(*args, **kwargs)`; `text` says what distinguishes it.

    Of a call whose gradients are wanted, those of `differentiable(result)` are: OpInfo's choice where an op's results
    are not unique, as the signs of eigenvectors are not. `writes` says that the function writes to its first argument.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    text: str
    differentiable: Callable[[Any], Any] = lambda result: result
    writes: bool = False

    def fresh(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A copy of the arguments; strides and sharing of memory between them are preserved."""
        return copy.deepcopy((self.args, self.kwargs))

    def argued(self, given: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments that `function` takes: `given`, with a copy of a leaf of autograd that it writes to, since
        eager allows no writing to leaves.
        """
        (first, *others), kwargs = given
        return (tree_map_only(torch.Tensor, torch.clone, first) if self.writes else first, *others), kwargs


@lru_cache(maxsize=1)
def database() -> dict[str, Any]:
    """PyTorch's `OpInfo`s by full name (`linalg.norm`, or `div.floor_rounding` for a variant)."""
    from torch.testing._internal import common_methods_invocations

    # Random operators are wrapped to seed themselves, which Dynamo cannot trace; here every program is seeded anyway.
    common_methods_invocations.wrapper_set_seed = _unseeded
    return {entry.full_name: entry for entry in common_methods_invocations.op_db}


def _unseeded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def pairs(plan: CoveragePlan) -> list[OpDtypePair]:
    """All pairs that `plan` selects, before sharding, in alphabetical order."""
    wanted = [(name, torch_dtype(name)) for name in plan.dtypes]
    return [
        OpDtypePair(name, dtype)
        for name, entry in sorted(database().items())
        if plan.wants(name)
        for dtype, found in wanted
        if found in entry.supported_dtypes("cpu") and (not plan.backward or _has_gradients(entry, found))
    ]


def _has_gradients(entry: Any, dtype: torch.dtype) -> bool:
    return bool(entry.supports_autograd) and dtype in entry.supported_backward_dtypes("cpu")


def torch_dtype(name: str) -> torch.dtype:
    """Raises `ValueError` for an unknown dtype."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")
    return found


def calls(pair: OpDtypePair, limit: int, backward: bool = False) -> list[SampleCall]:
    """At most `limit` distinct calls of a pair that eager can answer, and its in-place form once, where it has one.

    With `backward` they are calls that have gradients, and eager computes these too.
    """
    entry, dtype = database()[pair.op], torch_dtype(pair.dtype)
    _seed()
    distinct: dict[str, SampleCall] = {}
    in_place: list[SampleCall] = []
    writes = entry.inplace_variant if not backward or entry.supports_inplace_autograd else None
    for sample in entry.sample_inputs("cpu", dtype, requires_grad=backward):
        args, kwargs = tree_map_only(torch.Tensor, _as_leaf, ((sample.input, *sample.args), dict(sample.kwargs)))
        call = SampleCall(entry.op, args, kwargs, _described(sample), sample.output_process_fn_grad)
        if distinct.setdefault(call.text, call) is call and writes and not sample.broadcasts_input:
            in_place.append(replace(call, function=writes, text=f"in place {call.text}", writes=backward))
    found = _answered(_spread(list(distinct.values())), limit, backward)
    return found + _answered(in_place[:8], 1, backward)


def _as_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that autograd has no history of, which alone can be copied."""
    return tensor if tensor.is_leaf else tensor.detach().requires_grad_()


def _seed() -> None:
    import numpy

    random.seed(SEED)
    numpy.random.seed(SEED)
    torch.manual_seed(SEED)


def _answered(candidates: Iterable[SampleCall], limit: int, backward: bool) -> list[SampleCall]:
    """The first `limit` calls that eager answers, and with `backward` has gradients of."""
    found: list[SampleCall] = []
    for call in candidates:
        if len(found) == limit:
            break
        given = call.fresh()
        try:
            with torch.set_grad_enabled(backward):
                args, kwargs = call.argued(given)
                result = call.function(*args, **kwargs)
            if backward and not differentiate(call.differentiable(result), leaves_of(given)).any:
                continue
        except Exception:
            continue
        found.append(call)
    return found


def _spread(found: Sequence[SampleCall]) -> list[SampleCall]:
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
