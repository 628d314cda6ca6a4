"""Determines which buffer and pointer arguments a function may write to."""

from __future__ import annotations

from typing import Any

from buddy.compiler.mlir.bindings import ir

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
    """Answers for the functions of one module. Anything not known to be read-only counts as written."""

    def __init__(self, module: Any) -> None:
        self._functions = {
            str(ir.StringAttr(op.operation.attributes["sym_name"]).value): op.operation
            for op in module.body
            if op.operation.name in ("func.func", "llvm.func")
        }
        self._arguments: dict[tuple[str, int], bool] = {}

    def may_write(self, value: Any) -> bool:
        """Whether users of `value` may write to its memory."""
        return any(self._by_use(use) for use in value.uses)

    def _by_use(self, use: Any) -> bool:
        op, place = use.owner.operation, use.operand_number
        if op.name in _READERS:
            return False
        if op.name in _VIEWS:
            return any(self.may_write(result) for result in op.results)
        if op.name in ("memref.copy", "llvm.intr.memcpy"):
            return place == (1 if op.name == "memref.copy" else 0)
        if op.name.startswith("linalg."):
            return place >= self._inputs(op)
        if op.name in ("func.call", "llvm.call"):
            return self._by_call(op, place)
        return True

    @staticmethod
    def _inputs(op: Any) -> int:
        """The number of inputs of a structured op."""
        if "operandSegmentSizes" not in op.attributes:
            return 0
        return int(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[0])

    def _by_call(self, op: Any, place: int) -> bool:
        if "callee" not in op.attributes:
            return True
        name = str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
        function = self._functions.get(name)
        if function is None or not len(function.regions[0].blocks):
            return function is None or not _reads_only(function, place)
        if (name, place) not in self._arguments:
            # The assumption for recursive calls: only the other ops of the function write.
            self._arguments[name, place] = False
            arguments = function.regions[0].blocks[0].arguments
            self._arguments[name, place] = place >= len(arguments) or self.may_write(arguments[place])
        return self._arguments[name, place]


def _reads_only(declared: Any, place: int) -> bool:
    """Whether an external function declares that it only reads argument number `place`."""
    said = ir.ArrayAttr(declared.attributes["arg_attrs"]) if "arg_attrs" in declared.attributes else ()
    return place < len(said) and "llvm.readonly" in ir.DictAttr(said[place])
