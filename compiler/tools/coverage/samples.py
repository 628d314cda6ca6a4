"""Lists the operators and dtypes of PyTorch's operator database with their samples, and the overloads of Core ATen."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from buddy.compiler.frontend.aten import default_decompositions, target_key
from buddy.compiler.frontend.complex_numbers import RULES
from buddy.compiler.frontend.distributions import DISTRIBUTION_RULES
from buddy.compiler.frontend.graph_splitter import BETWEEN
from buddy.compiler.graph.node import default_ops_map
from buddy.compiler.ops import registries
from buddy.compiler.tools.coverage.session import CoreOp, CoveragePlan, OpDtypePair

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput


# The name of the rules of `frontend/complex_numbers` in lists of registries.
_COMPLEX_RULES = "complex numbers"


def core_ops() -> list[CoreOp]:
    """Returns an entry for each overload of Core ATen, with the registries here that lower its op class.

    The rules for complex numbers, and the code between graphs that reads numbers out of tensors, count as registries.
    For other overloads, the entry says whether they are decomposed. For an overload that writes to its arguments, the
    entry is that of the functional overload that replaces it in graphs.
    """
    classes, all_registries, decompositions = default_ops_map(), registries(), default_decompositions()
    entries = []
    for op in _core_overloads():
        functional = _functional_overload(op)
        op_class = classes.get(target_key(functional))
        lowered: tuple[str, ...] = ()
        if op_class is not None:
            lowered = tuple(name for name, registry in all_registries.items() if op_class.__name__ in registry)
        if not lowered and op in RULES and op not in decompositions:
            lowered = (_COMPLEX_RULES,)
        if op is torch.ops.aten._local_scalar_dense.default:
            lowered = (BETWEEN,)
        decomposed = functional in decompositions or functional in DISTRIBUTION_RULES or _is_composite(functional)
        eager_reason = "" if op_class is None or lowered or functional in DISTRIBUTION_RULES else op_class.only_eager
        entries.append(CoreOp(target_key(op), lowered, not lowered and decomposed, eager_reason))
    return entries


def _functional_overload(op: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """Returns the overload that replaces a mutating one in graphs; returns other overloads unchanged."""
    if not op._schema.is_mutable:
        return op
    name = op._schema.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, f"{name}_functional", None)  # of _native_batch_norm_legit
    overload = op._overloadname.removesuffix("out").removesuffix("_") or "default"
    return getattr(packet or getattr(torch.ops.aten, name), overload, op)


def _is_composite(op: torch._ops.OpOverload) -> bool:
    """Returns whether PyTorch itself decomposes the overload before capture, as a composite of other ops."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"))


def _core_overloads() -> Iterator[torch._ops.OpOverload]:
    for name in sorted(dir(torch.ops.aten)):
        packet = getattr(torch.ops.aten, name)
        if isinstance(packet, torch._ops.OpOverloadPacket):
            overloads = (getattr(packet, overload) for overload in packet.overloads())
            yield from (op for op in overloads if torch.Tag.core in op.tags)


# ---- calls and their gradients ---------------------------------------------------------------------------------------

# The seed of all random numbers of a check: of samples, programs and gradients.
SEED = 0


# The positional and the keyword arguments of a call.
CallArguments = tuple[tuple[Any, ...], dict[str, Any]]


class Gradients(NamedTuple):
    """The gradients: one dense tensor for each leaf; `any_depends` says whether any result depends on any leaf."""

    tensors: tuple[torch.Tensor, ...]
    any_depends: bool


def leaves_of(arguments: object) -> list[torch.Tensor]:
    """Returns the tensors in nested arguments that require gradients."""
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def differentiate(results: object, leaves: Sequence[torch.Tensor]) -> Gradients:
    """Returns the gradients of `leaves` for random gradients of nested `results`, which autograd has recorded.

    For a leaf on which no result depends, autograd returns `None` or zeros; here, the gradient is zeros. The strides of
    gradients are unspecified, so all gradients are made contiguous.
    """
    differentiable, result_gradients = [], []
    for number, result in enumerate(tree_leaves(results)):
        if isinstance(result, torch.Tensor) and result.requires_grad:
            generator = torch.Generator().manual_seed(SEED + number)
            differentiable.append(result)
            result_gradients.append(torch.randn(result.shape, dtype=result.dtype, generator=generator))
    gradients: Sequence[torch.Tensor | None] = [None] * len(leaves)
    if differentiable and leaves:
        gradients = torch.autograd.grad(differentiable, leaves, result_gradients, allow_unused=True)
    tensors = []
    for leaf, gradient in zip(leaves, gradients, strict=True):
        tensor = torch.zeros_like(leaf) if gradient is None else gradient
        tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
        tensors.append(tensor.detach().contiguous())
    return Gradients(tuple(tensors), any(gradient is not None for gradient in gradients))


@dataclass(frozen=True)
class SampleCall:
    """A call with the arguments of a sample: `function(*args, **kwargs)`; `text` describes the arguments.

    Gradients are computed of `differentiable(result)`, the part of a result that OpInfo defines as unique, for example
    without the signs of eigenvectors. With `writes`, the function writes to its first argument while autograd records,
    so `prepare` copies the argument before the call.
    """

    function: Callable[..., object]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    text: str
    differentiable: Callable[[object], object] = lambda result: result
    writes: bool = False

    def copy_arguments(self) -> CallArguments:
        """Returns a copy of the arguments with the same strides, which share memory as the arguments do."""
        return copy.deepcopy((self.args, self.kwargs))

    def prepare(self, arguments: CallArguments) -> CallArguments:
        """Returns `arguments`; with `writes`, the first is a copy, as autograd allows no writes to leaves."""
        (first, *others), kwargs = arguments
        if self.writes:
            first = tree_map_only(torch.Tensor, torch.clone, first)
        return (first, *others), kwargs


# ---- PyTorch's operator database -------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def op_infos() -> dict[str, OpInfo]:
    """Returns PyTorch's `OpInfo`s by full name (`linalg.norm`, or `div.floor_rounding` for a variant)."""
    from torch.testing._internal import common_methods_invocations

    # The wrapper of random operators seeds the generator, which Dynamo cannot trace. Every program is seeded anyway.
    common_methods_invocations.wrapper_set_seed = _unseeded
    return {op_info.full_name: op_info for op_info in common_methods_invocations.op_db}


def _unseeded(function: Callable[..., object], *args: object, **kwargs: object) -> object:
    return function(*args, **kwargs)


def list_pairs(plan: CoveragePlan) -> list[OpDtypePair]:
    """Returns all pairs that `plan` selects, before sharding, in alphabetical order."""
    dtypes = [(name, torch_dtype(name)) for name in plan.dtypes]
    return [
        OpDtypePair(name, dtype_name)
        for name, op_info in sorted(op_infos().items())
        if plan.selects(name)
        for dtype_name, dtype in dtypes
        if dtype in op_info.supported_dtypes("cpu") and (not plan.backward or _has_gradients(op_info, dtype))
    ]


def _has_gradients(op_info: OpInfo, dtype: torch.dtype) -> bool:
    return bool(op_info.supports_autograd) and dtype in op_info.supported_backward_dtypes("cpu")


def torch_dtype(name: str) -> torch.dtype:
    """Returns the dtype called `name`. Raises `ValueError` for an unknown one."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")
    return dtype


# The maximum number of calls of an in-place form that are tried to find one that eager accepts.
_MAX_IN_PLACE_TRIES = 8


def accepted_calls(pair: OpDtypePair, limit: int, backward: bool = False) -> list[SampleCall]:
    """Returns at most `limit` distinct calls of a pair that eager accepts, and one of its in-place form if it has one.

    With `backward`, returns only calls whose gradients eager computes.
    """
    op_info, dtype = op_infos()[pair.op], torch_dtype(pair.dtype)
    _seed()
    distinct: dict[str, SampleCall] = {}
    in_place: list[SampleCall] = []
    in_place_form = op_info.inplace_variant if not backward or op_info.supports_inplace_autograd else None
    for sample in op_info.sample_inputs("cpu", dtype, requires_grad=backward):
        args, kwargs = tree_map_only(
            torch.Tensor, _without_history, ((sample.input, *sample.args), dict(sample.kwargs))
        )
        call = SampleCall(op_info.op, args, kwargs, _describe(sample), sample.output_process_fn_grad)
        is_new = distinct.setdefault(call.text, call) is call
        if is_new and in_place_form and not sample.broadcasts_input:
            in_place.append(replace(call, function=in_place_form, text=f"in place {call.text}", writes=backward))
    accepted = _select_accepted(_spread_out(list(distinct.values())), limit, backward)
    return accepted + _select_accepted(in_place[:_MAX_IN_PLACE_TRIES], 1, backward)


def _without_history(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor without autograd history, because a tensor with one cannot be copied."""
    return tensor if tensor.is_leaf else tensor.detach().requires_grad_()


def _seed() -> None:
    import numpy

    random.seed(SEED)
    numpy.random.seed(SEED)
    torch.manual_seed(SEED)


def _select_accepted(candidates: Iterable[SampleCall], limit: int, backward: bool) -> list[SampleCall]:
    """Returns the first `limit` calls that eager accepts; with `backward`, those whose gradients eager computes."""
    accepted: list[SampleCall] = []
    for call in candidates:
        if len(accepted) == limit:
            break
        arguments = call.copy_arguments()
        try:
            with torch.set_grad_enabled(backward):
                args, kwargs = call.prepare(arguments)
                result = call.function(*args, **kwargs)
            if backward and not differentiate(call.differentiable(result), leaves_of(arguments)).any_depends:
                continue
        except Exception:
            continue
        accepted.append(call)
    return accepted


def _spread_out(calls: Sequence[SampleCall]) -> list[SampleCall]:
    """Reorders the calls so that any prefix is spread over the list: first, last, the middle, the quarters."""
    order, step = [0, len(calls) - 1], len(calls)
    while step > 1:
        step = (step + 1) // 2
        order += range(step, len(calls), step)
    return [calls[i] for i in dict.fromkeys(order) if 0 <= i < len(calls)]


def _describe(sample: SampleInput) -> str:
    """Returns the shapes, dtypes, layouts and plain values of a sample; samples with equal texts are duplicates."""
    arguments = [_describe_value(value) for value in (sample.input, *sample.args)]
    arguments += [f"{key}={_describe_value(value)}" for key, value in sample.kwargs.items()]
    return f"({', '.join(arguments)})"


def _describe_value(value: object) -> str:
    text = str(tree_map_only(torch.Tensor, _TensorDescription, value))
    return text if len(text) < 200 else text[:197] + "..."


class _TensorDescription:
    """Prints the properties of a tensor that matter to a compiler."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = "x".join(map(str, tensor.shape)) or "scalar"
        self._text = f"{size} {str(tensor.dtype).removeprefix('torch.')}"
        if tensor.layout != torch.strided:
            self._text += f" {tensor.layout}"
        elif not tensor.is_contiguous():
            self._text += f" strides {tuple(tensor.stride())}"
        if tensor.is_conj() or tensor.is_neg():  # conjugated or negated when read
            self._text += " lazy"

    def __repr__(self) -> str:
        return self._text
