"""Determines the signature of a function in a file, the arguments that it may write to, and the phase of its module."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.protocol.programs import ShapeWord, shape_for

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
    """An argument or a result: its type in the function, and its sizes (None for dynamic ones)."""

    name: str
    holder: Holder
    shape: tuple[int | None, ...]
    dtype: TensorDType
    kind: Any

    @property
    def is_dynamic(self) -> bool:
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
    """Arguments or results of the given types, named `stem` and a number; `words` are shapes that the user gives.

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
        return SignatureValue(
            name, holder, _apply_shape(name, shape, said), _dtype(name, str(kind.element_type), kind), kind
        )
    text = str(kind)
    if (found := _TORCH.fullmatch(text)) is not None:
        shape = tuple(None if size == "?" else int(size) for size in found[1].split(",") if size)
        dtype = _dtype(name, _TORCH_DTYPES.get(found[2], found[2]), kind)
        return SignatureValue(name, "tensor", _apply_shape(name, shape, said), dtype, kind)
    if text.startswith("!llvm.ptr"):
        return _pointer(name, kind, said)
    return SignatureValue(name, "number", (), _dtype(name, text, kind), kind)


def _apply_shape(name: str, shape: tuple[int | None, ...], said: ShapeWord | None) -> tuple[int | None, ...]:
    """The shape with the sizes that the user gives."""
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


def fix_sizes(values: Sequence[SignatureValue]) -> list[SignatureValue]:
    """The values with default sizes for all dynamic ones."""
    return [
        SignatureValue(
            v.name, v.holder, tuple(DEFAULT_SIZE if size is None else size for size in v.shape), v.dtype, v.kind
        )
        for v in values
    ]


# Ops that only read their memory operands.
_READERS = frozenset({
    "memref.load", "memref.dim", "affine.load", "affine.vector_load", "vector.load", "vector.transfer_read",
    "vector.gather", "vector.maskedload", "vector.expandload", "llvm.load", "memref.prefetch", "memref.dealloc",
})  # fmt: skip
# Ops whose results alias their memory operands.
_VIEWS = frozenset({
    "memref.subview", "memref.cast", "memref.reinterpret_cast", "memref.expand_shape", "memref.collapse_shape",
    "memref.view", "memref.transpose", "memref.memory_space_cast", "memref.extract_strided_metadata",
    "memref.assume_alignment",
    "llvm.getelementptr", "llvm.bitcast", "llvm.addrspacecast",
    # An address that is passed to a function outside the module.
    "memref.extract_aligned_pointer_as_index", "arith.index_cast", "llvm.inttoptr",
})  # fmt: skip


class WriteEffects:
    """Determines which memory the functions of one module may write to: any op may that is not known to only read."""

    def __init__(self, module: Any) -> None:
        self._functions = {
            str(ir.StringAttr(op.operation.attributes["sym_name"]).value): op.operation
            for op in module.body
            if op.operation.name in ("func.func", "llvm.func")
        }
        self._arguments: dict[tuple[str, int], bool] = {}

    def may_write(self, value: Any) -> bool:
        """Whether users of `value` may write to its memory."""
        return any(self._use_may_write(use) for use in value.uses)

    def _use_may_write(self, use: Any) -> bool:
        op, place = use.owner.operation, use.operand_number
        if op.name in _READERS:
            return False
        if op.name in _VIEWS:
            return any(self.may_write(result) for result in op.results)
        if op.name in ("memref.copy", "llvm.intr.memcpy"):
            return place == (1 if op.name == "memref.copy" else 0)
        if op.name.startswith("linalg."):
            return place >= self._count_inputs(op)
        if op.name in ("func.call", "llvm.call"):
            return self._call_may_write(op, place)
        return True

    @staticmethod
    def _count_inputs(op: Any) -> int:
        """The number of inputs of a structured op."""
        if "operandSegmentSizes" not in op.attributes:
            return 0
        return int(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[0])

    def _call_may_write(self, op: Any, place: int) -> bool:
        if "callee" not in op.attributes:
            return True
        name = str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
        function = self._functions.get(name)
        if function is None or not len(function.regions[0].blocks):
            return function is None or not _reads_only(function, place)
        if (name, place) not in self._arguments:
            # For recursive calls, assume that only the other ops of the function write.
            self._arguments[name, place] = False
            arguments = function.regions[0].blocks[0].arguments
            self._arguments[name, place] = place >= len(arguments) or self.may_write(arguments[place])
        return self._arguments[name, place]


def _reads_only(declared: Any, place: int) -> bool:
    """Whether an external function declares that it only reads argument number `place`."""
    said = ir.ArrayAttr(declared.attributes["arg_attrs"]) if "arg_attrs" in declared.attributes else ()
    return place < len(said) and "llvm.readonly" in ir.DictAttr(said[place])


# The dialects of a module that can be translated to LLVM IR.
_AT_THE_END = frozenset({"builtin", "llvm"})
_STRUCTURED = frozenset({"linalg"})


def dialects_of(module: Any) -> tuple[str, ...]:
    """The dialects of a module's ops, sorted by name."""
    found: set[str] = set()

    def visit(op: Any) -> Any:
        found.add(op.name.partition(".")[0])
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return tuple(sorted(found))


def phase_of(module: Any) -> str:
    """`toplevel` with tensors, `buffers` with structured ops on buffers, `loops` below that, `llvm` at the end."""
    dialects = set(dialects_of(module))
    if dialects <= _AT_THE_END:
        return "llvm"
    if _has_tensors(module):
        return "toplevel"
    return "buffers" if dialects & _STRUCTURED else "loops"


def _has_tensors(module: Any) -> bool:
    """Whether a value, or an argument of a function, is a tensor."""
    found = False

    def visit(op: Any) -> Any:
        nonlocal found
        arguments = (value for region in op.regions for block in region.blocks for value in block.arguments)
        found = any(is_tensor(value.type) for value in (*op.results, *op.operands, *arguments))
        return ir.WalkResult.INTERRUPT if found else ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def is_tensor(kind: Any) -> bool:
    """Whether a type is a tensor's: MLIR's own, or torch's."""
    if isinstance(kind, ir.RankedTensorType | ir.UnrankedTensorType):
        return True
    return str(kind).startswith(("!torch.vtensor", "!torch.tensor"))
