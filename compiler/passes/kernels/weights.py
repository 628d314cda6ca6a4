"""Packed weights as arguments, and weights that kernels read in place.

A parameter is an argument with the attribute `buddy.parameter`. For each packing of it that a kernel reads, the
function with the kernel and its callers up to the public entry get an argument with the packed weights, which a packing
function of the module computes. The parameter itself is removed if it has no other uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from buddy.compiler.codegen.calling_convention import PACK_ATTRIBUTE, PREPARE_ATTRIBUTE, STREAMED_ATTRIBUTE
from buddy.compiler.mlir.bindings import func, ir
from buddy.compiler.mlir.walk import (
    argument_attributes,
    bytes_of,
    callee_of,
    callees_first,
    calls_in,
    functions_of,
    has_identity_layout,
    symbol_of,
    unique_symbol,
)
from buddy.compiler.passes.kernels.access import is_used
from buddy.compiler.passes.kernels.packing import Packing, emit_pack_function

# Attribute of arguments of functions that are weights of the model.
PARAMETER = "buddy.parameter"
# Views that keep the order of elements.
_VIEWS = frozenset({"memref.collapse_shape", "memref.expand_shape", "memref.cast"})

ArgumentId = tuple[str, int]  # function name, argument number


def packed_type(packing: Packing, weights: ir.Type) -> ir.MemRefType:
    """Returns the type of the buffer with packed weights, for unpacked ones of type `weights`."""
    element = ir.Type.parse(packing.element) if packing.element else weights.element_type
    return ir.MemRefType.get(list(packing.shape), element)


@dataclass
class _Function:
    """A function and the calls of it. `packed_arguments` are new arguments, by number of the parameter and packing."""

    op: ir.Operation
    calls: list[ir.Operation] = field(default_factory=list)
    packed_arguments: dict[int, dict[Packing, ir.Value]] = field(default_factory=dict)

    @property
    def block(self) -> ir.Block:
        """Returns the only block of the body of the function."""
        return self.op.regions[0].blocks[0]

    @property
    def is_public(self) -> bool:
        """True if other modules may call the function."""
        visibility = "sym_visibility"
        return visibility not in self.op.attributes or "public" in str(self.op.attributes[visibility])


class PackedWeights:
    """The parameters of one module and their packed forms."""

    def __init__(self, module: ir.Operation) -> None:
        self.module = module
        self.functions = {name: _Function(op) for name, op in functions_of(module).items()}
        for function in self.functions.values():
            for call in calls_in(function.op):
                if (callee := callee_of(call)) in self.functions:
                    self.functions[callee].calls.append(call)
        # (type of the parameter, packing) -> (name, function)
        self.pack_functions: dict[tuple[str, Packing], tuple[str, Any]] = {}

    def parameter(self, value: ir.Value) -> ArgumentId | None:
        """Returns the argument of which `value` is a contiguous view, if it is a parameter.

        An argument of a private function is a parameter only if every caller passes a parameter.
        """
        argument = _argument_of(value)
        return argument if argument is not None and self._is_parameter(argument) else None

    def _is_parameter(self, argument: ArgumentId) -> bool:
        """True if an argument is a parameter in all calls of its function."""
        name, number = argument
        function = self.functions[name]
        if PARAMETER not in argument_attributes(function.op)[number]:
            return False
        if function.is_public:
            return True
        return bool(function.calls) and all(self.parameter(call.operands[number]) for call in function.calls)

    @cached_property
    def entry_bytes(self) -> int:
        """Returns the bytes of all weights that callers pass, without those that the runtime computes from others."""
        total = 0
        for function in self.functions.values():
            if not function.is_public:
                continue
            for argument, attributes in zip(function.block.arguments, argument_attributes(function.op), strict=True):
                if PARAMETER in attributes and PREPARE_ATTRIBUTE not in attributes and _is_contiguous(argument):
                    total += bytes_of(argument.type)
        return total

    def is_prepared(self, parameter: ArgumentId) -> bool:
        """True if `parameter` is a value that the runtime computes from a weight: its packed form replaces it."""
        name, number = parameter
        function = self.functions[name]
        if function.is_public:
            return PREPARE_ATTRIBUTE in argument_attributes(function.op)[number]
        passed = [self.parameter(call.operands[number]) for call in function.calls]
        return all(argument is not None and self.is_prepared(argument) for argument in passed)

    def packed(self, parameter: ArgumentId, packing: Packing) -> ir.Value:
        """Returns the argument with the packed weights of `parameter`; adds it to the function and its callers if new.

        New arguments are the last ones until `finish`.
        """
        name, number = parameter
        function = self.functions[name]
        arguments = function.packed_arguments.setdefault(number, {})
        if packing not in arguments:
            unpacked = function.block.arguments[number]
            type_ = packed_type(packing, ir.MemRefType(unpacked.type))
            arguments[packing] = function.block.add_argument(type_, unpacked.location)
            function.calls = [self._add_operand(call, number, packing) for call in list(function.calls)]
        return arguments[packing]

    def _add_operand(self, call: ir.Operation, number: int, packing: Packing) -> ir.Operation:
        """Adds the packed weights of operand `number` to `call`; returns the new call."""
        parameter = self.parameter(call.operands[number])
        assert parameter is not None
        return _replace_call(call, [*call.operands, self.packed(parameter, packing)], self)

    def replace_call(self, old: ir.Operation, new: ir.Operation) -> None:
        """Replaces the call `old` by `new` in the callee's list of calls."""
        calls = self.functions[callee_of(new)].calls
        calls[:] = [new if call == old else call for call in calls]

    def finish(self) -> dict[Packing, list[ir.Operation]]:
        """Moves packed arguments next to their parameters, and removes parameters without other uses.

        Emits the packing functions; returns them by their packing.
        """
        for name in callees_first({name: function.op for name, function in self.functions.items()}):
            if self.functions[name].packed_arguments:
                self._finish_function(self.functions[name])
        functions: dict[Packing, list[Any]] = {}
        for (_, packing), (_, function) in self.pack_functions.items():
            functions.setdefault(packing, []).append(function)
        return functions

    def _finish_function(self, function: _Function) -> None:
        """Gives a function its final arguments, and its calls the operands for them."""
        arguments = list(function.block.arguments)
        attributes = argument_attributes(function.op)
        order, new_attributes = [], []  # the numbers of the final arguments, and their attributes
        numbers: dict[ir.Value, int] = {argument: number for number, argument in enumerate(arguments)}
        for number in range(len(attributes)):
            packed_arguments = function.packed_arguments.get(number, {})
            if not packed_arguments or is_used(arguments[number]):
                order.append(number)
                new_attributes.append(attributes[number])
            for packing, packed in packed_arguments.items():
                order.append(numbers[packed])
                new_attributes.append(self._packed_attributes(function, arguments[number], attributes[number], packing))
        _reorder(function.op, order, new_attributes)
        for call in list(function.calls):
            operands = list(call.operands)
            _replace_call(call, [operands[i] for i in order], self)
            for operand in operands:
                drop_dead_views(operand)

    def _packed_attributes(
        self, function: _Function, unpacked: ir.Value, attributes: ir.Attribute, packing: Packing
    ) -> ir.DictAttr:
        """Returns the attributes of a packed argument: those of the parameter, and the packing function."""
        new = {named.name: named.attr for named in ir.DictAttr(attributes)}
        if function.is_public:
            new[PACK_ATTRIBUTE] = ir.StringAttr.get(self._pack_function_name(unpacked, packing))
        return ir.DictAttr.get(new)

    def _pack_function_name(self, unpacked: ir.Value, packing: Packing) -> str:
        """Returns the name of the packing function for a parameter of the type of `unpacked`; emits it if it is new."""
        key = (str(unpacked.type), packing)
        if key not in self.pack_functions:
            name = unique_symbol(self.module, f"pack_{len(self.pack_functions)}")
            types = unpacked.type, packed_type(packing, ir.MemRefType(unpacked.type))
            with ir.InsertionPoint(self.module.regions[0].blocks[0]), unpacked.location:
                self.pack_functions[key] = (name, emit_pack_function(name, *types, packing))
        return self.pack_functions[key][0]


def _reorder(op: ir.Operation, order: list[int], attributes: Sequence[ir.Attribute]) -> None:
    """Gives the function `op` its arguments numbered `order`, with `attributes`; other arguments must have no uses."""
    block = op.regions[0].blocks[0]
    old = list(block.arguments)
    for number in order:
        new = block.add_argument(old[number].type, old[number].location)
        old[number].replace_all_uses_with(new)
    for _ in old:
        block.erase_argument(0)
    results = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value).results
    type_ = ir.FunctionType.get([argument.type for argument in block.arguments], list(results))
    op.attributes["function_type"] = ir.TypeAttr.get(type_)
    op.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)


def _replace_call(call: ir.Operation, operands: list[ir.Value], weights: PackedWeights) -> ir.Operation:
    """Replaces `call` by a call with `operands`, also in the lists of `weights`; returns the new call."""
    with ir.InsertionPoint(call), call.location:
        new = func.CallOp([result.type for result in call.results], ir.FlatSymbolRefAttr.get(callee_of(call)), operands)
    for old_result, new_result in zip(call.results, new.results, strict=True):
        old_result.replace_all_uses_with(new_result)
    weights.replace_call(call, new.operation)
    call.erase()
    operation: ir.Operation = new.operation
    return operation


def drop_dead_views(value: ir.Value) -> None:
    """Erases the view that defines `value`, and then its source, as long as that is an unused view too."""
    while isinstance(value, ir.OpResult) and value.owner.name in _VIEWS and not is_used(value):
        owner = value.owner
        value = owner.operands[0]
        owner.erase()


def _argument_of(value: ir.Value) -> ArgumentId | None:
    """Returns the function argument of which `value` is a contiguous view, or `None`."""
    while isinstance(value, ir.OpResult) and value.owner.name in _VIEWS and _is_contiguous(value):
        value = value.owner.operands[0]
    if not isinstance(value, ir.BlockArgument) or not _is_contiguous(value):
        return None
    op = value.owner.owner
    return (symbol_of(op), value.arg_number) if op.operation.name == "func.func" else None


def _is_contiguous(value: ir.Value) -> bool:
    type_ = value.type
    return isinstance(type_, ir.MemRefType) and type_.has_static_shape and has_identity_layout(type_)


def mark_streamed(weights: PackedWeights, parameter: ArgumentId) -> None:
    """Marks a parameter as read in place: gives an attribute to the public functions' arguments that it comes from."""
    name, number = parameter
    function = weights.functions[name]
    if not function.is_public:
        for call in function.calls:
            passed = weights.parameter(call.operands[number])
            assert passed is not None, "a parameter is a parameter in every caller"
            mark_streamed(weights, passed)
        return
    attributes = list(ir.ArrayAttr(function.op.attributes["arg_attrs"]))
    old = {named.name: named.attr for named in ir.DictAttr(attributes[number])}
    attributes[number] = ir.DictAttr.get({**old, STREAMED_ATTRIBUTE: ir.UnitAttr.get()})
    function.op.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
