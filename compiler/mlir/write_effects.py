"""Determines which memory the functions of a module may write to."""

from __future__ import annotations

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import VIEW_OPS, callee_of, is_inside, symbol_of

# Ops that only read their memory operands.
_READING_OPS = frozenset({
    "memref.load", "memref.dim", "affine.load", "affine.vector_load", "vector.load", "vector.transfer_read",
    "vector.gather", "vector.maskedload", "vector.expandload", "llvm.load", "memref.prefetch", "memref.dealloc",
})  # fmt: skip
# Ops whose results alias their memory operands.
_ALIASING_OPS = VIEW_OPS | frozenset({
    "memref.memory_space_cast", "memref.extract_strided_metadata", "memref.assume_alignment",
    "llvm.getelementptr", "llvm.bitcast", "llvm.addrspacecast",
    # These convert a buffer to an address, to pass it to a function outside the module.
    "memref.extract_aligned_pointer_as_index", "arith.index_cast", "llvm.inttoptr",
})  # fmt: skip


class WriteEffects:
    """Determines which memory the functions of a module may write to; unknown ops may write to all operands."""

    def __init__(self, module: ir.Operation) -> None:
        self._functions = {
            symbol_of(op.operation): op.operation
            for op in module.regions[0].blocks[0]
            if op.operation.name in ("func.func", "llvm.func")
        }
        self._argument_may_be_written: dict[tuple[str, int], bool] = {}
        # The arguments that the present query has reached, without a write so far.
        self._reached: set[tuple[str, int]] = set()

    def may_write(self, value: ir.Value, inside: ir.Operation | None = None) -> bool:
        """True if users of `value`, or only those in the regions of `inside`, may write to its memory."""
        return any(self._use_may_write(use, inside) for use in value.uses)

    def _use_may_write(self, use: ir.OpOperand, inside: ir.Operation | None) -> bool:
        op, operand_index = use.owner.operation, use.operand_number
        if op.name in _READING_OPS:
            return False
        if op.name in _ALIASING_OPS:
            return any(self.may_write(result, inside) for result in op.results)
        if inside is not None and not is_inside(op, inside):
            return False
        if op.name == "memref.copy":
            return operand_index == 1
        if op.name == "llvm.intr.memcpy":
            return operand_index == 0
        if op.name.startswith("linalg."):
            return operand_index >= self._count_inputs(op)
        if op.name in ("func.call", "llvm.call"):
            return self._call_may_write(op, operand_index)
        return True

    @staticmethod
    def _count_inputs(op: ir.Operation) -> int:
        """Returns the number of inputs of a structured op."""
        if "operandSegmentSizes" not in op.attributes:
            return 0
        return int(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[0])

    def _call_may_write(self, op: ir.Operation, operand_index: int) -> bool:
        if "callee" not in op.attributes:
            return True
        name = callee_of(op)
        function = self._functions.get(name)
        if function is None:
            return True
        if not len(function.regions[0].blocks):
            return not _declares_readonly(function, operand_index)
        return self._search_writes(function, (name, operand_index))

    def _search_writes(self, function: ir.Operation, argument: tuple[str, int]) -> bool:
        """True if `function`, or a function that it calls, may write to `argument`: the function's name and an index.

        An argument that the search has reached before is not searched again, so that recursion ends. So a negative
        result inside of the search may be preliminary, when functions call each other. The negative results are cached
        together when the outermost search ends without a write; a positive one is cached at once.
        """
        if argument in self._argument_may_be_written:
            return self._argument_may_be_written[argument]
        if argument in self._reached:
            return False
        is_first = not self._reached
        self._reached.add(argument)
        index, values = argument[1], function.regions[0].blocks[0].arguments
        may_be_written = index >= len(values) or self.may_write(values[index])
        if may_be_written:
            self._argument_may_be_written[argument] = True
        elif is_first:
            self._argument_may_be_written |= dict.fromkeys(self._reached, False)
        if is_first:
            self._reached.clear()
        return may_be_written


def _declares_readonly(function: ir.Operation, index: int) -> bool:
    """True if an external function declares that it only reads argument number `index`."""
    argument_attributes = ir.ArrayAttr(function.attributes["arg_attrs"]) if "arg_attrs" in function.attributes else ()
    return index < len(argument_attributes) and "llvm.readonly" in ir.DictAttr(argument_attributes[index])
