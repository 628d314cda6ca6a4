"""Lowers a Buddy graph to top-level IR, one function on tensors per function of the partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import GetItemOp, Op, PlaceholderOp
from buddy.compiler.graph.partition import (
    Partition,
    PartitionCall,
    PartitionFunction,
    Value,
    as_one_function,
    main_function,
    outline_layers,
)
from buddy.compiler.graph.sizes import is_dynamic, symbol, symbols_in
from buddy.compiler.mlir.bindings import func, ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.mlir.walk import SAVED_ARGUMENT
from buddy.compiler.ops import registries, torch_mlir
from buddy.compiler.ops.func import eager_call, record_eager_paths
from buddy.compiler.ops.indexing import value_checks
from buddy.compiler.ops.precision import INTEGER_PRODUCTS, PrecisionRequest, requested_precision
from buddy.compiler.ops.reasons import (
    NOT_COMPLEX,
    as_lowering_error,
    eager_reason,
    has_dynamic_sizes,
    multiplies_float32,
    precision_reason,
    unapplied_choices,
    unapplied_precisions,
)
from buddy.compiler.ops.sizes import (
    RESULT_SIZES,
    SIZES,
    function_sizes,
    index_value,
    record_shape,
    sizes_attribute,
    symbol_attributes,
)
from buddy.compiler.ops.structured import cast_shape, empty
from buddy.compiler.ops.utils import Lowering, LoweringError, Registry, Results, TransientLoweringError, meta_type
from buddy.compiler.protocol import BY_HAND, Assignment
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import EAGER, F32, TORCH_MLIR, Recipe

# The phase of the pipeline whose IR is the lowered graph.
TOP_LEVEL_PHASE = "toplevel"
# The MLIR value of each result, by node name and result index.
ValueTable = dict[tuple[str, int], ir.Value]
# Called with each node and the MLIR ops that the node was lowered to, in order.
OnNode = Callable[[Op, Sequence[ir.Operation]], None]

# The name of the registry of a script's lowerings, which is searched first.
USER_REGISTRY = "user"


class NodeError(BuddyError):
    """The node can neither be compiled nor called in eager."""

    def __init__(self, node: Op, reason: str) -> None:
        super().__init__(reason)
        self.node = node


@dataclass
class LoweredModule:
    """Top-level IR, and how each node was lowered.

    `unapplied` has a (node, message) pair for each lowering or precision that the recipe chooses and that was not
    applied. If `transient`, a lowering failed for a temporary reason, and another attempt may succeed. If
    `is_imported`, the IR was imported, and may be at another `phase` of the pipeline.
    """

    module: Any
    assignments: tuple[Assignment, ...]
    partition: Partition
    unapplied: tuple[tuple[str, str], ...] = ()
    transient: bool = False
    phase: str = TOP_LEVEL_PHASE
    is_imported: bool = False


@dataclass
class _Lowerer:
    """Lowers functions by `registries`, which are searched in order, and records how each node was lowered.

    `choices` maps stable node names to the registries that the recipe chooses. `assignments` says for each lowered
    node, by stable name, which registry lowered it, and why others did not. `symbols` has the symbols that each
    function takes as arguments, by its name. `LoweredModule` explains `transient`.
    """

    registries: dict[str, Registry]
    recipe: Recipe
    choices: dict[str, str]
    locations: LocationSets
    on_node: OnNode | None = None
    assignments: dict[str, Assignment] = field(default_factory=dict)
    symbols: dict[str, tuple[str, ...]] = field(default_factory=dict)
    transient: bool = False

    def emit_function(self, function: PartitionFunction, body: Sequence[Op | PartitionCall], public: bool) -> None:
        """Emits a `func.func` at the insertion point; only declares a private function without a body.

        The arguments are the inputs that are not empty, then the values of the symbols that the function needs.
        """
        arguments = _without_empty(function.inputs)
        results = _without_empty(function.outputs)
        symbols = self.symbols[function.name] = _symbols_of(function, body, self.symbols)
        input_types = [*_types(arguments), *[ir.IndexType.get()] * len(symbols)]
        function_type = ir.FunctionType.get(input_types, _types(results))
        nodes = [name for i in range(len(function.nodes)) for name in function.origins(i)]
        # Ops without a node, such as the function and its return, get the location of all nodes.
        all_nodes = self.locations.location((), derived=nodes)
        op = func.FuncOp(function.name, function_type, visibility=None if public else "private", loc=all_nodes)
        is_declaration = not public and not body
        attributes = [
            _argument_attributes(i, node, is_parameter, public, is_declaration)
            for i, ((node, result), is_parameter) in enumerate(zip(function.inputs, function.is_parameter, strict=True))
            if (node, result) in arguments
        ]
        op.arg_attrs = ir.ArrayAttr.get([*attributes, *map(symbol_attributes, symbols)])
        if any(is_dynamic(node.tensor_meta.shape) for node, _ in results):
            result_sizes = [sizes_attribute(node.tensor_meta.stored.shape) for node, _ in results]
            op.attributes[RESULT_SIZES] = ir.ArrayAttr.get(result_sizes)
        if is_declaration:
            return
        argument_locations = [self.locations.location([node.stable]) for node, _ in arguments]
        block = op.add_entry_block([*argument_locations, *[all_nodes] * len(symbols)])
        table: ValueTable = {}
        symbol_values: dict[str, ir.Value] = dict(zip(symbols, list(block.arguments)[len(arguments) :], strict=True))
        with ir.InsertionPoint(block), all_nodes, function_sizes(symbol_values):
            _bind(table, function.inputs, list(block.arguments)[: len(arguments)])
            self._lower_body(function, body, table)
            func.ReturnOp([table[node.name, index] for node, index in results])

    def _lower_body(self, function: PartitionFunction, body: Sequence[Op | PartitionCall], table: ValueTable) -> None:
        """Lowers nodes and calls at the insertion point, and adds their results to `table`."""
        positions = {op.name: i for i, op in enumerate(function.nodes)}
        for item in body:
            if isinstance(item, PartitionCall):
                self._emit_call(item, table)
            else:
                position = positions[item.name]
                with self.locations.location(function.origins(position)):
                    assignment = self._lower_and_notify(item, table) if self.on_node else self._lower(item, table)
                self._record_assignment(function, position, assignment)

    def _lower_and_notify(self, node: Op, table: ValueTable) -> Assignment:
        """Lowers a node, and passes the ops that this emits to `on_node`."""
        operations = ir.InsertionPoint.current.block.operations
        old_count = len(operations)
        assignment = self._lower(node, table)
        assert self.on_node is not None
        self.on_node(node, list(operations)[old_count:])
        return assignment

    def _record_assignment(self, function: PartitionFunction, position: int, assignment: Assignment) -> None:
        """Records the assignment of a node for all call sites of its function."""
        for site in function.sites:
            stable = site[position].stable
            self.assignments[stable] = msgspec.structs.replace(assignment, node=stable, function=function.name)

    def _emit_call(self, call: PartitionCall, table: ValueTable) -> None:
        """Emits a call of a function that was emitted before, and adds its results to `table`."""
        operands = [table[op.name, index] for op, index in _without_empty(call.inputs)]
        operands += [index_value(symbol(name)) for name in self.symbols[call.function]]
        results = _types(_without_empty(call.outputs))
        with self.locations.location(op.stable for op in call.nodes):
            op = func.CallOp(results, ir.FlatSymbolRefAttr.get(call.function), operands)
            _bind(table, call.outputs, op.results)

    def _lower(self, node: Op, table: ValueTable) -> Assignment:
        """Lowers a node by the registry that the recipe chooses, else by the first one that can, else by eager."""
        if isinstance(node, GetItemOp):
            table[node.name, 0] = table[node.args[0].name, node.args[1]]
            return Assignment(node.stable, "func", ("func",))
        op_class = type(node).__name__
        # The registries that have a lowering, which the user may choose from.
        candidates = tuple(
            name for name, registry in self.registries.items() if op_class in registry and _supports(name, node)
        )
        choices = (*candidates, EAGER)
        # torch-mlir's registry has all op classes, so it does not count.
        has_lowering = bool(set(candidates) - {TORCH_MLIR})
        choice = self.choices.get(node.stable, "")
        # Why the registries tried first do not lower the node, or why the node falls back to eager.
        reasons = [*([BY_HAND] if choice == EAGER else []), *([] if has_lowering else [eager_reason(node)])]
        # The error of each registry that rejected the node.
        rejections: dict[str, str] = {}
        if _is_complex(node) and not node.takes_complex:
            reasons.append(NOT_COMPLEX)
            rejections = dict.fromkeys(candidates, NOT_COMPLEX)
        elif choice != EAGER:
            for name in self._search_order(choice, node):
                with (
                    record_eager_paths() as paths,
                    requested_precision(self.recipe.precision_of(node.stable)) as request,
                ):
                    error = self._try_registry(name, node, table)
                if error is None:
                    precision = request.precision if request.is_applied else ""
                    why_not = precision_reason(request, node, name, self._has_own_precision(node))
                    return Assignment(
                        node.stable, name, choices, reason="; ".join(reasons), slow_path=paths.slow_path,
                        error_path=paths.error_path, rejections=tuple(rejections.items()),
                        multiplies=multiplies_float32(node), precision=precision, precision_reason=why_not,
                        integers="int8" if op_class in INTEGER_PRODUCTS else "",
                    )  # fmt: skip
                if name in candidates or (has_lowering and name in (self._first_registry, choice)):
                    reasons.append(f"{name}: {error}")
                # A transient error does not reject the registry: another attempt may succeed.
                if name in candidates and not isinstance(error, TransientLoweringError):
                    rejections[name] = str(error)
        return self._call_eager(node, table, choices, reasons, rejections)

    def _has_own_precision(self, node: Op) -> bool:
        """True if the recipe chooses a precision for this node, not only one for all products."""
        return any(choice.node == node.stable for choice in self.recipe.precisions)

    def _search_order(self, choice: str, node: Op) -> list[str]:
        """Returns the registries in the order of search: the choice first.

        Only lowerings to linalg support other precisions than that of the program, so these precede other dialects.
        """
        first = [choice] if choice else []
        if not choice and self.recipe.precision_of(node.stable) != F32:
            first = [USER_REGISTRY] * (USER_REGISTRY in self.registries) + ["linalg"] * ("linalg" in self.registries)
        return list(dict.fromkeys([*first, *self.registries]))

    @property
    def _first_registry(self) -> str:
        """The name of the dialect's first registry: a missing lowering is reported for it and the recipe's choice."""
        return next(name for name in self.registries if name != USER_REGISTRY)

    def _try_registry(self, name: str, node: Op, table: ValueTable) -> LoweringError | None:
        """Lowers `node` by the registry `name`. Returns `None` on success, otherwise the error."""
        registry, op_class = self.registries.get(name), type(node).__name__
        if registry is None:
            return LoweringError(f"unknown registry; known: {', '.join(self.registries)}")
        if op_class not in registry:
            return LoweringError(registry.absence_reason(op_class))
        if _is_complex(node) and name != "linalg":
            return LoweringError(NOT_COMPLEX)
        if name == "tosa" and has_dynamic_sizes(node):
            return LoweringError("TOSA ops need static shapes")
        try:
            self._store_results(node, table, self._attempt(registry[op_class], node, table))
        except LoweringError as error:
            self.transient |= isinstance(error, TransientLoweringError)
            return error
        return None

    def _call_eager(
        self, node: Op, table: ValueTable, choices: tuple[str, ...], reasons: list[str], rejections: Mapping[str, str]
    ) -> Assignment:
        """Emits a call of the node's op in eager. Raises `NodeError` if that is impossible."""
        try:
            self._store_results(node, table, eager_call(node, table))
        except LoweringError as error:
            raise NodeError(node, "; ".join([*reasons, str(error)])) from error
        request = PrecisionRequest(self.recipe.precision_of(node.stable))
        why_not = precision_reason(request, node, EAGER, self._has_own_precision(node))
        return Assignment(
            node.stable, EAGER, choices, reason="; ".join(reasons), rejections=tuple(rejections.items()),
            multiplies=multiplies_float32(node), precision_reason=why_not,
        )  # fmt: skip

    @staticmethod
    def _attempt(lowering: Lowering, node: Op, table: ValueTable) -> Results:
        """Runs a lowering. If it fails, erases the ops that it has emitted, and raises `LoweringError`."""
        block = ir.InsertionPoint.current.block
        old_count = len(block.operations)
        try:
            return lowering(node, table)
        except Exception as error:
            lowering_error = as_lowering_error(error, lowering, node)
            if lowering_error is None:
                raise
            for op in reversed(list(block.operations)[old_count:]):
                op.operation.erase()
            raise lowering_error from error

    @staticmethod
    def _store_results(node: Op, table: ValueTable, results: Results) -> None:
        """Stores the result of a lowering (a value, an op, or a list of values) in the table of values."""
        values: Sequence[Any]
        if isinstance(results, (list, tuple)):
            values = results
        else:
            values = list(results.results) if hasattr(results, "results") else [results]
        for index, (value, meta) in enumerate(zip(values, node.metas, strict=False)):
            if meta is not None and is_dynamic(meta.shape):
                value = cast_shape(value, meta.stored)
            if meta is not None and value.type != meta_type(meta):
                raise LoweringError(f"the lowering returned {value.type}, but the graph has {meta_type(meta)}")
            table[node.name, index] = value


def _supports(name: str, node: Op) -> bool:
    """True if the registry `name` may lower `node`. torch-mlir's has all op classes, but does not lower all nodes."""
    return name != TORCH_MLIR or not torch_mlir.unsupported_reason(node)


def _symbols_of(
    function: PartitionFunction, body: Sequence[Op | PartitionCall], symbols: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Returns the symbols that a function needs for its values and for its calls.

    `symbols` has the symbols of the functions that it calls, by name.
    """
    ops = [*function.nodes, *(op for op, _ in (*function.inputs, *function.outputs))]
    sizes = [(op.args, op.kwargs, [meta.shape for meta in op.metas if meta is not None]) for op in ops]
    callee_symbols = (name for item in body if isinstance(item, PartitionCall) for name in symbols[item.function])
    # By number: s9 before s10.
    return tuple(sorted({*symbols_in(sizes), *callee_symbols}, key=lambda name: (len(name), name)))


def _without_empty(values: Sequence[Value]) -> list[Value]:
    """Returns the values that are not empty tensors; empty ones have no memory, so calls do not pass them."""
    return [(node, index) for node, index in values if 0 not in node.tensor_meta.shape]


def _types(values: Sequence[Value]) -> list[ir.Type]:
    return [meta_type(op.tensor_meta) for op, _ in values]


def _bind(table: ValueTable, values: Sequence[Value], mlir_values: Sequence[ir.Value]) -> None:
    """Stores MLIR values for `values` in `table`: the next of `mlir_values`, or a new tensor for an empty one."""
    passed = iter(mlir_values)
    for op, index in values:
        meta = op.tensor_meta.stored
        is_empty = 0 in meta.shape
        table[op.name, index] = empty(meta.shape, meta.dtype) if is_empty else record_shape(next(passed), meta.shape)


def _is_complex(node: Op) -> bool:
    """True if an operand or a result of `node` is complex."""
    metas = (meta for op in (node, *node.parents) for meta in op.metas if meta is not None)
    return any(meta.dtype.is_complex for meta in metas)


def _argument_attributes(index: int, value: Op, is_parameter: bool, public: bool, is_declaration: bool) -> ir.DictAttr:
    """Returns the attributes of an argument: read-only, parameter, dynamic sizes, number of its placeholder."""
    shape = value.tensor_meta.stored.shape
    attributes: dict[str, ir.Attribute] = {}
    if is_declaration:
        attributes["bufferization.access"] = ir.StringAttr.get("read")
    else:
        attributes["bufferization.writable"] = ir.BoolAttr.get(False)
    if is_parameter:
        attributes["buddy.parameter"] = ir.UnitAttr.get()
    if is_dynamic(shape):
        attributes[SIZES] = sizes_attribute(shape)
    if public:
        attributes["buddy.source"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), index)
    if public and isinstance(value, PlaceholderOp) and value.is_saved:
        attributes[SAVED_ARGUMENT] = ir.UnitAttr.get()
    return ir.DictAttr.get(attributes)


def new_context() -> ir.Context:
    """Creates an MLIR context for one graph; it allows the unregistered attributes of this project."""
    context = ir.Context()
    context.allow_unregistered_dialects = True
    # With MLIR's threads, the order of diagnostics would not be deterministic, and a fork of this process not safe.
    context.enable_multithreading(False)
    return context


def lower(
    graph: Graph, recipe: Recipe, context: ir.Context, locations: LocationSets, user_registry: Registry | None = None,
    partition: Partition | None = None, on_node: OnNode | None = None,
) -> LoweredModule:  # fmt: skip
    """Lowers `graph` to top-level IR with `recipe`, in `context`.

    `locations` records the nodes of each op. `user_registry` is searched before all other registries. `partition`
    replaces the one that the recipe selects; its functions without nodes are only declared. `on_node` is called after
    each node. Raises `NodeError` for a node that can be neither compiled nor called in eager.
    """
    if partition is None:
        partition = (
            outline_layers(graph, recipe.node_settings()) if recipe.partition == "layers" else as_one_function(graph)
        )
    built_in = {**registries(recipe.dialect), TORCH_MLIR: torch_mlir.ops_registry}
    search_order = {USER_REGISTRY: user_registry, **built_in} if user_registry is not None else built_in
    lowerer = _Lowerer(search_order, recipe, recipe.choice_map(), locations, on_node)
    with context, locations.unmapped_location(context), value_checks(recipe.checks == "eager"):
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for function in partition.functions:
                lowerer.emit_function(function, function.nodes, public=False)
            main = main_function(graph, graph._func_name)
            lowerer.emit_function(main, partition.body, public=True)
    node_assignments = (lowerer.assignments.get(op.stable) for op in graph.operations)
    assignments = tuple(assignment for assignment in node_assignments if assignment is not None)
    unapplied = (
        *unapplied_choices(recipe.choice_map(), assignments, graph),
        *unapplied_precisions(recipe, assignments, graph),
    )
    return LoweredModule(module, assignments, partition, unapplied, lowerer.transient)


def lower_top_level(
    graph: Graph, dialect: Literal["linalg", "tosa"] = "linalg", partition: Literal["layers", "whole"] = "whole",
    user_registry: Registry | None = None, context: ir.Context | None = None,
) -> ir.Module:  # fmt: skip
    """Lowers `graph` to a top-level module, in `context` or a new context.

    Raises `NodeError` as `lower` does.
    """
    recipe = Recipe(dialect=dialect, partition=partition)
    return lower(graph, recipe, context or new_context(), LocationSets(), user_registry).module
