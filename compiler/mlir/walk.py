"""Finds ops, attributes and symbols in modules, and determines properties of buffers that need no alias analysis.

`WriteEffects` determines which memory the functions of a module may write to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from buddy.compiler.mlir.bindings import ir


def nested_ops(root: ir.Operation) -> list[ir.Operation]:
    """Returns all ops nested in `root`, in pre-order, without `root` itself."""
    ops: list[Any] = []
    append, advance = ops.append, ir.WalkResult.ADVANCE

    def visit(op: ir.Operation) -> ir.WalkResult:
        append(op)
        return advance

    root.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return ops[1:]


def find_ops(root: ir.Operation, *names: str) -> list[ir.Operation]:
    """Returns the ops nested in `root` that have one of `names`, in pre-order, without `root` itself."""
    ops: list[Any] = []
    advance = ir.WalkResult.ADVANCE

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name in names:
            ops.append(op)
        return advance

    root.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return [op for op in ops if op != root.operation]


def enclosing_entry_block(op: ir.Operation) -> tuple[ir.Block, bool] | None:
    """Returns the entry block of the function around `op`, and whether `op` is inside a parallel loop.

    Returns `None` if no `func.func` encloses the op, such as after `convert-func-to-llvm`.
    """
    parent, is_parallel = op.parent, False
    while parent is not None and parent.operation.name != "func.func":
        is_parallel = is_parallel or parent.operation.name == "scf.parallel"
        parent = parent.operation.parent
    return (parent.regions[0].blocks[0], is_parallel) if parent is not None else None


def attributes_of(op: ir.Operation) -> dict[str, ir.Attribute]:
    """Returns the attributes of an op by name."""
    names = [name if isinstance(name, str) else name.name for name in op.attributes]
    return {name: op.attributes[name] for name in names}


def symbol_of(op: Any) -> str:
    """Returns the name of the symbol that an op defines, such as a function."""
    return str(ir.StringAttr(op.attributes["sym_name"]).value)


def callee_of(call: ir.Operation) -> str:
    """Returns the name of the function that a `func.call` or `llvm.call` calls; "" for a call through a pointer."""
    if "callee" not in call.attributes:
        return ""
    return str(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)


def calls_in(function: ir.Operation) -> list[ir.Operation]:
    """Returns the `func.call` ops of a function."""
    return find_ops(function, "func.call")


def functions_of(module: ir.Operation) -> dict[str, ir.Operation]:
    """Returns the `func.func` ops of a module that have a body, by name."""
    ops = (op.operation for op in module.regions[0].blocks[0] if op.operation.name == "func.func")
    return {symbol_of(op): op for op in ops if len(op.regions[0].blocks)}


def callees_first(functions: Mapping[str, ir.Operation]) -> list[str]:
    """Returns the names in `functions`, each after the names of its callees.

    Functions that call each other, such as those of `async-parallel-for`, are in any order.
    """
    order: list[str] = []
    visited: set[str] = set()

    def visit(name: str) -> None:
        if name in functions and name not in visited:
            visited.add(name)
            for call in calls_in(functions[name]):
                visit(callee_of(call))
            order.append(name)

    for name in functions:
        visit(name)
    return order


def unique_symbol(module: ir.Operation, base: str) -> str:
    """Returns a symbol name that `module` does not have: `base`, or `base` with a number."""
    used = {symbol_of(op) for op in module.regions[0].blocks[0] if "sym_name" in op.attributes}
    number, name = 0, base
    while name in used:
        number += 1
        name = f"{base}_{number}"
    return name


def clone_body(block: ir.Block, replacements: dict[ir.Value, ir.Value]) -> list[ir.Value]:
    """Clones the ops of `block` at the insertion point; returns the values that its terminator would yield.

    `replacements` maps values, such as the block's arguments, to their replacements. The clones' results are added.
    """
    *body, terminator = block.operations
    for op in body:
        clone = op.operation.clone()
        _replace_operands(clone.operation, replacements)
        # Ops in nested regions, such as loop bodies, may use the values too.
        for nested in nested_ops(clone) if len(clone.operation.regions) else ():
            _replace_operands(nested, replacements)
        replacements |= dict(zip(op.operation.results, clone.operation.results, strict=True))
    return [replacements.get(value, value) for value in terminator.operands]


def _replace_operands(op: ir.Operation, replacements: Mapping[ir.Value, ir.Value]) -> None:
    """Replaces the operands of an op, but not those of ops in its regions."""
    for i, operand in enumerate(op.operands):
        if operand in replacements:
            op.operands[i] = replacements[operand]


# ---- attributes of this compiler, and buffers ------------------------------------------------------------------------

# Attribute of a loop, and of the branch to its start, that LLVM's optimiser follows.
LOOP_ANNOTATION = "llvm.loop_annotation"
# Attribute of a function that runs once for each parameter, such as one that packs weights: unrolling its loops would
# cost more compile time than it saves.
RUNS_ONCE = "buddy.once"
# Attribute of an argument of the entry: a buffer of the caller for one result, which overlaps no other buffer.
OUT_PARAMETER = "buddy.result"
# Attribute of an argument of the entry of a backward graph: a tensor that the forward graph saved for it.
SAVED_ARGUMENT = "buddy.saved"
# Ops whose result is another view of the elements of their first operand, a memref.
VIEW_OPS = frozenset(
    {
        "memref.collapse_shape",
        "memref.expand_shape",
        "memref.cast",
        "memref.subview",
        "memref.reinterpret_cast",
        "memref.transpose",
        "memref.view",
    }
)
# The op whose first result is the base buffer of its operand.
_BASE_OP = "memref.extract_strided_metadata"
# Ops on buffers that do not access their elements.
NON_ACCESSING_OPS = VIEW_OPS | {"memref.alloc", "memref.dim", "memref.get_global"}


def element_bytes(type_: ir.Type) -> int:
    """Returns the bytes of one element of a scalar type; 8 for `index`."""
    return 8 if isinstance(type_, ir.IndexType) else (type_.width + 7) // 8


def bytes_of(type_: ir.Type) -> int:
    """Returns the size in bytes of a memref of static shape."""
    element, scalars = type_.element_type, 1
    if isinstance(element, ir.ComplexType):
        element, scalars = element.element_type, 2
    return math.prod(type_.shape, start=scalars * element_bytes(element))


def has_identity_layout(type_: ir.Type) -> bool:
    """Returns whether the elements of a memref type are contiguous and in row-major order."""
    memref = ir.MemRefType(type_)
    identity = ir.AffineMap.get_identity(len(memref.shape), context=type_.context)
    return bool(memref.layout == ir.AffineMapAttr.get(identity))


def defining_op(value: ir.Value) -> ir.Operation | None:
    """Returns the op that computes `value`, or `None` for an argument of a block."""
    return value.owner.operation if isinstance(value, ir.OpResult) else None


def constant_of(value: ir.Value) -> ir.Attribute | None:
    """Returns the attribute of the `arith.constant` that computes `value`; `None` if `value` is no such constant."""
    op = defining_op(value)
    return op.attributes["value"] if op is not None and op.name == "arith.constant" else None


def root_of(value: ir.Value) -> ir.Value:
    """Returns the buffer that `value` is a view of, through any number of views."""
    while isinstance(value, ir.OpResult) and (value.owner.name in VIEW_OPS or value.owner.name == _BASE_OP):
        value = value.owner.operands[0]
    return value


def accessing_ops(value: ir.Value) -> Iterator[ir.Operation]:
    """Yields the ops that read, write, free or forward the memory of `value`, also through views."""
    for use in value.uses:
        owner = use.owner.operation
        if owner.name in VIEW_OPS or owner.name == _BASE_OP:
            yield from accessing_ops(owner.results[0])
        else:
            yield owner


def is_inside(op: ir.Operation, outer: ir.Operation) -> bool:
    """Returns whether `op` is in a region of `outer`, at any depth."""
    parent = op.parent
    while parent is not None and parent.operation != outer:
        parent = parent.operation.parent
    return parent is not None


def aliases_operand(user: ir.Operation) -> bool:
    """Returns whether `user` makes an alias of a buffer operand, by returning, yielding or selecting the operand."""
    if user.name in ("func.return", "scf.yield", "scf.condition"):
        return True
    return any(isinstance(result.type, ir.MemRefType) for result in user.results)


def surely_disjoint(left: ir.Value, right: ir.Value) -> bool:
    """Returns whether two memrefs cannot overlap: they are views of different buffers, one of which has no aliases."""
    left_root, right_root = root_of(left), root_of(right)
    return bool(left_root != right_root and (is_unaliased(left_root) or is_unaliased(right_root)))


def is_unaliased(root: ir.Value) -> bool:
    """Returns whether only its views overlap the buffer `root`: true for an allocation and for an out-parameter."""
    if isinstance(root, ir.OpResult):
        return root.owner.name in ("memref.alloc", "memref.alloca")
    return isinstance(root, ir.BlockArgument) and OUT_PARAMETER in _attributes_of_argument(root)


def _attributes_of_argument(argument: ir.BlockArgument) -> Any:
    """Returns the attributes of a function's argument; () without attributes, and for the argument of another op."""
    owner = argument.owner.owner.operation
    if owner.name != "func.func" or "arg_attrs" not in owner.attributes or argument.owner != owner.regions[0].blocks[0]:
        return ()
    attributes = ir.ArrayAttr(owner.attributes["arg_attrs"])
    # An argument that a pass has just added, such as packed weights, has no attributes yet.
    return ir.DictAttr(attributes[argument.arg_number]) if argument.arg_number < len(attributes) else ()


def zero_fill_before(op: ir.Operation, buffer: ir.Value) -> ir.Operation | None:
    """Returns the `linalg.fill` that zeroes `buffer` before `op`, in the same block.

    Returns `None` if there is no such op, or if an op between the two accesses the buffer.
    """
    preceding = list(_preceding_ops(op))
    for candidate in reversed(preceding):
        if candidate.name == "linalg.fill" and candidate.operands[1] == buffer:
            return candidate if _is_zero(candidate.operands[0]) else None
        if _may_access(candidate, buffer):
            return None
    return None


def _preceding_ops(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yields the ops before `op` in its block."""
    for other in op.operation.block:
        if other.operation == op.operation:
            return
        yield other.operation


def _may_access(op: ir.Operation, buffer: ir.Value) -> bool:
    """Returns whether `op` may access elements of `buffer`; ops with regions, except linalg's, count as accesses."""
    if op.name in NON_ACCESSING_OPS or op.name.startswith(("arith.", "math.")):
        return False
    if len(op.regions) and not op.name.startswith("linalg."):
        return True
    memrefs = [value for value in op.operands if isinstance(value.type, ir.MemRefType)]
    return not all(surely_disjoint(value, buffer) for value in memrefs)


def _is_zero(value: ir.Value) -> bool:
    constant = constant_of(value)
    return constant is not None and float(constant.value) == 0.0


def argument_attributes(function: ir.Operation) -> list[ir.DictAttr]:
    """Returns a dictionary of attributes for each argument of the function's type."""
    if "arg_attrs" in function.attributes:
        return [ir.DictAttr(attributes) for attributes in ir.ArrayAttr(function.attributes["arg_attrs"])]
    count = len(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).inputs)
    return [ir.DictAttr.get({}) for _ in range(count)]


# ---- writes to memory ------------------------------------------------------------------------------------------------


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
        # The arguments that the running search has reached, without a write so far.
        self._reached: set[tuple[str, int]] = set()

    def may_write(self, value: ir.Value, inside: ir.Operation | None = None) -> bool:
        """Returns whether users of `value` may write to its memory; with `inside`, only users in its regions count."""
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
        """Returns whether `function`, or a function that it calls, may write to an argument.

        `argument` is the name of `function` and the index of the argument. The search visits no argument twice, so that
        recursion ends. A negative result inside the search is therefore preliminary if functions call each other. So
        positive results are cached at once, but negative ones only when the outermost search finds no write.
        """
        if argument in self._argument_may_be_written:
            return self._argument_may_be_written[argument]
        if argument in self._reached:
            return False
        is_first = not self._reached
        self._reached.add(argument)
        (_, index), values = argument, function.regions[0].blocks[0].arguments
        may_be_written = index >= len(values) or self.may_write(values[index])
        if may_be_written:
            self._argument_may_be_written[argument] = True
        elif is_first:
            self._argument_may_be_written |= dict.fromkeys(self._reached, False)
        if is_first:
            self._reached.clear()
        return may_be_written


def _declares_readonly(function: ir.Operation, index: int) -> bool:
    """Returns whether an external function declares that it only reads argument number `index`."""
    argument_attributes = ir.ArrayAttr(function.attributes["arg_attrs"]) if "arg_attrs" in function.attributes else ()
    return index < len(argument_attributes) and "llvm.readonly" in ir.DictAttr(argument_attributes[index])
