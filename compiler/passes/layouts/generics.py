"""Rewrites `linalg.generic` ops and the signatures of private functions to other layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import callee_of, calls_in, collect, symbol_of
from buddy.compiler.passes.kernels.contraction import indexing_maps, is_contraction, reads_loops
from buddy.compiler.passes.kernels.weights import PARAMETER
from buddy.compiler.passes.layouts.values import Order, ValueLayouts, natural, rank_of

# An image with so few channels is not transposed: vectors are better along its lines, and the transpose takes time.
FEW_CHANNELS = 4


def is_convolution(op: Any) -> bool:
    """True if a generic on tensors is a convolution: it sums products under a sliding window."""
    return op.name == "linalg.generic" and len(op.results) == 1 and is_contraction(op) and not reads_loops(op)


# ---- convolutions ----------------------------------------------------------------------------------------------------


def arrange_convolution(op: Any, layouts: ValueLayouts) -> None:
    """Rewrites a convolution to channels last; its weights keep their layout, since they get packed."""
    roles = _roles(op)
    loops = sorted(range(len(roles)), key=lambda loop: (roles[loop], loop))
    image, weights, start = op.operands
    of_image, _, of_result = (_anchors(map_, roles) for map_ in indexing_maps(op))
    reads, writes = (_sorted_dims(anchors, loops) for anchors in (of_image, of_result))
    if not layouts.is_permuted(image) and _has_few_channels(image, of_image, roles):
        reads = natural(rank_of(image))
    operands = [layouts.ordered(image, reads), weights, layouts.ordered(start, writes)]
    _rewrite(op, layouts, operands, loops)


def _has_few_channels(image: Any, anchors: Sequence[int], roles: dict[int, int]) -> bool:
    if _GROUP in roles.values():
        return False
    channels = (size for size, loop in zip(image.type.shape, anchors, strict=True) if roles[loop] == _CHANNEL)
    return prod(channels) <= FEW_CHANNELS


# The roles of a convolution's loops, in the order in which the loops are arranged.
_IMAGE, _PLACE, _GROUP, _OUT, _WINDOW, _CHANNEL = range(6)


def _roles(op: Any) -> dict[int, int]:
    """Returns the role of each loop of a convolution."""
    image, weights, _ = ([_loops_in(e) for e in map_.results] for map_ in indexing_maps(op))
    alone = {loops[0] for loops in image if len(loops) == 1}
    weighted = {loop for loops in weights for loop in loops}
    reductions = _reductions(op)

    def role(loop: int) -> int:
        if loop in reductions:
            return _CHANNEL if loop in alone else _WINDOW
        if loop in alone:
            return _GROUP if loop in weighted else _IMAGE
        return _OUT if loop in weighted else _PLACE

    return {loop: role(loop) for loop in range(len(op.attributes["iterator_types"]))}


def _anchors(map_: Any, roles: dict[int, int]) -> list[int]:
    """Returns the loop that moves each dim of an operand most: the window's position, not the offset in it."""
    return [min(_loops_in(e), key=lambda loop: roles[loop]) for e in map_.results]


def _sorted_dims(anchors: Sequence[int], loops: Sequence[int]) -> Order:
    return tuple(sorted(range(len(anchors)), key=lambda dim: loops.index(anchors[dim])))


# ---- other generics --------------------------------------------------------------------------------------------------


def arrange(op: Any, layouts: ValueLayouts) -> None:
    """Rewrites any generic, including its results, to the layout of its largest operand.

    Operands that would be accessed against that layout are transposed.
    """
    maps, operands = indexing_maps(op), list(op.operands)
    number = max(range(len(operands)), key=lambda i: (prod(operands[i].type.shape), layouts.is_permuted(operands[i])))
    leader = layouts.order(operands[number])
    loops = _loop_order(op, [maps[number].results[dim] for dim in leader])
    orders = [_operand_order(map_, value, loops, leader, layouts) for map_, value in zip(maps, operands, strict=True)]
    operands = [layouts.ordered(value, order) for value, order in zip(operands, orders, strict=True)]
    _rewrite(op, layouts, operands, loops)


def _loop_order(op: Any, indices: Sequence[Any]) -> list[int]:
    """Returns the loops in the order of `indices`: parallel loops that are not among them first, windows last."""
    reductions = _reductions(op)
    found = [_loops_in(index) for index in indices]
    walked = [loop for loops in found for loop in loops if len(loops) == 1 or loop not in reductions]
    every = range(len(op.attributes["iterator_types"]))
    first = [loop for loop in every if loop not in walked and loop not in reductions]
    last = [loop for loop in every if loop not in walked and loop in reductions]
    return [*first, *dict.fromkeys(walked), *last]


def _operand_order(map_: Any, value: Any, loops: Sequence[int], leader: Order, layouts: ValueLayouts) -> Order:
    """Returns a layout of `value` whose dims are in the order of `loops`: its own or the leader's if possible."""
    own = layouts.order(value)
    places = [min((loops.index(loop) for loop in _loops_in(e)), default=-1) for e in map_.results]
    moving = {dim for dim, size in zip(own, value.type.shape, strict=True) if size != 1 and places[dim] >= 0}
    for order in (own, leader):
        walked = [places[dim] for dim in order if dim in moving]
        if len(order) == len(own) and walked == sorted(walked):
            return order
    return tuple(sorted(range(len(places)), key=lambda dim: places[dim]))


# ---- shared functions ------------------------------------------------------------------------------------------------


def _reductions(op: Any) -> frozenset[int]:
    return frozenset(i for i, kind in enumerate(op.attributes["iterator_types"]) if "reduction" in str(kind))


def _loops_in(expression: Any) -> list[int]:
    """Returns the loops that an index expression depends on."""
    if isinstance(expression, ir.AffineDimExpr):
        return [expression.position]
    if isinstance(expression, ir.AffineBinaryExpr):
        return [*_loops_in(expression.lhs), *_loops_in(expression.rhs)]
    return []


def _rewrite(op: Any, layouts: ValueLayouts, operands: Sequence[Any], loops: Sequence[int]) -> None:
    """Rewrites `op` to `operands`, its own in other layouts, with its loops in the order `loops`."""
    renumbered = ir.AffineMap.get(len(loops), 0, [ir.AffineDimExpr.get(loops.index(i)) for i in range(len(loops))])
    maps = []
    for number, (map_, value) in enumerate(zip(indexing_maps(op), operands, strict=True)):
        results = [map_.results[dim].compose(renumbered) for dim in layouts.order(value)]
        maps.append(ir.AffineMapAttr.get(ir.AffineMap.get(len(loops), 0, results)))
        op.operands[number] = value
    kinds = op.attributes["iterator_types"]
    op.attributes["indexing_maps"] = ir.ArrayAttr.get(maps)
    op.attributes["iterator_types"] = ir.ArrayAttr.get([kinds[loop] for loop in loops])
    for inner in collect(op):
        if inner.name == "linalg.index":
            dim = loops.index(int(ir.IntegerAttr(inner.attributes["dim"]).value))
            inner.attributes["dim"] = ir.IntegerAttr.get(inner.attributes["dim"].type, dim)
    for result, value in zip(op.results, operands[-len(op.results) :], strict=True):
        result.set_type(value.type)
        layouts.put(result, layouts.order(value))


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
