"""The arguments and results of a function in a file, as tensors that a run can pass."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.protocol.shape_words import ShapeWord, shape_for

# The default for dynamic sizes.
DEFAULT_SIZE = 4
_DTYPES = {dtype.value: dtype for dtype in TensorDType}
_TORCH = re.compile(r"!torch\.v?tensor<\[([\d?,]*)\],([\w<>]+)>")
_TORCH_DTYPES = {"si64": "i64", "si32": "i32", "si16": "i16", "si8": "i8"}

Holder = Literal["tensor", "buffer", "number", "pointer"]


class NotRunnableError(Exception):
    """A function that cannot be called; the text is the reason, and a hint."""


@dataclass(frozen=True)
class SignatureValue:
    """An argument or a result: its type in the function, and its sizes (`None` for dynamic ones)."""

    name: str
    holder: Holder
    shape: tuple[int | None, ...]
    dtype: TensorDType
    kind: Any

    @property
    def is_open(self) -> bool:
        return None in self.shape

    @property
    def meta(self) -> TensorMeta:
        return TensorMeta(self.shape, self.dtype)


def argument_types(function: Any) -> tuple[list[Any], list[Any]]:
    """The types of the arguments and of the results of a `func.func` or `llvm.func`."""
    kind = ir.TypeAttr(function.attributes["function_type"]).value
    inputs = [argument.type for argument in function.regions[0].blocks[0].arguments]
    if function.name == "func.func":
        return inputs, list(ir.FunctionType(kind).results)
    text = str(kind)
    return inputs, [] if text.startswith("!llvm.func<void ") else [_llvm_result(text)]


def _llvm_result(text: str) -> Any:
    """The result's type in `!llvm.func<f32 (ptr, i64)>`, where the dialect's types have no prefix."""
    name = text.removeprefix("!llvm.func<")
    name = name[: name.rfind(" (")]
    try:
        return ir.Type.parse(name)
    except ir.MLIRError:
        return ir.Type.parse(f"!llvm.{name}")


def values_of(types: Sequence[Any], stem: str, words: Sequence[ShapeWord] = ()) -> list[SignatureValue]:
    """Arguments or results of those types, named `stem` and a number; `words` are the given shapes.

    Raises `NotRunnableError` for a type that a run cannot pass.
    """
    found = [
        _value(f"{stem}{number}", kind, shape_for(words, f"{stem}{number}", number))
        for number, kind in enumerate(types)
    ]
    for value in found:
        if 0 in value.shape:
            raise NotRunnableError(f"{value.name} has no elements: there is nothing to compute")
    return found


def _value(name: str, kind: Any, said: ShapeWord | None) -> SignatureValue:
    if isinstance(kind, ir.RankedTensorType | ir.MemRefType):
        holder: Holder = "buffer" if isinstance(kind, ir.MemRefType) else "tensor"
        shape = tuple(None if kind.is_dynamic_dim(i) else kind.get_dim_size(i) for i in range(kind.rank))
        return SignatureValue(name, holder, _sized(name, shape, said), _dtype(name, str(kind.element_type), kind), kind)
    text = str(kind)
    if (found := _TORCH.fullmatch(text)) is not None:
        shape = tuple(None if size == "?" else int(size) for size in found[1].split(",") if size)
        dtype = _dtype(name, _TORCH_DTYPES.get(found[2], found[2]), kind)
        return SignatureValue(name, "tensor", _sized(name, shape, said), dtype, kind)
    if text.startswith("!llvm.ptr"):
        return _pointer(name, kind, said)
    return SignatureValue(name, "number", (), _dtype(name, text, kind), kind)


def _sized(name: str, shape: tuple[int | None, ...], said: ShapeWord | None) -> tuple[int | None, ...]:
    """The shape with the given sizes."""
    if said is None:
        return shape
    pairs = list(zip(shape, said.shape, strict=False))
    if len(shape) != len(said.shape) or any(size not in (None, given) for size, given in pairs):
        told = "x".join("?" if size is None else str(size) for size in shape)
        raise NotRunnableError(f"{name} is {told}, so it cannot be {'x'.join(map(str, said.shape))}")
    return said.shape


def _pointer(name: str, kind: Any, said: ShapeWord | None) -> SignatureValue:
    if said is None:
        raise NotRunnableError(f"{name} is a pointer without a known shape: give its shape, as --shape {name}=4x4xf32")
    return SignatureValue(name, "pointer", said.shape, _dtype(name, said.dtype or "f32", kind), kind)


def _dtype(name: str, text: str, kind: Any) -> TensorDType:
    found = _DTYPES.get("i64" if text == "index" else text)
    if found is None or found.is_complex:
        raise NotRunnableError(f"{name} is {kind}, which a PyTorch tensor cannot represent")
    return found


def closed(values: Sequence[SignatureValue]) -> list[SignatureValue]:
    """The values with default sizes for all dynamic ones."""
    return [
        SignatureValue(
            v.name, v.holder, tuple(DEFAULT_SIZE if size is None else size for size in v.shape), v.dtype, v.kind
        )
        for v in values
    ]
