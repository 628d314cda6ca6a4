"""Lists the operators and dtypes of PyTorch's operator database with their samples, and the overloads of Core ATen."""

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
    """Each overload of Core ATen with the registries here that lower its class, or the rules for complex numbers.

    For other overloads, the entry says whether they are decomposed; numbers are read out of tensors at graph breaks.
    An overload that writes to its arguments stands for its functional form, since graphs are functional.
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
    """Whether PyTorch itself decomposes the overload, or computes it from its argument's sizes, before capture."""
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
    """The tensors in nested arguments that require gradients."""
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def differentiate(results: Any, leaves: Sequence[torch.Tensor]) -> Gradients:
    """The gradients of `leaves` from nested `results` that autograd has recorded.

    For a leaf on which no result depends, autograd returns None or zeros; here it is zeros. Strides of gradients are
    unspecified, so all gradients are made contiguous.
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
    """One call of a sample: `function(*args, **kwargs)`; `text` describes its arguments.

    Gradients are those of `differentiable(result)`: OpInfo selects the part of a result that is unique, for example
    without the signs of eigenvectors. `writes` says that the function writes to its first argument.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    text: str
    differentiable: Callable[[Any], Any] = lambda result: result
    writes: bool = False

    def copy_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A copy of the arguments; strides and sharing of memory between them are preserved."""
        return copy.deepcopy((self.args, self.kwargs))

    def prepare(self, given: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to pass to `function`: `given`, with a copy of a tensor that `function` writes to.

        Eager does not allow writes to leaves of autograd's graph.
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
    """The dtype of that name. Raises `ValueError` for an unknown one."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")
    return found


def calls(pair: OpDtypePair, limit: int, backward: bool = False) -> list[SampleCall]:
    """At most `limit` distinct calls of a pair that eager accepts, and one call of its in-place form if it has one.

    With `backward`, the calls have gradients, and eager can compute them.
    """
    entry, dtype = database()[pair.op], torch_dtype(pair.dtype)
    _seed()
    distinct: dict[str, SampleCall] = {}
    in_place: list[SampleCall] = []
    writes = entry.inplace_variant if not backward or entry.supports_inplace_autograd else None
    for sample in entry.sample_inputs("cpu", dtype, requires_grad=backward):
        args, kwargs = tree_map_only(torch.Tensor, _as_leaf, ((sample.input, *sample.args), dict(sample.kwargs)))
        call = SampleCall(entry.op, args, kwargs, _describe(sample), sample.output_process_fn_grad)
        if distinct.setdefault(call.text, call) is call and writes and not sample.broadcasts_input:
            in_place.append(replace(call, function=writes, text=f"in place {call.text}", writes=backward))
    found = _select_answered(_spread_out(list(distinct.values())), limit, backward)
    return found + _select_answered(in_place[:8], 1, backward)


def _as_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without autograd history, since only such tensors can be copied."""
    return tensor if tensor.is_leaf else tensor.detach().requires_grad_()


def _seed() -> None:
    import numpy

    random.seed(SEED)
    numpy.random.seed(SEED)
    torch.manual_seed(SEED)


def _select_answered(candidates: Iterable[SampleCall], limit: int, backward: bool) -> list[SampleCall]:
    """The first `limit` calls that eager accepts; with `backward`, those whose gradients eager computes."""
    found: list[SampleCall] = []
    for call in candidates:
        if len(found) == limit:
            break
        given = call.copy_arguments()
        try:
            with torch.set_grad_enabled(backward):
                args, kwargs = call.prepare(given)
                result = call.function(*args, **kwargs)
            if backward and not differentiate(call.differentiable(result), leaves_of(given)).any:
                continue
        except Exception:
            continue
        found.append(call)
    return found


def _spread_out(found: Sequence[SampleCall]) -> list[SampleCall]:
    """Reorders the calls so that any prefix is spread over the list: first, last, the middle, the quarters."""
    order, step = [0, len(found) - 1], len(found)
    while step > 1:
        step = (step + 1) // 2
        order += range(step, len(found), step)
    return [found[i] for i in dict.fromkeys(order) if 0 <= i < len(found)]


def _describe(sample: Any) -> str:
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
