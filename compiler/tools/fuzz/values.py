"""Draws the input tensors of a random program, as Python text: shapes, dtypes, strides, special values."""

from __future__ import annotations

from hypothesis import strategies as st

# 0, 1, and sizes around a vector's 4, 8 and 16 lanes.
SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 9, 16, 17)
LIMIT = 2048
FLOATS = ("float32", "float32", "float32", "float32", "float64", "bfloat16", "float16")
INTEGERS = ("int64", "int64", "int64", "int32", "int32", "uint8", "int8", "int16")
OTHERS = (*INTEGERS, "bool", "bool", "complex64")


@st.composite
def shapes(draw: st.DrawFn, rank: int | None = None) -> tuple[int, ...]:
    """A shape of rank 0 to 4 (or `rank`) of at most `LIMIT` elements."""
    dims = draw(st.integers(0, 4)) if rank is None else rank
    found: list[int] = []
    room = LIMIT
    for _ in range(dims):
        size = draw(st.sampled_from([size for size in SIZES if size <= room]))
        found.append(size)
        room //= max(1, size)
    return tuple(found)


@st.composite
def tensors(draw: st.DrawFn) -> str:
    """An expression that creates a tensor."""
    dtype = draw(st.sampled_from(FLOATS * 3 + OTHERS))
    shape = draw(shapes())
    return _laid_out(draw, lambda size: _filled(draw, size, dtype), shape)


def _filled(draw: st.DrawFn, shape: tuple[int, ...], dtype: str) -> str:
    if dtype == "bool":
        return f"torch.rand({shape}) > 0.5"
    if dtype == "complex64":
        return f"torch.randn({shape}, dtype=torch.complex64)"
    if dtype in INTEGERS:
        low = 0 if dtype == "uint8" else -9
        return f"torch.randint({low}, 10, {shape}, dtype=torch.{dtype})"
    text = draw(st.sampled_from((f"torch.randn({shape})", f"torch.rand({shape})", f"torch.randn({shape}) * 10")))
    if draw(st.integers(0, 19)) == 0:
        special = draw(st.sampled_from(("nan", "inf", "-inf", "0.0", "-0.0", "1e-40")))
        text = f"({text}).masked_fill(torch.rand({shape}) < 0.2, float('{special}'))"
    return text if dtype == "float32" else f"({text}).to(torch.{dtype})"


def _laid_out(draw: st.DrawFn, filled: object, shape: tuple[int, ...]) -> str:
    """The tensor unchanged, or as a view of another one: transposed, every second element, expanded."""
    assert callable(filled)
    how = draw(st.sampled_from(("plain", "plain", "plain", "transposed", "strided", "expanded")))
    if how == "transposed" and len(shape) >= 2:
        return f"({filled((*shape[:-2], shape[-1], shape[-2]))}).transpose(-1, -2)"
    if how == "strided" and shape:
        return f"({filled((*shape[:-1], 2 * shape[-1]))})[..., ::2]"
    if how == "expanded" and shape:
        return f"({filled((1, *shape[1:]))}).expand({shape})"
    return str(filled(shape))
