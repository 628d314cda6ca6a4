"""`hoist-parameters` and `chain-packings`: compute values that depend only on one weight once, before all calls.

`hoist-parameters` moves the ops of such values, for example the rounding of a weight to bfloat16, to functions of the
module. Their results become arguments of the entry, which the runtime computes when it packs weights. Kernels may pack
such an argument like any other weight; `chain-packings` then makes one packing function of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from buddy.compiler.codegen.calling_convention import PACK_ATTRIBUTE, PREPARE_ATTRIBUTE, entry_of
from buddy.compiler.mlir.bindings import func, ir, memref
from buddy.compiler.mlir.walk import (
    RUNS_ONCE,
    argument_attributes,
    bytes_of,
    callee_of,
    calls_in,
    functions_of,
    nested_ops,
    symbol_of,
    unique_symbol,
)
from buddy.compiler.ops.rounded_operands import ROUNDING
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import is_used
from buddy.compiler.passes.kernels.contraction import is_contraction
from buddy.compiler.passes.kernels.weights import PARAMETER

# Ops that only move elements, or create tensors.
_DATA_MOVEMENT_OPS = frozenset({
    "linalg.transpose", "linalg.broadcast", "linalg.copy", "tensor.collapse_shape", "tensor.expand_shape",
    "tensor.extract_slice", "tensor.cast",
})  # fmt: skip
_CREATION_OPS = frozenset({"tensor.empty", "linalg.fill", "arith.constant"})


@register
@dataclass(frozen=True)
class HoistParameters(MlirPass):
    """Moves element-wise ops, reductions and data movement, unless their result has more bytes than the weight.

    Reading a larger result would cost more than computing it again. An operand of a product that is rounded to a
    precision of the recipe is always moved, because it is written to memory anyway. Without `pack_weights`, nothing is
    moved, because weights may then change between calls.
    """

    name: ClassVar[str] = "hoist-parameters"
    summary: ClassVar[str] = "compute once, before the calls, what depends on one weight alone, such as its rounding"

    pack_weights: bool = True

    def run(self, root: ir.Operation, context: PassContext) -> None:
        if not self.pack_weights or entry_of(root) is None:
            return
        hoister = _ParameterHoister(root)
        for name in list(hoister.functions):
            for location, type_ in hoister.hoist(name):
                context.remark(self.name, location, f"{type_} is computed once, before the calls")
        hoister.finish()


@dataclass
class _Function:
    """A function, its calls, and its new arguments.

    The key of an argument is the number of a parameter and the name of the function that computes the argument from it.
    """

    op: Any
    calls: list[Any] = field(default_factory=list)
    added_arguments: dict[tuple[int, str], Any] = field(default_factory=dict)

    @property
    def block(self) -> ir.Block:
        block: ir.Block = self.op.regions[0].blocks[0]
        return block


class _ParameterHoister:
    """Replaces values of a module's functions that depend on one parameter alone by new arguments.

    Functions that it adds to the module compute them from the parameter; `prepare` is the name of such a function.
    """

    def __init__(self, root: ir.Operation) -> None:
        self.root = root
        self.entry = symbol_of(entry_of(root))
        self.functions = {name: _Function(op) for name, op in functions_of(root).items()}
        for function in self.functions.values():
            for call in calls_in(function.op):
                if (callee := callee_of(call)) in self.functions:
                    self.functions[callee].calls.append(call)
        self._prepare_names: dict[str, str] = {}  # of the functions that prepare parameters, by their text
        self._is_parameter_results: dict[tuple[str, int], bool] = {}  # by function and number of an argument

    def is_parameter(self, name: str, number: int) -> bool:
        """True if argument `number` of a function is a parameter in all of its calls."""
        if (name, number) not in self._is_parameter_results:
            self._is_parameter_results[name, number] = self._compute_is_parameter(name, number)
        return self._is_parameter_results[name, number]

    def _compute_is_parameter(self, name: str, number: int) -> bool:
        """Computes the result of `is_parameter`, which caches it."""
        function = self.functions[name]
        attributes = argument_attributes(function.op)
        if number >= len(attributes) or PARAMETER not in attributes[number]:
            return False
        if name == self.entry:
            return True
        return bool(function.calls) and all(self._passes_parameter(call, number) for call in function.calls)

    def _passes_parameter(self, call: ir.Operation, number: int) -> bool:
        """True if operand `number` of `call` is a parameter of the caller."""
        argument = _argument_of(call.operands[number])
        return argument is not None and self.is_parameter(*argument)

    def hoist(self, name: str) -> list[tuple[ir.Location, ir.Type]]:
        """Replaces the values of a function that depend on one parameter alone by new arguments.

        Returns their locations and types.
        """
        function, derived = self.functions[name], _derived_values(self, name)
        moved = _values_to_move(derived, function.block.arguments)
        # All functions are emitted before the first replacement, which would change the ops that they are copied from.
        prepare_names = [self._prepare_function(function, value, number) for value, number in moved]
        moved_types = [(value.owner.location, value.type) for value, _ in moved]
        for (value, number), prepare in zip(moved, prepare_names, strict=True):
            value.replace_all_uses_with(self._argument(name, number, prepare, value.type))
        for value in reversed(derived):
            if not is_used(value):
                value.owner.operation.erase()
        return moved_types

    def _argument(self, name: str, number: int, prepare: str, type_: ir.Type) -> ir.Value:
        """Returns the argument of a function for the value that `prepare` computes of its parameter `number`.

        A new argument is added to the function, and an operand for it to the calls of the function.
        """
        function, key = self.functions[name], (number, prepare)
        if key not in function.added_arguments:
            function.added_arguments[key] = function.block.add_argument(
                type_, function.block.arguments[number].location
            )
            for call in list(function.calls):
                parameter = _argument_of(call.operands[number])
                assert parameter is not None, "a parameter is a parameter in every caller"
                self._add_operand(call, self._argument(*parameter, prepare, type_))
        argument: ir.Value = function.added_arguments[key]
        return argument

    def _add_operand(self, call: ir.Operation, value: ir.Value) -> None:
        """Replaces `call` by a call with the operand `value` after the others."""
        callee = callee_of(call)
        with ir.InsertionPoint(call), call.location:
            operands = [*call.operands, value]
            new = func.CallOp([result.type for result in call.results], ir.FlatSymbolRefAttr.get(callee), operands)
        for old_result, new_result in zip(call.results, new.results, strict=True):
            old_result.replace_all_uses_with(new_result)
        calls = self.functions[callee].calls
        calls[:] = [new.operation if other == call else other for other in calls]
        call.erase()

    def _prepare_function(self, function: _Function, value: ir.Value, number: int) -> str:
        """Emits a function of parameter `number` that computes `value`; returns its name, or that of an equal one."""
        parameter = function.block.arguments[number]
        name = unique_symbol(self.root, f"prepare_{len(self._prepare_names)}")
        with ir.InsertionPoint(self.root.regions[0].blocks[0]), value.owner.location:
            new = func.FuncOp(name, ([parameter.type], [value.type]))
            new.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
            new.attributes[RUNS_ONCE] = ir.UnitAttr.get()
            read_only = ir.DictAttr.get({"bufferization.writable": ir.BoolAttr.get(False)})
            new.attributes["arg_attrs"] = ir.ArrayAttr.get([read_only])
            block = new.add_entry_block([parameter.location])
        values: dict[ir.Value, ir.Value] = {parameter: block.arguments[0]}
        with ir.InsertionPoint(block):
            for op in _ops_between(value, parameter):
                clone = op.clone().operation
                _replace_operands(clone, values)
                values |= dict(zip(op.results, clone.results, strict=True))
            with value.owner.location:
                func.ReturnOp([values[value]])
        text = str(new.operation).replace(f"@{name}(", "@(", 1)
        if text in self._prepare_names:
            new.operation.erase()
        return self._prepare_names.setdefault(text, name)

    def finish(self) -> None:
        """Updates the types of functions with new arguments, and gives attributes to the arguments."""
        for name, function in self.functions.items():
            if not function.added_arguments:
                continue
            attributes = argument_attributes(function.op)
            for number, prepare in function.added_arguments:
                parameter_attributes = {named.name: named.attr for named in attributes[number]}
                entry_attributes = {PREPARE_ATTRIBUTE: ir.StringAttr.get(prepare)} if name == self.entry else {}
                attributes.append(ir.DictAttr.get({**parameter_attributes, **entry_attributes}))
            results = ir.FunctionType(ir.TypeAttr(function.op.attributes["function_type"]).value).results
            inputs = [argument.type for argument in function.block.arguments]
            function.op.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, list(results)))
            function.op.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)


def _replace_operands(op: ir.Operation, values: dict[ir.Value, ir.Value]) -> None:
    """Replaces the operands of `op` and of the ops in its body that are keys of `values`."""
    for nested in (op, *nested_ops(op)):
        for i, operand in enumerate(nested.operands):
            if operand in values:
                nested.operands[i] = values[operand]


# ---- values that can be moved ----------------------------------------------------------------------------------------


def _derived_values(hoister: _ParameterHoister, name: str) -> dict[ir.Value, int | None]:
    """Returns the values of a function that depend on one parameter alone, each with the parameter's number.

    The number is `None` for values that depend on nothing.
    """
    derived: dict[Any, int | None] = {}
    for op in hoister.functions[name].block.operations:
        numbers = _parameters_of(hoister, name, op.operation, derived)
        if numbers is not None and len(numbers) < 2:
            derived[op.operation.results[0]] = next(iter(numbers), None)
    return derived


def _values_to_move(derived: dict[ir.Value, int | None], arguments: ir.BlockArgumentList) -> list[tuple[ir.Value, int]]:
    """Returns the values among `derived` to compute before the calls, in order, with the numbers of their parameters.

    These are values that are read by an op that stays in the function. A value that only moves elements, or is too
    large, stays too, and the values that it is computed from are moved instead.
    """
    moved, needed = list[tuple[Any, int]](), set[Any]()  # `needed` has the derived values that stay
    for value, number in reversed(derived.items()):
        if not any(_stays(_op_in_function_body(use.owner.operation), derived, needed) for use in value.uses):
            continue
        op = value.owner.operation
        is_small = number is not None and _is_small(value.type, arguments[number].type)
        if number is not None and _does_arithmetic(op) and (is_small or ROUNDING in op.attributes):
            moved.append((value, number))
        else:
            needed.add(value)
    return moved[::-1]


def _is_small(type_: ir.Type, parameter: ir.Type) -> bool:
    """True if a value has at most as many bytes as its parameter, or, for i8, twice as many.

    Each byte of the parameter may hold two 4-bit integers, which the value has as bytes.
    """
    limit = bytes_of(parameter) * (2 if str(type_.element_type) == "i8" else 1)
    return bytes_of(type_) <= limit


def _stays(op: ir.Operation, derived: dict[ir.Value, int | None], needed: set[ir.Value]) -> bool:
    """True if `op` stays in the function: its result is not derived, or it is derived and in `needed`."""
    is_derived = len(op.results) == 1 and op.results[0] in derived
    return not is_derived or op.results[0] in needed


def _parameters_of(
    hoister: _ParameterHoister, name: str, op: ir.Operation, derived: dict[ir.Value, int | None]
) -> set[int] | None:
    """Returns the numbers of the parameters that `op` depends on; `None` if it depends on anything else."""
    is_known = op.name in _DATA_MOVEMENT_OPS or op.name in _CREATION_OPS or op.name == "linalg.generic"
    if not is_known or len(op.results) != 1 or is_contraction(op):
        return None
    if op.name != "arith.constant" and not _is_static_tensor(op.results[0].type):
        return None
    numbers = set()
    for value in _operands(op):
        argument = _argument_of(value)
        if value in derived:
            numbers.add(derived[value])
        elif argument is not None and _is_static_tensor(value.type) and hoister.is_parameter(*argument):
            numbers.add(argument[1])
        else:
            return None
    return {number for number in numbers if number is not None}


def _operands(op: ir.Operation) -> Iterator[ir.Value]:
    """Yields the operands of `op`, and the values that its body reads from the function around it."""
    yield from op.operands
    if len(op.regions):
        blocks = [block for region in op.regions for block in region.blocks]
        for nested in nested_ops(op):
            for value in nested.operands:
                defining_block = value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block
                if defining_block not in blocks:
                    yield value


def _does_arithmetic(op: ir.Operation) -> bool:
    """True if `op` does more than move elements."""
    return op.name == "linalg.generic" and len(op.regions[0].blocks[0].operations) > 1


def _ops_between(value: ir.Value, parameter: ir.Value) -> list[ir.Operation]:
    """Returns the ops that compute `value` from `parameter`, in the order of their block."""
    ops, pending = [], [value]
    while pending:
        last = pending.pop()
        if last == parameter or last.owner.operation in ops:
            continue
        ops.append(last.owner.operation)
        pending += _operands(last.owner.operation)
    return [op.operation for op in value.owner.operation.block.operations if op.operation in ops]


def _op_in_function_body(op: ir.Operation) -> ir.Operation:
    """Returns `op`, or the op around it that is directly in a function."""
    while op.parent.operation.name != "func.func":
        op = op.parent.operation
    return op


def _argument_of(value: ir.Value) -> tuple[str, int] | None:
    """Returns the function and the number of a function's argument; `None` for another value."""
    if not isinstance(value, ir.BlockArgument) or value.owner.owner.operation.name != "func.func":
        return None
    return symbol_of(value.owner.owner.operation), value.arg_number


def _is_static_tensor(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType) and type_.has_static_shape


# ---- packing of moved values -----------------------------------------------------------------------------------------


@register
@dataclass(frozen=True)
class ChainPackings(MlirPass):
    """For each argument that is both prepared and packed, emits a function that does both, from the model's weight."""

    name: ClassVar[str] = "chain-packings"
    summary: ClassVar[str] = "make one packing function of the preparation of a weight and of its packing"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        entry = entry_of(root)
        if entry is None or "arg_attrs" not in entry.attributes:
            return
        functions = functions_of(root)
        attributes, chained = argument_attributes(entry), dict[tuple[str, str], str]()
        for number, attribute in enumerate(attributes):
            if PREPARE_ATTRIBUTE not in attribute or PACK_ATTRIBUTE not in attribute:
                continue
            names = ir.StringAttr(attribute[PREPARE_ATTRIBUTE]).value, ir.StringAttr(attribute[PACK_ATTRIBUTE]).value
            if names not in chained:
                chained[names] = _chain(root, *(functions[name] for name in names))
            other_attributes = {
                named.name: named.attr for named in attribute if named.name not in (PREPARE_ATTRIBUTE, PACK_ATTRIBUTE)
            }
            attributes[number] = ir.DictAttr.get(
                {**other_attributes, PACK_ATTRIBUTE: ir.StringAttr.get(chained[names])}
            )
        entry.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)


def _chain(root: ir.Operation, prepare: ir.Operation, pack: ir.Operation) -> str:
    """Emits a function that prepares a weight in a temporary buffer and packs the buffer; returns its name."""
    weight_type, prepared_type = _input_types(prepare)
    _, packed_type = _input_types(pack)
    name = unique_symbol(root, f"{symbol_of(prepare)}_{symbol_of(pack)}")
    with ir.InsertionPoint(root.regions[0].blocks[0]), pack.location:
        function = func.FuncOp(name, ([weight_type, packed_type], []))
        for attribute in ("llvm.emit_c_interface", RUNS_ONCE):
            function.attributes[attribute] = ir.UnitAttr.get()
        block = function.add_entry_block()
        with ir.InsertionPoint(block):
            buffer = memref.alloc(prepared_type, [], [], alignment=64)
            func.CallOp([], ir.FlatSymbolRefAttr.get(symbol_of(prepare)), [block.arguments[0], buffer])
            func.CallOp([], ir.FlatSymbolRefAttr.get(symbol_of(pack)), [buffer, block.arguments[1]])
            func.ReturnOp([])
    return name


def _input_types(function: ir.Operation) -> list[ir.Type]:
    return list(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).inputs)
