"""Statements of a random program: text made of the names of tensors that are there, tried in eager before it is taken.

The templates need not know which shapes and dtypes an op takes: what eager refuses is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

Environment = Mapping[str, Any]
Template = Callable[[st.DrawFn, Environment], str]


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_UNARY = _names(
    """
    neg abs exp log1p sqrt rsqrt sigmoid tanh relu sin cos floor ceil round trunc sign reciprocal square expm1 erf erfc
    atan asinh log log2 isnan isfinite signbit logical_not bitwise_not positive frac sgn
    """
)
_ACTIVATIONS = _names(
    """
    gelu silu elu leaky_relu hardswish hardsigmoid hardtanh mish softplus softsign logsigmoid relu6 tanhshrink selu
    """
)
_BINARY = _names(
    """
    add sub mul div maximum minimum pow atan2 fmod remainder hypot lt le gt ge eq ne logical_and logical_or logical_xor
    bitwise_and bitwise_or bitwise_xor floor_divide copysign fmax fmin true_divide
    """
)
_REDUCTIONS = _names("sum mean amax amin prod argmax argmin all any logsumexp nansum count_nonzero")
_PREDICATED = ("std", "var")
_SCANS = _names("softmax log_softmax cumsum cumprod sort argsort cummax logcumsumexp")
_DTYPES = ("float32", "float64", "int64", "int32", "bool", "bfloat16")
_SCALARS = ("2", "-1", "3", "0.5", "-1.5", "0", "1e-3")


def _any(draw: st.DrawFn, names: Environment) -> str:
    return str(draw(st.sampled_from(sorted(names))))


def _dim(draw: st.DrawFn, names: Environment, name: str) -> int:
    rank = names[name].dim()
    return int(draw(st.integers(-rank, rank - 1))) if rank else 0


def _unary(draw: st.DrawFn, names: Environment) -> str:
    if draw(st.booleans()):
        return f"torch.nn.functional.{draw(st.sampled_from(_ACTIVATIONS))}({_any(draw, names)})"
    return f"torch.{draw(st.sampled_from(_UNARY))}({_any(draw, names)})"


def _binary(draw: st.DrawFn, names: Environment) -> str:
    op, left = draw(st.sampled_from(_BINARY)), _any(draw, names)
    if draw(st.integers(0, 2)) == 0:
        return f"torch.{op}({left}, {draw(st.sampled_from(_SCALARS))})"
    return f"torch.{op}({left}, {_any(draw, names)})"


def _operators(draw: st.DrawFn, names: Environment) -> str:
    symbol = draw(st.sampled_from(("+", "-", "*", "/", "//", "%", "<", ">=", "==")))
    operands = [_any(draw, names), draw(st.sampled_from(_SCALARS))]
    left, right = operands if draw(st.booleans()) else operands[::-1]
    return f"{left} {symbol} {right}"


def _reduction(draw: st.DrawFn, names: Environment) -> str:
    name = _any(draw, names)
    op = draw(st.sampled_from(_REDUCTIONS))
    if draw(st.integers(0, 3)) == 0:
        return f"{name}.{op}()" if op != "logsumexp" else f"{name}.flatten().logsumexp(0)"
    keep = "" if op == "count_nonzero" else f", keepdim={draw(st.booleans())}"
    return f"{name}.{op}({_dim(draw, names, name)}{keep})"


def _deviation(draw: st.DrawFn, names: Environment) -> str:
    name, op = _any(draw, names), draw(st.sampled_from(_PREDICATED))
    correction = draw(st.integers(0, 1))
    return f"{name}.{op}({_dim(draw, names, name)}, correction={correction}, keepdim={draw(st.booleans())})"


def _scan(draw: st.DrawFn, names: Environment) -> str:
    name, op = _any(draw, names), draw(st.sampled_from(_SCANS))
    dim = _dim(draw, names, name)
    if op in ("sort", "argsort"):
        return f"{name}.{op}(dim={dim}, stable=True)" + ("[0]" if op == "sort" else "")
    return f"{name}.{op}({dim})" + ("[0]" if op == "cummax" else "")


def _view(draw: st.DrawFn, names: Environment) -> str:
    name = _any(draw, names)
    tensor, dim = names[name], _dim(draw, names, name)
    size = tensor.shape[dim] if tensor.dim() else 1
    start = draw(st.integers(0, max(0, size - 1)))
    return str(
        draw(
            st.sampled_from(
                (
                    f"{name}.flatten()",
                    f"{name}.unsqueeze({dim})",
                    f"{name}.squeeze()",
                    f"{name}.transpose({dim}, -1)",
                    f"{name}.transpose({dim}, 0).reshape(-1)",
                    f"{name}.reshape({size}, -1)",
                    f"{name}.reshape(-1, {size})",
                    f"{name}.narrow({dim}, {start}, {max(0, size - start)})",
                    f"{name}.select({dim}, {start})",
                    f"{name}[{start}:]",
                    f"{name}[..., ::2]",
                    f"{name}[:, {start}]",
                    f"{name}[None, ..., {start}:]",
                    f"{name}.expand(2, *{name}.shape)",
                    f"{name}.movedim(0, {dim})",
                    f"{name}.unfold({dim}, {min(2, size)}, 1)",
                    f"{name}.diagonal()",
                    f"{name}.chunk(2, {dim})[0]",
                    f"{name}.unbind({dim})[-1]",
                )
            )
        )
    )


def _move(draw: st.DrawFn, names: Environment) -> str:
    """What makes a new tensor of the elements of others."""
    name, other = _any(draw, names), _any(draw, names)
    dim, pad = _dim(draw, names, name), draw(st.integers(-1, 2))
    return str(
        draw(
            st.sampled_from(
                (
                    f"torch.cat([{name}, {other}], {dim})",
                    f"torch.cat([{name}, {name}, {name}], {dim})",
                    f"torch.stack([{name}, {other}], {dim})",
                    f"{name}.flip({dim})",
                    f"{name}.roll({pad}, {dim})",
                    f"{name}.repeat_interleave(2, {dim})",
                    f"{name}.tile(2)",
                    f"{name}.tril()",
                    f"{name}.triu({pad})",
                    f"torch.nn.functional.pad({name}, ({pad}, 1))",
                    f"torch.nn.functional.pad({name}, (1, {max(pad, 0)}), mode='reflect')",
                    f"{name}.contiguous()",
                    f"{name}.clone()",
                    f"torch.where({name} > 0, {name}, {other})",
                    f"{name}.masked_fill({name} < 0, 1)",
                    f"{name}.clamp(-1, 2)",
                    f"torch.full_like({name}, 3)",
                    f"torch.arange({name}.shape[{dim}])",
                    f"torch.outer({name}.flatten()[:9], {other}.flatten()[:9])",
                )
            )
        )
    )


def _index(draw: st.DrawFn, names: Environment) -> str:
    name, other = _any(draw, names), _any(draw, names)
    tensor, dim = names[name], _dim(draw, names, name)
    size = tensor.shape[dim] if tensor.dim() else 1
    within = f"({other}.nan_to_num().abs().clamp(max=99).long() % {max(1, size)})"
    return str(
        draw(
            st.sampled_from(
                (
                    f"{name}.index_select({dim}, {within}.flatten()[:9])",
                    f"{name}.gather({dim}, {within})",
                    f"{name}[{within}]",
                    f"{name}.take_along_dim({within}, {dim})",
                    f"torch.nn.functional.embedding({within}, {name})",
                    f"{name}.scatter({dim}, {within}, 1)",
                    f"{name}.index_fill({dim}, {within}.flatten()[:9], 2)",
                    f"torch.bucketize({name}, torch.arange(-3.0, 4.0))",
                    f"torch.nn.functional.one_hot({within}, {max(1, size)})",
                )
            )
        )
    )


def _product(draw: st.DrawFn, names: Environment) -> str:
    name, other = _any(draw, names), _any(draw, names)
    width = draw(st.sampled_from((1, 3, 8, 17)))
    last = names[name].shape[-1] if names[name].dim() else 1
    channels = names[name].shape[1] if names[name].dim() > 1 else 1
    ones = f"torch.ones({last}, dtype={name}.dtype)"
    return str(
        draw(
            st.sampled_from(
                (
                    f"{name} @ {other}",
                    f"{name} @ {other}.mT",
                    f"{name} @ {name}.mT",
                    f"torch.nn.functional.linear({name}, self.weight({width}, {last}).to({name}.dtype))",
                    f"torch.nn.functional.linear({name}, self.weight({width}, {last}), self.weight({width}))",
                    f"torch.einsum('ij,kj->ik', {name}, {other})",
                    f"torch.einsum('bij,bjk->bik', {name}, {other})",
                    f"torch.nn.functional.conv1d({name}, self.weight({width}, {channels}, 3), padding=1)",
                    f"torch.nn.functional.conv2d({name}, self.weight({width}, {channels}, 3, 3), padding=1, stride=2)",
                    f"torch.nn.functional.conv2d({name}, self.weight({width}, {channels}, 1, 1))",
                    f"torch.nn.functional.max_pool2d({name}, 2)",
                    f"torch.nn.functional.avg_pool2d({name}, 2, padding=1)",
                    f"torch.nn.functional.adaptive_avg_pool2d({name}, 2)",
                    f"torch.nn.functional.layer_norm({name}, ({last},), {ones})",
                    f"torch.nn.functional.rms_norm({name}, ({last},))",
                    f"torch.nn.functional.scaled_dot_product_attention({name}, {name}, {other})",
                    f"torch.nn.functional.interpolate({name}, scale_factor=2)",
                    f"{name}.norm(dim={_dim(draw, names, name)})",
                )
            )
        )
    )


def _cast(draw: st.DrawFn, names: Environment) -> str:
    name, dtype = _any(draw, names), draw(st.sampled_from(_DTYPES))
    # What a float outside an integer's range becomes is left open by C++, and so by PyTorch.
    bounded = f"{name}.nan_to_num().clamp(-99, 99)" if names[name].is_floating_point() and "int" in dtype else name
    return f"{bounded}.to(torch.{dtype})"


def _control(draw: st.DrawFn, names: Environment) -> str:
    name, dim = _any(draw, names), draw(st.integers(0, 3))
    return str(
        draw(
            st.sampled_from(
                (
                    f"{name} * 2 if {name}.dim() > {dim} else {name} + 1",
                    f"sum(({name} * i for i in range(1, {dim + 2})), {name})",
                    f"torch.cond({name}.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), ({name},))",
                )
            )
        )
    )


def _in_place(draw: st.DrawFn, names: Environment) -> str:
    name, other, dim = _any(draw, names), _any(draw, names), draw(st.integers(0, 2))
    return str(
        draw(
            st.sampled_from(
                (
                    f"{name}.add_({other})",
                    f"{name}.mul_(2)",
                    f"{name}.copy_({other})",
                    f"{name}.clamp_(-1, 1)",
                    f"{name}.zero_()",
                    f"{name}.fill_({dim})",
                    f"{name}.relu_()",
                    f"{name}.sub_({other}, alpha=2)",
                    f"{name}[{dim}:].mul_(3)",
                    f"{name}[..., {dim}].fill_(4)",
                    f"{name}.transpose(0, -1).add_(1)",
                    f"{name}.view(-1)[{dim}:].neg_()",
                    f"{name}.masked_fill_({other} > 0, 2)",
                )
            )
        )
    )


# How often each stands here is how likely it is.
TEMPLATES: Sequence[Template] = (
    _unary, _unary, _binary, _binary, _operators, _reduction, _reduction, _deviation, _scan, _view, _view, _view,
    _move, _move, _move, _index, _index, _product, _product, _cast, _control, _in_place, _in_place,
)  # fmt: skip
