"""Packed weights as arguments, and weights that kernels read in place.

A parameter (argument attribute `buddy.parameter`) that is only used by contractions is replaced, from the function that
uses it up to the public entry, by a buffer that a packing function of the module fills.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from buddy.compiler.codegen.calling_convention import STREAMED
from buddy.compiler.mlir.bindings import func, ir
from buddy.compiler.mlir.walk import callee_of, calls_in, symbol_of, unique_symbol
from buddy.compiler.passes.kernels.packing import Packing, pack_function

PARAMETER = "buddy.parameter"
PACK = "buddy.pack"
VIEWS = frozenset({"memref.collapse_shape", "memref.expand_shape", "memref.cast"})

Place = tuple[str, int]  # function name, argument number


@dataclass
class _Function:
    op: Any
    calls: list[Any] = field(default_factory=list)
    packs: dict[int, dict[Packing, Any]] = field(default_factory=dict)  # raw argument -> panels -> packed argument

    @property
    def block(self) -> Any:
        return self.op.regions[0].blocks[0]

    @property
    def public(self) -> bool:
        visibility = "sym_visibility"
        return visibility not in self.op.attributes or "public" in str(self.op.attributes[visibility])


class PackedWeights:
    """The parameters of one module and their packed forms."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.functions = {symbol_of(op): _Function(op) for op in module.regions[0].blocks[0] if _has_body(op)}
        for function in self.functions.values():
            for call in calls_in(function.op):
                if (callee := callee_of(call)) in self.functions:
                    self.functions[callee].calls.append(call)
        self.pack_functions: dict[tuple[str, Packing], tuple[str, Any]] = {}

    def parameter(self, value: Any) -> Place | None:
        """Returns the argument of which `value` is a contiguous view, if it is a parameter in all callers."""
        place = _argument(value)
        return place if place is not None and self._is_parameter(place) else None

    def _is_parameter(self, place: Place) -> bool:
        function = self.functions[place[0]]
        if PARAMETER not in _argument_attributes(function.op)[place[1]]:
            return False
        if function.public:
            return True
        return bool(function.calls) and all(self.parameter(call.operands[place[1]]) for call in function.calls)

    def packed(self, place: Place, panels: Packing) -> Any:
        """Returns the argument with the panels of the parameter at `place`; adds it here and in all callers if new.

        Added arguments come last until `finish`.
        """
        name, number = place
        function = self.functions[name]
        known = function.packs.setdefault(number, {})
        if panels not in known:
            raw = function.block.arguments[number]
            type_ = ir.MemRefType.get(list(panels.shape), raw.type.element_type)
            known[panels] = function.block.add_argument(type_, raw.location)
            function.calls = [self._with_operand(call, number, panels) for call in list(function.calls)]
        return known[panels]

    def _with_operand(self, call: Any, number: int, panels: Packing) -> Any:
        above = self.parameter(call.operands[number])
        assert above is not None
        return _replace_call(call, [*call.operands, self.packed(above, panels)], self)

    def replace_call(self, old: Any, new: Any) -> None:
        """Replaces the call `old` by `new` in the callee's list of calls."""
        calls = self.functions[callee_of(new)].calls
        calls[:] = [new if call == old else call for call in calls]

    def finish(self) -> dict[Packing, list[Any]]:
        """Moves packed arguments next to their sources, drops unused sources, and emits the packing functions.

        Returns these functions.
        """
        for name in self._callees_first():
            if self.functions[name].packs:
                self._finish(self.functions[name])
        written: dict[Packing, list[Any]] = {}
        for (_, panels), (_, function) in self.pack_functions.items():
            written.setdefault(panels, []).append(function)
        return written

    def _callees_first(self) -> list[str]:
        """Returns the functions, callees first; recursive ones, which `async-parallel-for` creates, in any order."""
        order: list[str] = []
        visited: set[str] = set()

        def visit(name: str) -> None:
            if name in visited:
                return
            visited.add(name)
            for call in calls_in(self.functions[name].op):
                if callee_of(call) in self.functions:
                    visit(callee_of(call))
            order.append(name)

        for name in self.functions:
            visit(name)
        return order

    def _finish(self, function: _Function) -> None:
        arguments = list(function.block.arguments)
        attributes = _argument_attributes(function.op)
        order, new_attributes = [], []
        numbers = {a: i for i, a in enumerate(arguments)}
        for number in range(len(attributes)):
            packs = function.packs.get(number, {})
            if not packs or _used(arguments[number]):
                order.append(number)
                new_attributes.append(attributes[number])
            for panels, packed in packs.items():
                order.append(numbers[packed])
                new_attributes.append(self._packed_attributes(function, arguments[number], attributes[number], panels))
        _reorder(function.op, order, new_attributes)
        for call in list(function.calls):
            operands = list(call.operands)
            _replace_call(call, [operands[i] for i in order], self)
            for operand in operands:
                drop_dead_views(operand)

    def _packed_attributes(self, function: _Function, raw: Any, attributes: Any, panels: Packing) -> Any:
        kept = {named.name: named.attr for named in _named(attributes)}
        if function.public:
            kept[PACK] = ir.StringAttr.get(self._pack_name(raw, panels))
        return ir.DictAttr.get(kept)

    def _pack_name(self, raw: Any, panels: Packing) -> str:
        key = (str(raw.type), panels)
        if key not in self.pack_functions:
            name = unique_symbol(self.module, f"pack_{len(self.pack_functions)}")
            packed = ir.MemRefType.get(list(panels.shape), raw.type.element_type)
            with ir.InsertionPoint(self.module.regions[0].blocks[0]), raw.location:
                self.pack_functions[key] = (name, pack_function(name, raw.type, packed, panels))
        return self.pack_functions[key][0]


def _reorder(op: Any, order: list[int], attributes: list[Any]) -> None:
    """Gives the function `op` the arguments numbered in `order`; the others have no uses."""
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


def _replace_call(call: Any, operands: list[Any], weights: PackedWeights) -> Any:
    with ir.InsertionPoint(call), call.location:
        new = func.CallOp([result.type for result in call.results], ir.FlatSymbolRefAttr.get(callee_of(call)), operands)
    for old_result, new_result in zip(call.results, new.results, strict=True):
        old_result.replace_all_uses_with(new_result)
    weights.replace_call(call, new.operation)
    call.erase()
    return new.operation


def drop_dead_views(value: Any) -> None:
    """Erases the views that produce `value`, as long as they are unused."""
    while isinstance(value, ir.OpResult) and value.owner.name in VIEWS and not _used(value):
        owner = value.owner
        value = owner.operands[0]
        owner.erase()


def _argument(value: Any) -> Place | None:
    while isinstance(value, ir.OpResult) and value.owner.name in VIEWS and _contiguous(value):
        value = value.owner.operands[0]
    if not isinstance(value, ir.BlockArgument) or not _contiguous(value):
        return None
    op = value.owner.owner
    return (symbol_of(op), value.arg_number) if op.operation.name == "func.func" else None


def _contiguous(value: Any) -> bool:
    type_ = value.type
    return isinstance(type_, ir.MemRefType) and type_.has_static_shape and _identity(type_)


def _identity(type_: Any) -> bool:
    return bool(type_.layout == ir.AffineMapAttr.get(ir.AffineMap.get_identity(type_.rank)))


def _used(value: Any) -> bool:
    return any(True for _ in value.uses)


def _has_body(op: Any) -> bool:
    return bool(op.operation.name == "func.func" and len(op.regions[0].blocks))


def _argument_attributes(op: Any) -> list[Any]:
    """Returns one dictionary of attributes per argument of the function's type."""
    count = len(ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value).inputs)
    if "arg_attrs" in op.attributes:
        return [ir.DictAttr(attribute) for attribute in ir.ArrayAttr(op.attributes["arg_attrs"])]
    return [ir.DictAttr.get({}) for _ in range(count)]


def _named(attributes: Any) -> list[Any]:
    return [attributes[i] for i in range(len(attributes))]


def mark_streamed(weights: PackedWeights, place: Place) -> None:
    """Marks the arguments of the entry that the parameter at `place` comes from."""
    name, number = place
    function = weights.functions[name]
    if not function.public:
        for call in function.calls:
            above = weights.parameter(call.operands[number])
            assert above is not None, "a parameter is a parameter in every caller"
            mark_streamed(weights, above)
        return
    flags = list(ir.ArrayAttr(function.op.attributes["arg_attrs"]))
    known = {named.name: named.attr for named in ir.DictAttr(flags[number])}
    flags[number] = ir.DictAttr.get({**known, STREAMED: ir.UnitAttr.get()})
    function.op.attributes["arg_attrs"] = ir.ArrayAttr.get(flags)
