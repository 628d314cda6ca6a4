"""Measures how much a program's results change when its ops round differently, and where NaN and infinity may differ.

Right results of code that rounds in another order may differ much, since random programs cancel and compare sums. So
eager runs a few times with the last bits of every float changed at random (stochastic arithmetic: J. Vignes, "A
stochastic arithmetic for reliable scientific computation", 1993). The allowed error of an element is a multiple of the
differences between these runs; integers and booleans that differ between them are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from buddy.compiler.runtime.compare import EXACT, TOLERANCES

_aten = torch.ops.aten
_ATTENTION = _aten._scaled_dot_product_flash_attention_for_cpu.default
# The gradient that these ops return at NaN in the vectorized loop of eager's kernels; the scalar loop returns the
# gradient of the op's result.
_VALUES_AT_NAN = {_aten.hardtanh_backward.default: 0.0, _aten.hardswish_backward.default: math.nan}
_TRANSFORMS = (_aten._fft_c2c.default, _aten._fft_r2c.default, _aten._fft_c2r.default)


def spread_nonfinite(
    func: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, object] | None,
    results: Any,
    generator: torch.Generator,
) -> None:
    """Changes `results`, those of `func`, in place and at random where another algorithm may return NaN.

    This concerns Fourier transforms, attention, and gradients of clamped numbers. Attention of a NaN query is NaN in
    most of PyTorch's kernels; the kernel for CPUs returns 0. The gradient at NaN depends on whether the vectorized or
    the scalar loop of a kernel computes an element. `generator` is not that of the program's random numbers.
    """
    if func in _TRANSFORMS:
        _spread_transform(func, args, results, generator)
    elif func == _ATTENTION and bool(torch.rand((), generator=generator) < 0.5):
        _spread_attention(args, kwargs or {}, results[0])
    elif func in _VALUES_AT_NAN:
        _spread_gradient(_VALUES_AT_NAN[func], args, results, generator)


def _spread_gradient(
    value: float, args: Sequence[torch.Tensor], results: torch.Tensor, generator: torch.Generator
) -> None:
    """Sets the gradients at NaN to `value` or to the gradient of the op's result, at random."""
    with torch.utils._python_dispatch._disable_current_modes():
        result_gradient, x = args[:2]
        chosen = torch.where(torch.rand(results.shape, generator=generator) < 0.5, result_gradient, value)
        results.copy_(torch.where(x.isnan(), chosen.to(results.dtype), results))


def _spread_attention(args: Sequence[Any], kwargs: Mapping[str, object], results: torch.Tensor) -> None:
    """Replaces the results by those of PyTorch's other kernel, if an input has NaN or infinity."""
    query, key, value, *other_arguments = args
    defaults: list[Any] = [0.0, False]
    dropout, is_causal = other_arguments + defaults[len(other_arguments) :]
    with torch.utils._python_dispatch._disable_current_modes():
        if not all(bool(tensor.isfinite().all()) for tensor in (query, key, value)):
            mask, scale = kwargs.get("attn_mask"), kwargs.get("scale")
            by_math = _aten._scaled_dot_product_attention_math
            results.copy_(by_math(query, key, value, mask, dropout, is_causal, None, scale=scale)[0])


def _spread_transform(
    func: torch._ops.OpOverload, args: Sequence[Any], results: Any, generator: torch.Generator
) -> None:
    """Sets the real and imaginary parts that another algorithm may make NaN to NaN or infinity, at random.

    By definition, a NaN or infinity in the input of a Fourier transform spreads to both parts of all its results.
    Algorithms leave out products with known zeros; which ones depends on how they factor the length. One part never
    changes: the imaginary part of results that are their own conjugates, in a transform of real numbers.
    """
    with torch.utils._python_dispatch._disable_current_modes():
        numbers, dims = args[0], args[1]
        has_nonfinite_input = (~numbers.isfinite()).sum(dims, keepdim=True).bool().expand(results.shape)
        parts = torch.view_as_real(results) if results.is_complex() else results
        if results.is_complex():
            has_nonfinite_input = torch.stack([has_nonfinite_input, has_nonfinite_input], -1)
        if func == _aten._fft_r2c.default:
            has_nonfinite_input[..., 1] &= ~_own_conjugates(numbers, results, dims)
        values = torch.where(torch.rand(parts.shape, generator=generator) < 0.5, math.nan, math.inf)
        parts.copy_(torch.where(has_nonfinite_input, values.to(parts.dtype), parts))


def _own_conjugates(numbers: torch.Tensor, results: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """Returns the mask of results that are their own conjugates: result k is the conjugate of result (n - k) mod n."""
    mask = torch.ones(results.shape, dtype=torch.bool)
    for dim in dims:
        along_dim = (2 * torch.arange(results.shape[dim])) % numbers.shape[dim] == 0
        mask &= along_dim.reshape([-1 if axis == dim % results.dim() else 1 for axis in range(results.dim())])
    return mask


# ---- runs with other roundings ---------------------------------------------------------------------------------------

# The number of runs with other roundings. If rounding decides between two equally likely results, all runs agree with
# the probability 2**(1 - PERTURBED_RUNS).
PERTURBED_RUNS = 6
# Therefore all runs agree on some elements that depend on rounding. The number of wrong elements may be this fraction
# of the number of elements that differ between the runs.
UNSEEN_SHARE = 1 / 8
# Each op's result moves by up to this many units in the last place of its largest elements: sums of a few hundred
# addends, and polynomial approximations of libm's functions, have errors of this size.
MAX_ULPS = 4.0
# The allowed error as a multiple of the greatest difference between the runs, which are a sample and not a bound.
SPREAD_MARGIN = 16.0


# The type of a program's arguments.
T = TypeVar("T")


class RecordedFloats(TorchDispatchMode):
    """Records a copy of every float tensor that an op returns, with the op."""

    def __init__(self) -> None:
        super().__init__()
        self.floats: list[tuple[torch._ops.OpOverload, torch.Tensor]] = []

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        results = func(*args, **(kwargs or {}))
        self.floats += [(func, leaf.clone()) for leaf in _new_floats(func, results)]
        return results


class PerturbedFloats(TorchDispatchMode):
    """Changes every float result of an op by a few units in its last place, except for views and empty tensors.

    `unperturbed` are the ops of an unperturbed run with their results: elements whose sign may differ between the runs
    are also set to 0 (`_cancel`). After the first op that differs, the program may have taken another branch, so the
    rest of `unperturbed` is ignored.
    """

    def __init__(self, generator: torch.Generator, unperturbed: Sequence[tuple[object, torch.Tensor]] = ()) -> None:
        super().__init__()
        self._generator, self._unperturbed = generator, iter(unperturbed)

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        results = func(*args, **(kwargs or {}))
        for leaf in _new_floats(func, results):
            perturb_tensor(leaf, self._generator)
            op, unperturbed = next(self._unperturbed, (None, leaf))
            if op == func and unperturbed.shape == leaf.shape:
                _cancel(leaf, unperturbed, self._generator)
            else:
                self._unperturbed = iter(())
        spread_nonfinite(func, args, kwargs, results, self._generator)
        return results


def _new_floats(func: torch._ops.OpOverload, results: object) -> Iterator[torch.Tensor]:
    """Yields the new float tensors that `func` returned, complex ones as real numbers; views are left out."""
    returns = func._schema.returns
    if returns and all(result.alias_info is None or result.alias_info.is_write for result in returns):
        for leaf in tree_leaves(results):
            if isinstance(leaf, torch.Tensor):
                yield from _floats_of(leaf)


def _floats_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields the tensor if it can be perturbed: if it has floats or complex numbers, and is not expanded."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_floating_point() and tensor.numel() and 0 not in tensor.stride():
        yield tensor


def perturb_tensor(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Changes the elements of a float tensor at random by a few units in the last place, in place.

    NaN gets a random sign, because IEEE 754 does not specify the sign of a computed NaN.
    """
    with torch.utils._python_dispatch._disable_current_modes():
        wide = tensor.double()
        finite = wide.isfinite()
        scale = wide[finite].square().mean().sqrt() if bool(finite.any()) else wide.new_zeros(())
        # Half of the change is relative to the element, half to the root mean square of all elements.
        max_move = torch.finfo(tensor.dtype).eps * MAX_ULPS * (wide.abs() + scale) / 2
        moved = wide + max_move * (2 * torch.rand(wide.shape, dtype=torch.float64, generator=generator) - 1)
        tensor.copy_(torch.where(finite, moved, wide))
        signs = torch.rand(wide.shape, generator=generator).to(tensor.dtype) - 0.5
        tensor.copy_(torch.where(tensor.isnan(), torch.copysign(tensor, signs), tensor))


def _cancel(tensor: torch.Tensor, unperturbed: torch.Tensor, generator: torch.Generator) -> None:
    """Sets elements whose sign rounding may change to 0, in place, with the probability 1/2.

    `unperturbed` are the elements before they were perturbed. Random last bits never cancel exactly, but sums in some
    order do.
    """
    with torch.utils._python_dispatch._disable_current_modes():
        wide = unperturbed.double()
        crosses = wide.abs() <= SPREAD_MARGIN * (tensor.double() - wide).abs()
        tensor.masked_fill_(crosses & (torch.rand(wide.shape, generator=generator) < 0.5), 0.0)


def run_perturbed(program: Callable[[T], object], make_arguments: Callable[[], T]) -> list[torch.Tensor]:
    """Returns the results of `PERTURBED_RUNS` runs of `program` with other roundings.

    `make_arguments` returns new, equal arguments for each run, because programs may write to them.
    """
    results, inputs = [], make_arguments()
    with RecordedFloats() as recorder:
        program(inputs)
    for seed in range(PERTURBED_RUNS):
        generator = torch.Generator().manual_seed(seed)
        inputs = make_arguments()
        for leaf in tree_leaves(inputs):
            if isinstance(leaf, torch.Tensor):
                for floats in _floats_of(leaf):
                    perturb_tensor(floats, generator)
        with PerturbedFloats(generator, recorder.floats):
            results.append(program(inputs))
    return results


# ---- comparison ------------------------------------------------------------------------------------------------------


def describe_difference(ours: object, eager: object, perturbed: Sequence[object]) -> str:
    """Returns a description of the first difference from eager that rounding does not explain, or "".

    `perturbed` are the results of `run_perturbed`.
    """
    perturbed_leaves = [tree_leaves(run) for run in perturbed]
    for number, (mine, other) in enumerate(zip(tree_leaves(ours), tree_leaves(eager), strict=True)):
        if isinstance(other, torch.Tensor) and other.numel():
            description = _first_difference(mine, other, [run[number] for run in perturbed_leaves])
            if description:
                return f"result {number}: {description}"
    return ""


def _first_difference(ours: torch.Tensor, eager: torch.Tensor, perturbed: Sequence[torch.Tensor]) -> str:
    """Returns a description of the first element of a tensor that rounding does not explain, or "".

    If rounding changes the shape or dtype of a result, no value of it counts as wrong.
    """
    if any(run.shape != eager.shape or run.dtype != eager.dtype for run in perturbed):
        return ""
    if eager.is_complex():
        ours, eager, *perturbed = (torch.view_as_real(tensor.resolve_conj()) for tensor in (ours, eager, *perturbed))
    compare = _compare_floats if eager.is_floating_point() else _compare_discrete
    wrong, depends_on_rounding = compare(ours, eager, perturbed)
    if int(wrong.sum()) <= UNSEEN_SHARE * int(depends_on_rounding.sum()):
        return ""
    index = tuple(int(position) for position in wrong.nonzero()[0])
    return f"{ours[index].item()!r} at {list(index)}, eager gives {eager[index].item()!r}"


def _compare_discrete(
    ours: torch.Tensor, eager: torch.Tensor, perturbed: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the mask of wrong integers and booleans, and the mask of those that depend on rounding."""
    depends_on_rounding = torch.zeros(eager.shape, dtype=torch.bool)
    for run in perturbed:
        depends_on_rounding |= run != eager
    return (ours != eager) & ~depends_on_rounding, depends_on_rounding


def _compare_floats(
    ours: torch.Tensor, eager: torch.Tensor, perturbed: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the mask of wrong floats, and the mask of those that depend on rounding.

    Those that depend on rounding differ between the runs by more than the tolerance, or are finite in some runs only.
    """
    tolerance = TOLERANCES.get(eager.dtype, EXACT)
    ours, theirs = ours.double(), eager.double()
    finite = theirs.isfinite()
    scale = theirs[finite].square().mean().sqrt().clamp(min=1.0) if bool(finite.any()) else 1.0
    allowed = tolerance.absolute * scale + tolerance.relative * theirs.abs()
    largest_change, changes_finiteness = torch.zeros_like(theirs), torch.zeros_like(finite)
    for run in (run.double() for run in perturbed):
        both_finite = run.isfinite() & finite
        largest_change = torch.where(both_finite, torch.maximum(largest_change, (run - theirs).abs()), largest_change)
        changes_finiteness |= ~both_finite & ~_equal_or_both_nan(run, theirs)
    near = finite & ((ours - theirs).abs() <= allowed + SPREAD_MARGIN * largest_change)
    wrong = ~changes_finiteness & ~near & ~_equal_or_both_nan(ours, theirs)
    return wrong, changes_finiteness | (largest_change > allowed)


def _equal_or_both_nan(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one == other) | (one.isnan() & other.isnan())
