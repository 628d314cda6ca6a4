"""Determines the signature of a function in a file, the arguments that it may write to, and the phase of its module."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.programs import InputShape, find_input_shape

# The default for dynamic sizes.
DEFAULT_SIZE = 4
_DTYPES = {dtype.value: dtype for dtype in TensorDType}
_TORCH_TENSOR = re.compile(r"!torch\.v?tensor<\[([\d?,]*)\],([\w<>]+)>")
_TORCH_DTYPES = {"si64": "i64", "si32": "i32", "si16": "i16", "si8": "i8"}

# How a function takes a value: as a tensor, a memref, a number, or a pointer of the LLVM dialect.
Holder = Literal["tensor", "buffer", "number", "pointer"]


class NotRunnableError(BuddyError):
    """A function cannot be called; the text is the reason, and a hint."""


@dataclass(frozen=True)
class SignatureValue:
    """An argument or a result: its type in the function, and its sizes (None for dynamic ones)."""

    name: str
    holder: Holder
    shape: tuple[int | None, ...]
    dtype: TensorDType
    mlir_type: Any

    @property
    def is_dynamic(self) -> bool:
        return None in self.shape

    @property
    def meta(self) -> TensorMeta:
        return TensorMeta(self.shape, self.dtype)


def argument_types(function: ir.Operation) -> tuple[list[ir.Type], list[ir.Type]]:
    """Returns the types of the arguments and of the results of a `func.func` or `llvm.func`."""
    function_type = ir.TypeAttr(function.attributes["function_type"]).value
    inputs = [argument.type for argument in function.regions[0].blocks[0].arguments]
    if function.name == "func.func":
        return inputs, list(ir.FunctionType(function_type).results)
    text = str(function_type)
    return inputs, [] if text.startswith("!llvm.func<void ") else [_llvm_result(text)]


def _llvm_result(text: str) -> ir.Type:
    """Returns the result's type in `!llvm.func<f32 (ptr, i64)>`, where the dialect's types have no prefix."""
    name = text.removeprefix("!llvm.func<")
    name = name[: name.rfind(" (")]
    try:
        return ir.Type.parse(name)
    except ir.MLIRError:
        return ir.Type.parse(f"!llvm.{name}")


def signature_values(
    types: Sequence[ir.Type], prefix: str, user_shapes: Sequence[InputShape] = ()
) -> list[SignatureValue]:
    """Returns the arguments or results of the given types, named `prefix` with a number.

    Raises `NotRunnableError` for a type that a run cannot pass.
    """
    values = [
        _make_value(f"{prefix}{number}", mlir_type, find_input_shape(user_shapes, f"{prefix}{number}", number))
        for number, mlir_type in enumerate(types)
    ]
    for value in values:
        if 0 in value.shape:
            raise NotRunnableError(f"{value.name} has no elements: there is nothing to compute")
    return values


def _make_value(name: str, mlir_type: ir.Type, user_shape: InputShape | None) -> SignatureValue:
    """Returns the value of a type. Raises `NotRunnableError` for a type that a run cannot pass."""
    if isinstance(mlir_type, ir.RankedTensorType | ir.MemRefType):
        holder: Holder = "buffer" if isinstance(mlir_type, ir.MemRefType) else "tensor"
        shape = tuple(None if mlir_type.is_dynamic_dim(i) else mlir_type.get_dim_size(i) for i in range(mlir_type.rank))
        return SignatureValue(
            name,
            holder,
            _apply_shape(name, shape, user_shape),
            _parse_dtype(name, str(mlir_type.element_type), mlir_type),
            mlir_type,
        )
    text = str(mlir_type)
    if (match := _TORCH_TENSOR.fullmatch(text)) is not None:
        shape = tuple(None if size == "?" else int(size) for size in match[1].split(",") if size)
        dtype = _parse_dtype(name, _TORCH_DTYPES.get(match[2], match[2]), mlir_type)
        return SignatureValue(name, "tensor", _apply_shape(name, shape, user_shape), dtype, mlir_type)
    if text.startswith("!llvm.ptr"):
        return _make_pointer(name, mlir_type, user_shape)
    return SignatureValue(name, "number", (), _parse_dtype(name, text, mlir_type), mlir_type)


def _apply_shape(name: str, shape: tuple[int | None, ...], user_shape: InputShape | None) -> tuple[int | None, ...]:
    """Returns the shape set by the user, else `shape`. Raises `NotRunnableError` if they contradict each other."""
    if user_shape is None:
        return shape
    pairs = list(zip(shape, user_shape.shape, strict=False))
    if len(shape) != len(user_shape.shape) or any(size not in (None, user_size) for size, user_size in pairs):
        text = "x".join("?" if size is None else str(size) for size in shape)
        raise NotRunnableError(f"{name} is {text}, so it cannot be {'x'.join(map(str, user_shape.shape))}")
    return user_shape.shape


def _make_pointer(name: str, mlir_type: ir.Type, user_shape: InputShape | None) -> SignatureValue:
    """Returns the value of a pointer. Raises `NotRunnableError` if the user has not set its shape."""
    if user_shape is None:
        raise NotRunnableError(f"{name} is a pointer without a known shape: give its shape, as --shape {name}=4x4xf32")
    return SignatureValue(
        name, "pointer", user_shape.shape, _parse_dtype(name, user_shape.dtype or "f32", mlir_type), mlir_type
    )


def _parse_dtype(name: str, text: str, mlir_type: ir.Type) -> TensorDType:
    """Returns the dtype of an element type given as text. Raises `NotRunnableError` if no tensor can have it."""
    dtype = _DTYPES.get("i64" if text == "index" else text)
    if dtype is None or dtype.is_complex:
        raise NotRunnableError(f"{name} is {mlir_type}, which a PyTorch tensor cannot represent")
    return dtype


def fix_sizes(values: Sequence[SignatureValue]) -> list[SignatureValue]:
    """Returns the values with default sizes for all dynamic ones."""
    return [
        replace(value, shape=tuple(DEFAULT_SIZE if size is None else size for size in value.shape)) for value in values
    ]


# ---- phases ----------------------------------------------------------------------------------------------------------

# The dialects of a module that can be translated to LLVM IR.
_LLVM_DIALECTS = frozenset({"builtin", "llvm"})
_STRUCTURED_DIALECTS = frozenset({"linalg"})


def dialects_of(module: ir.Module) -> tuple[str, ...]:
    """Returns the dialects of a module's ops, sorted by name."""
    dialects: set[str] = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        dialects.add(op.name.partition(".")[0])
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return tuple(sorted(dialects))


def phase_of(module: ir.Module) -> str:
    """Returns the phase of a module.

    The phase is `llvm` if the module has only the LLVM dialect, `toplevel` if it has tensors, `buffers` if it has
    linalg ops on buffers, else `loops`.
    """
    dialects = set(dialects_of(module))
    if dialects <= _LLVM_DIALECTS:
        return "llvm"
    if _has_tensors(module):
        return "toplevel"
    return "buffers" if dialects & _STRUCTURED_DIALECTS else "loops"


def _has_tensors(module: ir.Module) -> bool:
    """Returns whether a value, or an argument of a function, is a tensor."""
    has_tensor = False

    def visit(op: ir.Operation) -> ir.WalkResult:
        nonlocal has_tensor
        arguments = (value for region in op.regions for block in region.blocks for value in block.arguments)
        has_tensor = any(is_tensor(value.type) for value in (*op.results, *op.operands, *arguments))
        return ir.WalkResult.INTERRUPT if has_tensor else ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return has_tensor


def is_tensor(mlir_type: ir.Type) -> bool:
    """Returns whether a type is a tensor type of MLIR or of the torch dialect."""
    if isinstance(mlir_type, ir.RankedTensorType | ir.UnrankedTensorType):
        return True
    return str(mlir_type).startswith(("!torch.vtensor", "!torch.tensor"))
