"""Draws the operands of statements from the available tensors, and input tensors as Python expressions.

`{x}`, `{y}` and `{z}` are tensors, each the same in the whole statement. A suffix after a colon is the kind and the
rank to which the tensor is converted: `f` floats, `i` integers, `b` booleans, `m` a 3x3 matrix of floats, `l` a dtype
that can be written to `x`; `{x:f4}` is a float tensor with four dims. The suffix of the first use counts; later uses
need none. Other fields are in `_FIELDS`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import TypeVar

import torch
from hypothesis import strategies as st

NamedTensors = Mapping[str, torch.Tensor]

# The dtypes to which statements convert.
DTYPES = (
    "float32", "float64", "int64", "int32", "bool", "bfloat16", "float16", "int8", "int16", "uint8", "complex64",
)  # fmt: skip
_SCALARS = ("2", "-1", "3", "0.5", "-1.5", "0", "1e-3")
_TENSOR_FIELDS = ("x", "y", "z")
# The conversion of a float outside an integer's range is undefined in C++, and so in PyTorch. Any integer type has 99;
# the field is the lower bound.
_CLAMP = ".nan_to_num().clamp({}, 99)"


T = TypeVar("T")


def fill_template(template: str, draw: st.DrawFn, available: NamedTensors) -> str:
    """Returns the template with drawn values in its fields; `available` are the tensors to choose from, by name."""
    operands = _Operands(draw, available)
    parts = []
    for text, field_name, spec, _ in Formatter().parse(template):
        parts.append(text)
        if field_name is not None:
            parts.append(operands.field_text(field_name, spec or ""))
    return "".join(parts)


class _Operands:
    """The values of one statement's fields, each drawn at its first use."""

    def __init__(self, draw: st.DrawFn, available: NamedTensors) -> None:
        self._draw, self._available = draw, available
        self._texts: dict[str, str] = {}
        self._values: dict[str, torch.Tensor] = {}

    def field_text(self, name: str, spec: str = "") -> str:
        """Returns the text of a field, which is drawn at the first use; `spec` is the suffix, without the colon."""
        if name not in self._texts:
            self._texts[name] = self._draw_tensor(name, spec) if name in _TENSOR_FIELDS else str(_FIELDS[name](self))
        return self._texts[name]

    def _draw_tensor(self, name: str, spec: str) -> str:
        tensor_name = self.choose(sorted(self._available))
        value = self._available[tensor_name]
        if spec == "l":
            spec = _kind_for(self.value("x"))
        conversions = "".join(_conversions(value, spec))
        with contextlib.suppress(RuntimeError):  # for a matrix without elements, eager rejects the statement too
            value = eval(f"v{conversions}", {"v": value})
        self._values[name] = value
        return tensor_name + conversions

    def value(self, name: str) -> torch.Tensor:
        """Returns the value of the tensor field `name`, converted to the kind and rank of its first use."""
        self.field_text(name)
        return self._values[name]

    def choose(self, choices: Sequence[T]) -> T:
        return self._draw(st.sampled_from(choices))

    def number(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, max(low, high)))

    def dim(self) -> int:
        """Returns a dim of `x`, which may be negative; 0 for a scalar."""
        rank = self.value("x").dim()
        return self.number(-rank, rank - 1) if rank else 0

    def size(self, dim: int | None = None) -> int:
        """Returns the size of `x` along a dim, by default the field `dim`; 1 if `x` does not have that dim."""
        value = self.value("x")
        dim = int(self.field_text("dim")) if dim is None else dim
        return value.shape[dim] if -value.dim() <= dim < value.dim() else 1

    def dtype(self) -> str:
        """Returns a dtype to convert `x` to, as the argument of `to`."""
        return f"torch.{self.choose(DTYPES)}"

    def bounded(self) -> str:
        """Returns `x` with values that any dtype can represent."""
        value = self.value("x")
        real = f"{self.field_text('x')}{'.real' * value.is_complex()}"
        return f"{real}{_CLAMP.format(0)}" if value.dtype != torch.bool else real

    def within(self) -> str:
        """Returns valid indices for `x` along the field `dim`, with the shape of another tensor."""
        tensor_name = self.choose(sorted(self._available))
        conversions = "".join(_conversions(self._available[tensor_name], "i"))
        return f"({tensor_name}{conversions}.abs() % {max(1, self.size())})"


def _kind_for(target: torch.Tensor) -> str:
    """Returns the kind of tensors that can be written to `target`, "" for any."""
    if target.is_floating_point() or target.is_complex():
        return ""
    return "b" if target.dtype == torch.bool else "i"


def _conversions(value: torch.Tensor, spec: str) -> list[str]:
    """Returns the method calls and indexing, as text, that convert `value` to the kind and rank of `spec`."""
    kind, rank = spec.rstrip("0123456789"), spec.lstrip("abcdefghijklmnopqrstuvwxyz")
    conversions = [".real"] if value.is_complex() and kind else []
    is_float = value.is_floating_point() or value.is_complex()
    if kind == "b" and value.dtype != torch.bool:
        conversions.append(".gt(0)")
    elif kind == "i" and is_float:
        conversions.append(f"{_CLAMP.format(-99)}.long()")
    elif kind == "i" and value.dtype == torch.bool:
        conversions.append(".long()")
    elif kind in ("f", "m") and not is_float:
        conversions.append(".float()")
    if kind == "m":
        conversions.append(".flatten().repeat(9)[:9].reshape(3, 3)")
    elif rank and value.dim() < int(rank):
        conversions.append(f"[{', '.join(['None'] * (int(rank) - value.dim()))}]")
    elif rank and value.dim() > int(rank):
        conversions.append(f".flatten({int(rank) - 1})")
    return conversions


_FIELDS: dict[str, Callable[[_Operands], object]] = {
    "dim": _Operands.dim,
    "size": _Operands.size,
    "start": lambda o: o.number(0, o.size() - 1),  # an index along the field `dim`
    "rest": lambda o: max(0, o.size() - int(o.field_text("start"))),  # the number of elements from `start` on
    "least": lambda o: min(2, o.size()),  # a number of elements that `x` has along `dim`
    "last": lambda o: o.size(-1),
    "channels": lambda o: o.size(1),
    "within": _Operands.within,
    "bounded": _Operands.bounded,
    "dtype": _Operands.dtype,
    "n": lambda o: o.number(0, 3),
    "k": lambda o: o.number(-1, 2),
    "p": lambda o: o.number(1, 3),
    "width": lambda o: o.choose((1, 3, 8, 17)),  # the number of output features or channels of a weight
    "flag": lambda o: o.choose((False, True)),
    "scalar": lambda o: o.choose(_SCALARS),
}


# The choices for input tensors; those listed repeatedly are more likely.
# Sizes of dims: 0, 1, and sizes around the 4, 8 and 16 lanes of vectors.
SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 9, 16, 17)
MAX_INPUT_ELEMENTS = 2048
FLOAT_DTYPES = ("float32", "float32", "float32", "float32", "float64", "bfloat16", "float16")
INTEGER_DTYPES = ("int64", "int64", "int64", "int32", "int32", "uint8", "int8", "int16")
OTHER_DTYPES = (*INTEGER_DTYPES, "bool", "bool", "complex64")


@st.composite
def shapes(draw: st.DrawFn, rank: int | None = None) -> tuple[int, ...]:
    """Draws a shape of rank 0 to 4 (or `rank`) with at most `MAX_INPUT_ELEMENTS` elements."""
    rank = draw(st.integers(0, 4)) if rank is None else rank
    sizes: list[int] = []
    elements_left = MAX_INPUT_ELEMENTS
    for _ in range(rank):
        size = draw(st.sampled_from([size for size in SIZES if size <= elements_left]))
        sizes.append(size)
        elements_left //= max(1, size)
    return tuple(sizes)


@st.composite
def tensors(draw: st.DrawFn) -> str:
    """Draws an expression that creates a tensor."""
    dtype = draw(st.sampled_from(FLOAT_DTYPES * 3 + OTHER_DTYPES))
    shape = draw(shapes())
    return _draw_layout(draw, lambda dense_shape: _draw_values(draw, dense_shape, dtype), shape)


def _draw_values(draw: st.DrawFn, shape: tuple[int, ...], dtype: str) -> str:
    """Draws an expression for a dense tensor of random numbers; one in 20 of the float tensors has special values."""
    if dtype == "bool":
        return f"torch.rand({shape}) > 0.5"
    if dtype == "complex64":
        return f"torch.randn({shape}, dtype=torch.complex64)"
    if dtype in INTEGER_DTYPES:
        low = 0 if dtype == "uint8" else -9
        return f"torch.randint({low}, 10, {shape}, dtype=torch.{dtype})"
    text = draw(st.sampled_from((f"torch.randn({shape})", f"torch.rand({shape})", f"torch.randn({shape}) * 10")))
    if draw(st.integers(0, 19)) == 0:
        special = draw(st.sampled_from(("nan", "inf", "-inf", "0.0", "-0.0", "1e-40")))
        text = f"({text}).masked_fill(torch.rand({shape}) < 0.2, float('{special}'))"
    return text if dtype == "float32" else f"({text}).to(torch.{dtype})"


def _draw_layout(draw: st.DrawFn, make_values: Callable[[tuple[int, ...]], str], shape: tuple[int, ...]) -> str:
    """Draws the layout of a tensor: dense, or a view (transposed, every second element, expanded) of a dense one.

    `make_values` returns an expression for a dense tensor of a shape.
    """
    layout = draw(st.sampled_from(("plain", "plain", "plain", "transposed", "strided", "expanded")))
    if layout == "transposed" and len(shape) >= 2:
        return f"({make_values((*shape[:-2], shape[-1], shape[-2]))}).transpose(-1, -2)"
    if layout == "strided" and shape:
        return f"({make_values((*shape[:-1], 2 * shape[-1]))})[..., ::2]"
    if layout == "expanded" and shape:
        return f"({make_values((1, *shape[1:]))}).expand({shape})"
    return make_values(shape)
