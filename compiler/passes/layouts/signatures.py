"""Changes the layouts of arguments and results of private functions to those that caller and callee use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import callee_of, calls_in, symbol_of
from buddy.compiler.passes.kernels.weights import PARAMETER
from buddy.compiler.passes.layouts.values import Order, ValueLayouts, natural, rank_of


@dataclass
class FunctionSignatures:
    """The functions of a module, callees first, and the layouts of those whose signature has changed."""

    module: Any
    orders: dict[str, tuple[list[Order | None], list[Order]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = [op.operation for op in self.module.regions[0].blocks[0] if op.operation.name == "func.func"]
        self._functions = {symbol_of(op): op for op in found if len(op.regions[0].blocks)}
        self._callees = {name: [callee_of(call) for call in calls_in(op)] for name, op in self._functions.items()}

    def functions(self) -> list[Any]:
        """Returns the functions with a body, callees first."""
        done: dict[str, Any] = {}

        def visit(name: str) -> None:
            if name in self._functions and name not in done:
                for callee in self._callees[name]:
                    visit(callee)
                done[name] = self._functions[name]

        for name in self._functions:
            visit(name)
        return list(done.values())

    def calls_changed(self, op: Any) -> bool:
        """True if `op` calls a function whose signature has changed."""
        return op.name == "func.call" and callee_of(op) in self.orders

    def change(self, function: Any) -> int:
        """Changes arguments and results that a private function only transposes; returns how many changed.

        Callers are rewritten later, with copies where needed. Parameters do not change, since they are packed.
        """
        if "sym_visibility" not in function.attributes or "private" not in str(function.attributes["sym_visibility"]):
            return 0
        block = function.regions[0].blocks[0]
        end = block.operations[len(block.operations) - 1].operation
        attributes = ir.ArrayAttr(function.attributes["arg_attrs"]) if "arg_attrs" in function.attributes else None
        inputs = [
            None
            if attributes is not None and PARAMETER in ir.DictAttr(attributes[i])
            else _absorb_argument_transpose(argument)
            for i, argument in enumerate(block.arguments)
        ]
        results = [_absorb_result_transpose(end, i) for i in range(len(end.operands))]
        changed = sum(order is not None and order != natural(len(order)) for order in (*inputs, *results))
        if changed:
            self.orders[symbol_of(function)] = inputs, results
            type_ = ir.FunctionType.get([a.type for a in block.arguments], [value.type for value in end.operands])
            function.attributes["function_type"] = ir.TypeAttr.get(type_)
        return changed

    def arrange_call(self, call: Any, layouts: ValueLayouts) -> None:
        """Passes operands in the callee's layouts, and records the layouts of the results."""
        inputs, results = self.orders[callee_of(call)]
        for number, order in enumerate(inputs):
            value = call.operands[number]
            if isinstance(value.type, ir.RankedTensorType):
                call.operands[number] = layouts.ordered(value, order) if order is not None else layouts.plain(value)
        for result, order in zip(call.results, results, strict=True):
            result.set_type(_permute_type(result.type, order))
            layouts.put(result, order)


def _absorb_argument_transpose(argument: Any) -> Order | None:
    """Gives `argument` the layout of its transposes, if they are equal and its only uses. Returns the layout."""
    uses = [use.owner.operation for use in argument.uses]
    orders = {tuple(_permutation(op)) for op in uses if op.name == "linalg.transpose" and op.operands[0] == argument}
    if len(orders) != 1 or any(op.name != "linalg.transpose" for op in uses):
        return None
    (order,) = orders
    for op in uses:
        op.results[0].replace_all_uses_with(argument)
        op.erase()
    argument.set_type(_permute_type(argument.type, order))
    return order


def _absorb_result_transpose(end: Any, number: int) -> Order:
    """Makes the function return the source of result `number`, if it is a transpose. Returns the result's layout."""
    value = end.operands[number]
    if not isinstance(value, ir.OpResult) or value.owner.name != "linalg.transpose":
        return natural(rank_of(value)) if isinstance(value.type, ir.RankedTensorType) else ()
    permutation = _permutation(value.owner)
    end.operands[number] = value.owner.operands[0]
    return tuple(permutation.index(dim) for dim in range(len(permutation)))


def _permutation(op: Any) -> Sequence[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))


def _permute_type(type_: Any, order: Order) -> Any:
    if not isinstance(type_, ir.RankedTensorType):
        return type_
    return ir.RankedTensorType.get([type_.shape[dim] for dim in order], type_.element_type)
