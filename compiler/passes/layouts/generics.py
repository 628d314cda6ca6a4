"""Rewrites `linalg.generic` ops and the signatures of private functions to other layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod
from typing import Any

from buddy.compiler.mlir.bindings import ir, tensor
from buddy.compiler.mlir.walk import callee_of, callees_first, calls_in, functions_of, nested_ops, symbol_of
from buddy.compiler.passes.kernels.access import permutation_of
from buddy.compiler.passes.kernels.contraction import has_plain_indices, indexing_maps, is_contraction
from buddy.compiler.passes.kernels.conv.tap_sums import MAX_CHANNELS, READ_STEPS
from buddy.compiler.passes.kernels.weights import PARAMETER
from buddy.compiler.passes.layouts.values import Order, ValueLayouts, identity_order, rank_of

# An image with at most this many channels is not transposed: vectors along its lines are fuller than vectors of
# channels, and the transpose takes time.
_MAX_UNTRANSPOSED_CHANNELS = 4


def is_convolution(op: ir.Operation) -> bool:
    """True if a generic on tensors is a convolution: it sums products under a sliding window."""
    return op.name == "linalg.generic" and len(op.results) == 1 and is_contraction(op) and not has_plain_indices(op)


# ---- convolutions ----------------------------------------------------------------------------------------------------


class _Role(IntEnum):
    """The role of a loop of a convolution."""

    BATCH = 0
    POSITION = 1  # a spatial loop of the result
    GROUP = 2
    OUT_CHANNEL = 3
    WINDOW = 4  # a spatial loop of the weights
    IN_CHANNEL = 5


# Orders of loops by role, from the outermost to the innermost.
_GROUPS_LAST = tuple(_Role)
_GROUPS_FIRST = (_Role.BATCH, _Role.GROUP, _Role.POSITION, _Role.OUT_CHANNEL, _Role.WINDOW, _Role.IN_CHANNEL)
_TAP_SUMS_ORDER = (_Role.IN_CHANNEL, _Role.BATCH, _Role.POSITION, _Role.WINDOW, _Role.OUT_CHANNEL, _Role.GROUP)


def relayout_convolution(op: ir.Operation, layouts: ValueLayouts) -> bool:
    """Rewrites a convolution to channels last. Its weights keep their layout, since a kernel packs them.

    Returns `False` for an op that stays as it is because all of its operands have the original layout: a matrix product
    that stands alone, or the gradient of weights in groups of few channels.
    """
    roles = _roles(op)
    sums_taps = _sums_taps(op, roles)
    is_permuted = any(layouts.is_permuted(value) for value in op.operands)
    if not is_permuted and (sums_taps or _is_lone_product(op, roles)):
        layouts.track(op.results[0], layouts.order_of(op.results[0]))
        return False
    if sums_taps and _is_depthwise(op, roles):
        _relayout_tap_sums(op, roles, layouts)
        return True
    role_order = _GROUPS_FIRST if not is_permuted and _is_lone_grouped(op, roles) else _GROUPS_LAST
    loops = _loops_by_role(roles, role_order)
    image, weights, init = op.operands
    image_loops, _, result_loops = (_main_loops(map_, roles) for map_ in indexing_maps(op))
    image_order, result_order = (_sorted_dims(dim_loops, loops) for dim_loops in (image_loops, result_loops))
    if not layouts.is_permuted(image) and _has_few_channels(image, image_loops, roles):
        image_order = identity_order(rank_of(image))
    operands = [layouts.in_order(image, image_order), weights, layouts.in_order(init, result_order)]
    _rewrite(op, layouts, operands, loops)
    return True


def _sums_taps(op: ir.Operation, roles: dict[int, _Role]) -> bool:
    """True for the gradient of a convolution's weights in groups of few channels: few sums, each of many products.

    The gradient is a convolution too: its window has the size of the forward result, and its results are the taps, the
    elements of the forward window.
    """
    if _Role.GROUP not in roles.values():
        return False
    sizes = _loop_sizes(op, roles)

    def count(*counted_roles: _Role) -> int:
        """Returns the number of iterations of the loops with these roles."""
        return prod(size for loop, size in sizes.items() if roles[loop] in counted_roles)

    # A forward convolution of many channels on a small image has few sums too, but a small window.
    has_large_window = count(_Role.WINDOW) > count(_Role.POSITION)
    has_few_sums = count(_Role.WINDOW, _Role.IN_CHANNEL) > count(_Role.BATCH, _Role.POSITION)
    if not has_large_window or not has_few_sums or count(_Role.OUT_CHANNEL) > MAX_CHANNELS:
        return False
    return _last_step(op, roles) in READ_STEPS


def _last_step(op: ir.Operation, roles: dict[int, _Role]) -> int:
    """Returns by how many elements of the image the last loop over the window advances along a dim: its dilation."""
    last = max(loop for loop, role in roles.items() if role == _Role.WINDOW)

    def step(expression: ir.AffineExpr) -> int:
        """Returns the factor of the loop `last` in an index."""
        if isinstance(expression, ir.AffineDimExpr):
            return int(expression.position == last)
        if isinstance(expression, ir.AffineAddExpr):
            return step(expression.lhs) + step(expression.rhs)
        if isinstance(expression, ir.AffineMulExpr) and isinstance(expression.rhs, ir.AffineConstantExpr):
            return step(expression.lhs) * expression.rhs.value
        return 0

    return max(step(expression) for expression in indexing_maps(op)[0].results)


def _loop_sizes(op: ir.Operation, roles: dict[int, _Role]) -> dict[int, int]:
    """Returns the size of each loop of a convolution."""
    _, weights, result = indexing_maps(op)
    operands = ((weights, op.operands[1]), (result, op.operands[2]))
    return {
        loop: size
        for map_, value in operands
        for loop, size in zip(_main_loops(map_, roles), value.type.shape, strict=True)
    }


def _is_depthwise(op: ir.Operation, roles: dict[int, _Role]) -> bool:
    """True if the groups of a gradient of weights have one channel.

    In this convolution, the loop over the forward input channels of a group has the role `BATCH`.
    """
    return all(
        size == 1 for loop, size in _loop_sizes(op, roles).items() if roles[loop] in (_Role.BATCH, _Role.OUT_CHANNEL)
    )


def _relayout_tap_sums(op: ir.Operation, roles: dict[int, _Role], layouts: ValueLayouts) -> None:
    """Rewrites the gradient of depthwise weights to channels last. Its kernel reads both operands in place."""
    image, weights, init = op.operands
    loops = _loops_by_role(roles, _TAP_SUMS_ORDER)
    orders = [_sorted_dims(_main_loops(map_, roles), loops) for map_ in indexing_maps(op)]
    operands = [layouts.in_order(value, order) for value, order in zip((image, weights, init), orders, strict=True)]
    _rewrite(op, layouts, operands, loops)


def _is_lone_product(op: ir.Operation, roles: dict[int, _Role]) -> bool:
    """True for a convolution without a window whose image and result would be transposed for it alone.

    It is a matrix product for each image of the batch, in any layout. No other convolution depends on it; that is known
    only in a public function, whose callers are outside of the module.
    """
    image, weights, result = op.operands
    if _Role.GROUP in roles.values():
        return False
    image_loops, weight_loops, result_loops = (_main_loops(map_, roles) for map_ in indexing_maps(op))

    def sizes(value: ir.Value, loops: Sequence[int], role: _Role) -> list[int]:
        """Returns the sizes of the dims of `value` whose loops, in `loops`, have `role`."""
        return [size for size, loop in zip(value.type.shape, loops, strict=True) if roles[loop] == role]

    has_window = prod(sizes(weights, weight_loops, _Role.WINDOW)) != 1
    image_positions = sizes(image, image_loops, _Role.POSITION)
    is_product = not has_window and image_positions == sizes(result, result_loops, _Role.POSITION)
    return is_product and "sym_visibility" not in op.parent.attributes and not _reaches_convolution(op)


def _is_lone_grouped(op: ir.Operation, roles: dict[int, _Role]) -> bool:
    """True for a convolution in groups of several channels whose image and result would be transposed for it alone.

    The channels of a group are then a separate tensor that is small enough for the caches, and the kernel and the
    transposes read whole cache lines of it.
    """
    image_loops, _, result_loops = (_main_loops(map_, roles) for map_ in indexing_maps(op))
    channels = [
        prod(size for size, loop in zip(value.type.shape, loops, strict=True) if roles[loop] == role)
        for value, loops, role in (
            (op.operands[0], image_loops, _Role.IN_CHANNEL),
            (op.operands[2], result_loops, _Role.OUT_CHANNEL),
        )
    ]
    is_grouped = _Role.GROUP in roles.values() and min(channels) > 1
    return is_grouped and "sym_visibility" not in op.parent.attributes and not _reaches_convolution(op)


def _reaches_convolution(op: ir.Operation) -> bool:
    """True if a convolution, or a call, depends on the result of `op`."""
    pending, seen = [op.results[0]], set[Any]()
    while pending:
        for use in pending.pop().uses:
            user = use.owner.operation
            if user in seen:
                continue
            seen.add(user)
            if is_convolution(user) or user.name == "func.call":
                return True
            pending += user.results
    return False


def _has_few_channels(image: ir.Value, image_loops: Sequence[int], roles: dict[int, _Role]) -> bool:
    """True if the image is not transposed, see `_MAX_UNTRANSPOSED_CHANNELS`."""
    if _Role.GROUP in roles.values():
        return False
    channels = (
        size for size, loop in zip(image.type.shape, image_loops, strict=True) if roles[loop] == _Role.IN_CHANNEL
    )
    return prod(channels) <= _MAX_UNTRANSPOSED_CHANNELS


def _roles(op: ir.Operation) -> dict[int, _Role]:
    """Returns the role of each loop of a convolution."""
    image, weights, _ = ([_loops_in(e) for e in map_.results] for map_ in indexing_maps(op))
    image_dims = {loops[0] for loops in image if len(loops) == 1}
    weight_loops = {loop for loops in weights for loop in loops}
    reductions = _reductions(op)

    def role(loop: int) -> _Role:
        if loop in reductions:
            return _Role.IN_CHANNEL if loop in image_dims else _Role.WINDOW
        if loop in image_dims:
            return _Role.GROUP if loop in weight_loops else _Role.BATCH
        return _Role.OUT_CHANNEL if loop in weight_loops else _Role.POSITION

    return {loop: role(loop) for loop in range(len(op.attributes["iterator_types"]))}


def _loops_by_role(roles: dict[int, _Role], role_order: Sequence[_Role]) -> list[int]:
    """Returns all loops, sorted by their roles; loops with the same role keep their order."""
    return sorted(roles, key=lambda loop: (role_order.index(roles[loop]), loop))


def _main_loops(map_: ir.AffineMap, roles: dict[int, _Role]) -> list[int]:
    """Returns the loop that indexes each dim of an operand.

    A spatial dim of the image is indexed by a position plus an offset in the window; the loop over positions counts.
    """
    return [min(_loops_in(e), key=lambda loop: roles[loop]) for e in map_.results]


def _sorted_dims(dim_loops: Sequence[int], loops: Sequence[int]) -> Order:
    """Returns the dims in the order of `loops`; `dim_loops[dim]` is the loop that indexes `dim`."""
    return tuple(sorted(range(len(dim_loops)), key=lambda dim: loops.index(dim_loops[dim])))


# ---- other generics --------------------------------------------------------------------------------------------------


def relayout_generic(op: ir.Operation, layouts: ValueLayouts) -> None:
    """Rewrites any generic, including its results, to the layout of its largest operand.

    The loops get the order of that operand's dims; operands whose dims are in another order are transposed.
    """
    maps, operands = indexing_maps(op), list(op.operands)
    largest = max(range(len(operands)), key=lambda i: (prod(operands[i].type.shape), layouts.is_permuted(operands[i])))
    largest_order = layouts.order_of(operands[largest])
    loops = _loop_order(op, [maps[largest].results[dim] for dim in largest_order])
    orders = [
        _operand_order(map_, value, loops, largest_order, layouts) for map_, value in zip(maps, operands, strict=True)
    ]
    operands = [layouts.in_order(value, order) for value, order in zip(operands, orders, strict=True)]
    _rewrite(op, layouts, operands, loops)


def _loop_order(op: ir.Operation, indices: Sequence[ir.AffineExpr]) -> list[int]:
    """Returns the loops in the order in which `indices` use them.

    Parallel loops that are not in `indices` are first; other reductions, and offsets in a window, are last.
    """
    reductions = _reductions(op)
    loops_of_indices = [_loops_in(index) for index in indices]
    indexing = [loop for loops in loops_of_indices for loop in loops if len(loops) == 1 or loop not in reductions]
    others = [loop for loop in range(len(op.attributes["iterator_types"])) if loop not in indexing]
    parallel = [loop for loop in others if loop not in reductions]
    return [*parallel, *dict.fromkeys(indexing), *(loop for loop in others if loop in reductions)]


def _operand_order(
    map_: ir.AffineMap, value: ir.Value, loops: Sequence[int], largest_order: Order, layouts: ValueLayouts
) -> Order:
    """Returns a layout of `value` in which its dims are in the order of `loops`.

    Prefers the layout that `value` has, then `largest_order`, the layout of the largest operand.
    """
    current = layouts.order_of(value)
    positions = [min((loops.index(loop) for loop in _loops_in(e)), default=-1) for e in map_.results]
    varying = {dim for dim, size in zip(current, value.type.shape, strict=True) if size != 1 and positions[dim] >= 0}
    for order in (current, largest_order):
        order_positions = [positions[dim] for dim in order if dim in varying]
        if len(order) == len(current) and order_positions == sorted(order_positions):
            return order
    return tuple(sorted(range(len(positions)), key=lambda dim: positions[dim]))


# ---- shared functions ------------------------------------------------------------------------------------------------


def _reductions(op: ir.Operation) -> frozenset[int]:
    """Returns the loops of a generic that are reductions."""
    return frozenset(i for i, kind in enumerate(op.attributes["iterator_types"]) if "reduction" in str(kind))


def _loops_in(expression: ir.AffineExpr) -> list[int]:
    """Returns the loops that an index expression depends on."""
    if isinstance(expression, ir.AffineDimExpr):
        return [expression.position]
    if isinstance(expression, ir.AffineBinaryExpr):
        return [*_loops_in(expression.lhs), *_loops_in(expression.rhs)]
    return []


def _rewrite(op: ir.Operation, layouts: ValueLayouts, operands: Sequence[ir.Value], loops: Sequence[int]) -> None:
    """Rewrites `op` to `operands`, which are its operands in other layouts, with its loops in the order `loops`."""
    renumbered = ir.AffineMap.get(len(loops), 0, [ir.AffineDimExpr.get(loops.index(i)) for i in range(len(loops))])
    maps = []
    for number, (map_, value) in enumerate(zip(indexing_maps(op), operands, strict=True)):
        results = [map_.results[dim].compose(renumbered) for dim in layouts.order_of(value)]
        maps.append(ir.AffineMapAttr.get(ir.AffineMap.get(len(loops), 0, results)))
        op.operands[number] = value
    kinds = op.attributes["iterator_types"]
    op.attributes["indexing_maps"] = ir.ArrayAttr.get(maps)
    op.attributes["iterator_types"] = ir.ArrayAttr.get([kinds[loop] for loop in loops])
    for inner in nested_ops(op):
        if inner.name == "linalg.index":
            dim = loops.index(int(ir.IntegerAttr(inner.attributes["dim"]).value))
            inner.attributes["dim"] = ir.IntegerAttr.get(inner.attributes["dim"].type, dim)
    for result, value in zip(op.results, operands[-len(op.results) :], strict=True):
        result.set_type(value.type)
        layouts.track(result, layouts.order_of(value))


# ---- signatures of functions -----------------------------------------------------------------------------------------


@dataclass
class FunctionSignatures:
    """The functions of a module, and the layouts of the arguments and results of those whose signature has changed.

    `orders` has the layouts of (arguments, results) by the function's name; `None` stands for an unchanged argument.
    The signatures of recursive functions, and of functions that are called in the body of an op, do not change.
    """

    module: Any
    orders: dict[str, tuple[list[Order | None], list[Order]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._functions = functions_of(self.module)
        self._order = callees_first(self._functions)
        self._unchangeable = self._find_unchangeable()

    def _find_unchangeable(self) -> set[str]:
        """Returns the functions with a call that is not rewritten: one in a nested op, or before the callee changes."""
        positions = {name: position for position, name in enumerate(self._order)}
        unchangeable = set()
        for caller, op in self._functions.items():
            for call in calls_in(op):
                is_direct = call.block == op.regions[0].blocks[0]
                if not is_direct or positions[caller] <= positions.get(callee_of(call), -1):
                    unchangeable.add(callee_of(call))
        return unchangeable

    def functions(self) -> list[ir.Operation]:
        """Returns the functions with a body, callees first."""
        return [self._functions[name] for name in self._order]

    def calls_changed_function(self, op: ir.Operation) -> bool:
        """True if `op` calls a function whose signature has changed."""
        return op.name == "func.call" and callee_of(op) in self.orders

    def absorb_transposes(self, function: ir.Operation) -> int:
        """Changes the layout of arguments and results that a private function only transposes.

        Returns how many have changed. `relayout_call` rewrites the calls. Arguments that are parameters of the model do
        not change, since they are packed.
        """
        if "sym_visibility" not in function.attributes or "private" not in str(function.attributes["sym_visibility"]):
            return 0
        if symbol_of(function) in self._unchangeable:
            return 0
        block = function.regions[0].blocks[0]
        terminator = block.operations[len(block.operations) - 1].operation
        attributes = ir.ArrayAttr(function.attributes["arg_attrs"]) if "arg_attrs" in function.attributes else None
        inputs: list[Order | None] = []
        for i, argument in enumerate(block.arguments):
            is_parameter = attributes is not None and PARAMETER in ir.DictAttr(attributes[i])
            inputs.append(None if is_parameter else _absorb_argument_transpose(argument))
        results = [_absorb_result_transpose(terminator, i) for i in range(len(terminator.operands))]
        changed = sum(order is not None and order != identity_order(len(order)) for order in (*inputs, *results))
        if changed:
            self.orders[symbol_of(function)] = inputs, results
            result_types = [value.type for value in terminator.operands]
            type_ = ir.FunctionType.get([argument.type for argument in block.arguments], result_types)
            function.attributes["function_type"] = ir.TypeAttr.get(type_)
        return changed

    def relayout_call(self, call: ir.Operation, layouts: ValueLayouts) -> None:
        """Passes operands in the callee's layouts, and records the layouts of the results."""
        inputs, results = self.orders[callee_of(call)]
        for number, order in enumerate(inputs):
            value = call.operands[number]
            if isinstance(value.type, ir.RankedTensorType):
                call.operands[number] = (
                    layouts.in_original_order(value) if order is None else layouts.in_order(value, order)
                )
        for result, order in zip(call.results, results, strict=True):
            result.set_type(_permute_type(result.type, order))
            layouts.track(result, order)


def _absorb_argument_transpose(argument: ir.Value) -> Order | None:
    """Gives `argument` the layout of its transposes, if it is only used to be transposed by equal permutations.

    Elementwise ops may be applied to it before. Returns the layout, or `None` if the argument is unchanged.
    """
    chains = [_chain_to_transpose(use) for use in argument.uses]
    orders = {tuple(permutation_of(chain[-1])) if chain else None for chain in chains}
    order = next(iter(orders), None)
    if len(orders) != 1 or order is None:
        return None
    argument.set_type(_permute_type(argument.type, order))
    for *elementwise, transpose in chains:
        value = argument
        for op in elementwise:
            value = op.results[0]
            value.set_type(_permute_type(value.type, order))
            with ir.InsertionPoint(op), op.location:
                op.operands[1] = tensor.empty(list(value.type.shape), value.type.element_type)
        transpose.results[0].replace_all_uses_with(value)
        transpose.erase()
    return order


def _chain_to_transpose(use: Any) -> list[ir.Operation]:
    """Returns the elementwise ops that a tensor goes through from `use` on, and the transpose of their last result.

    Each result has no other use. Returns [] if there is another kind of op before a transpose.
    """
    chain: list[ir.Operation] = []
    while use.operand_number == 0:
        op = use.owner.operation
        chain.append(op)
        if op.name == "linalg.transpose":
            return chain
        uses = list(op.results[0].uses) if _is_elementwise(op) else []
        if len(uses) != 1:
            break
        (use,) = uses
    return []


def _is_elementwise(op: ir.Operation) -> bool:
    """True if `op` is a generic that computes each element of its result from the same element of one other tensor."""
    if op.name != "linalg.generic" or len(op.operands) != 2 or len(op.results) != 1 or _reductions(op):
        return False
    identity = ir.AffineMap.get_identity(rank_of(op.results[0]))
    reads_indices = any(inner.name == "linalg.index" for inner in nested_ops(op))
    return all(map_ == identity for map_ in indexing_maps(op)) and not reads_indices


def _absorb_result_transpose(terminator: ir.Operation, number: int) -> Order:
    """Makes the function return the source of result `number`, if the result is a transpose.

    Returns the layout of the result; () if it is not a tensor.
    """
    value = terminator.operands[number]
    if not isinstance(value, ir.OpResult) or value.owner.name != "linalg.transpose":
        return identity_order(rank_of(value)) if isinstance(value.type, ir.RankedTensorType) else ()
    permutation = permutation_of(value.owner)
    terminator.operands[number] = value.owner.operands[0]
    return tuple(permutation.index(dim) for dim in range(len(permutation)))


def _permute_type(type_: ir.Type, order: Order) -> ir.Type:
    """Returns the type of a tensor in the layout `order`; another type as it is."""
    if not isinstance(type_, ir.RankedTensorType):
        return type_
    return ir.RankedTensorType.get([type_.shape[dim] for dim in order], type_.element_type)
