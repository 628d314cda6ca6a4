"""Lowers a Buddy graph to top-level IR, one function on tensors per function of the partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from traceback import extract_tb
from typing import Any, Literal

import msgspec

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import EagerOp, GetItemOp, Op, PlaceholderOp
from buddy.compiler.graph.operations import CallExternalOp
from buddy.compiler.graph.partition import (
    Partition,
    PartitionCall,
    PartitionFunction,
    Value,
    as_one_function,
    main_function,
    outline_layers,
)
from buddy.compiler.graph.plugins import is_built_in
from buddy.compiler.graph.sizes import UnknownSizeError, is_dynamic, symbol, symbols_in
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import func, ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.mlir.walk import SAVED_ARGUMENT
from buddy.compiler.ops import registries, torch_mlir
from buddy.compiler.ops.bounds import value_checks
from buddy.compiler.ops.func import eager_call, record_eager_paths
from buddy.compiler.ops.precision import INTEGER_PRODUCTS, MULTIPLYING_OPS, PrecisionRequest, requested_precision
from buddy.compiler.ops.registry import Lowering, Registry, Results
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
from buddy.compiler.ops.utils import LoweringError, TransientLoweringError, meta_type
from buddy.compiler.protocol import BY_HAND, Assignment
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import EAGER, F32, TORCH_MLIR, Recipe

# The phase of nodes that have been lowered.
TOP_LEVEL_PHASE = "toplevel"
# The MLIR value of each result, by node name and result index.
ValueTable = dict[tuple[str, int], ir.Value]
# Called with each node and the MLIR ops that the node was lowered to, in order.
OnNode = Callable[[Op, Sequence[ir.Operation]], None]

# The reasons for fallbacks to eager, with what the user can do.
NO_CLASS = (
    "{target} has no op class: add the key {target!r} to `_ops_map` in a script, or a class with that target to "
    "compiler/graph/operations/; docs/how-to/adding-an-operator.md has the three steps"
)
EXTERNAL = "a graph pass replaced the node by a call of torch's {target}"
NO_LOWERING = (
    "no registry lowers {op}: add a lowering under that name to an `ops_registry`, in a script or in compiler/ops/; "
    "docs/how-to/adding-an-operator.md has the three steps"
)
NOT_COMPLEX = "complex numbers are lowered as pairs of floats, which this op does not support"

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

    `unapplied` has a message for each node for which the recipe chooses a lowering that was not applied. If
    `transient`, a lowering failed for a temporary reason, and another attempt may succeed. If `is_imported`, the IR was
    imported, and may be at another `phase` of the pipeline.
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

    `choices` maps stable node names to the registries that the recipe chooses. `symbols` has the symbols that each
    function takes as arguments, by its name.
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
        """Emits a `func.func` at the insertion point; only declares a private function without a body."""
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
            _argument_attributes(i, value[0], parameter, public, is_declaration)
            for i, (value, parameter) in enumerate(zip(function.inputs, function.is_parameter, strict=True))
            if value in arguments
        ]
        op.arg_attrs = ir.ArrayAttr.get([*attributes, *map(symbol_attributes, symbols)])
        if any(is_dynamic(value[0].tensor_meta.shape) for value in results):
            op.attributes[RESULT_SIZES] = ir.ArrayAttr.get(
                [sizes_attribute(value[0].tensor_meta.stored.shape) for value in results]
            )
        if is_declaration:
            return
        argument_locations = [self.locations.location([value[0].stable]) for value in arguments]
        block = op.add_entry_block([*argument_locations, *[all_nodes] * len(symbols)])
        table: ValueTable = {}
        symbol_values: dict[str, ir.Value] = dict(zip(symbols, list(block.arguments)[len(arguments) :], strict=True))
        with ir.InsertionPoint(block), all_nodes, function_sizes(symbol_values):
            _bind(table, function.inputs, list(block.arguments)[: len(arguments)])
            self._lower_body(function, body, table)
            func.ReturnOp([table[op.name, index] for op, index in results])

    def _lower_body(self, function: PartitionFunction, body: Sequence[Op | PartitionCall], table: ValueTable) -> None:
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
        name = type(node).__name__
        candidates = tuple(
            key for key, registry in self.registries.items() if name in registry and _supports(key, node)
        )
        has_lowering, choices = bool(set(candidates) - {TORCH_MLIR}), (*candidates, EAGER)
        choice = self.choices.get(node.stable, "")
        reasons = [*([BY_HAND] if choice == EAGER else []), *([] if has_lowering else [_eager_reason(node)])]
        rejections: dict[str, str] = {}
        if _is_complex(node) and not node.takes_complex:
            reasons.append(NOT_COMPLEX)
            rejections = dict.fromkeys(candidates, NOT_COMPLEX)
        elif choice != EAGER:
            for key in self._search_order(choice, node):
                with (
                    record_eager_paths() as paths,
                    requested_precision(self.recipe.precision_of(node.stable)) as request,
                ):
                    error = self._try_registry(key, node, table)
                if error is None:
                    precision = request.precision if request.is_applied else ""
                    why_not = _precision_reason(request, node, key, self._has_own_precision(node))
                    return Assignment(
                        node.stable, key, choices, "", "; ".join(reasons), paths.slow_path, paths.error_path,
                        tuple(rejections.items()), _multiplies_float32(node), precision, why_not,
                        "int8" if name in INTEGER_PRODUCTS else "",
                    )  # fmt: skip
                if key in candidates or (has_lowering and key in (self._first_registry, choice)):
                    reasons.append(f"{key}: {error}")
                # A transient error does not reject the choice: another attempt may succeed.
                if key in candidates and not isinstance(error, TransientLoweringError):
                    rejections[key] = str(error)
        return self._call_eager(node, table, choices, reasons, rejections)

    def _has_own_precision(self, node: Op) -> bool:
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
        """The name of the dialect's first registry; a missing lowering is reported for this registry only."""
        return next(key for key in self.registries if key != USER_REGISTRY)

    def _try_registry(self, key: str, node: Op, table: ValueTable) -> LoweringError | None:
        """Lowers `node` by the registry `key`. Returns `None` on success, otherwise the error."""
        registry, name = self.registries.get(key), type(node).__name__
        if registry is None:
            return LoweringError(f"unknown registry; known: {', '.join(self.registries)}")
        if name not in registry:
            return LoweringError(registry.absence_reason(name))
        if _is_complex(node) and key != "linalg":
            return LoweringError(NOT_COMPLEX)
        if key == "tosa" and _has_dynamic_sizes(node):
            return LoweringError("TOSA ops need static shapes")
        try:
            self._store_results(node, table, self._attempt(registry[name], node, table))
        except LoweringError as error:
            self.transient |= isinstance(error, TransientLoweringError)
            return error
        return None

    def _call_eager(
        self, node: Op, table: ValueTable, choices: tuple[str, ...], reasons: list[str], rejections: Mapping[str, str]
    ) -> Assignment:
        try:
            self._store_results(node, table, eager_call(node, table))
        except LoweringError as error:
            raise NodeError(node, "; ".join([*reasons, str(error)])) from error
        request = PrecisionRequest(self.recipe.precision_of(node.stable))
        why_not = _precision_reason(request, node, EAGER, self._has_own_precision(node))
        return Assignment(
            node.stable, EAGER, choices, reason="; ".join(reasons), rejections=tuple(rejections.items()),
            multiplies=_multiplies_float32(node), precision_reason=why_not,
        )  # fmt: skip

    @staticmethod
    def _attempt(lowering: Lowering, node: Op, table: ValueTable) -> Results:
        """Runs a lowering. If it fails, erases the ops that it has emitted, and raises `LoweringError`."""
        block = ir.InsertionPoint.current.block
        old_count = len(block.operations)
        try:
            return lowering(node, table)
        except Exception as error:
            lowering_error = _as_lowering_error(error, lowering, node)
            if lowering_error is None:
                raise
            for op in reversed(list(block.operations)[old_count:]):
                op.operation.erase()
            raise lowering_error from error

    @staticmethod
    def _store_results(node: Op, table: ValueTable, results: Results) -> None:
        """Stores the result of a lowering (a value, an op, or a list of values) in the symbol table."""
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


def _supports(key: str, node: Op) -> bool:
    """True if the registry `key` may lower the node: torch-mlir's registry is asked whether it supports the node."""
    return key != TORCH_MLIR or not torch_mlir.unsupported_reason(node)


def _precision_reason(request: PrecisionRequest, node: Op, lowering: str, is_chosen: bool) -> str:
    """Returns the reason why a requested precision is not applied to `node`; "" if it is, or if none is requested.

    Of ops that multiply no matrices, only nodes for which the recipe chooses a precision have a reason (`is_chosen`).
    """
    if request.is_applied or request.precision == F32:
        return ""
    if type(node).__name__ not in MULTIPLYING_OPS:
        return "it multiplies no matrices" if is_chosen else ""
    if lowering == EAGER:
        return "it runs in eager"
    return (
        request.rejection or f"{lowering} lowers {node.target or type(node).__name__} in the program's precision only"
    )


def _eager_reason(node: Op) -> str:
    """Returns the reason why a node that no registry lowers falls back to eager."""
    template = EXTERNAL if isinstance(node, CallExternalOp) else NO_CLASS if isinstance(node, EagerOp) else NO_LOWERING
    return node.only_eager or template.format(target=node.target, op=type(node).__name__)


# The errors that a lowering raises if it supports only static shapes and the node has dynamic ones.
_STATIC_SHAPE_ERRORS = (UnknownSizeError, TypeError, ValueError, ir.MLIRError)


def _has_dynamic_sizes(node: Op) -> bool:
    metas = (meta for op in (node, *node.parents) for meta in op.metas if meta is not None)
    return any(is_dynamic(meta.shape) for meta in metas) or any(True for _ in symbols_in((node.args, node.kwargs)))


def _as_lowering_error(error: Exception, lowering: Callable[..., object], node: Op) -> LoweringError | None:
    """Converts an error of a lowering to a `LoweringError`; returns `None` if the error is a bug of this project.

    An error in a lowering of a script or plug-in always becomes one, so that the next registry is tried.
    """
    if isinstance(error, LoweringError):
        return error
    if not is_built_in(lowering):
        frame = extract_tb(error.__traceback__)[-1]
        return LoweringError(f"the lowering raised {type(error).__name__}: {error} ({frame.filename}:{frame.lineno})")
    if isinstance(error, _STATIC_SHAPE_ERRORS) and _has_dynamic_sizes(node):
        return LoweringError(_static_shape_reason(error))
    return None


def _static_shape_reason(error: Exception) -> str:
    if isinstance(error, UnknownSizeError):
        return str(error)
    return f"the lowering needs static shapes ({str(error).splitlines()[0]})"


def _symbols_of(
    function: PartitionFunction, body: Sequence[Op | PartitionCall], symbols: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Returns the symbols that a function needs for its values and for its calls.

    `symbols` has the symbols of the functions that it calls, by name.
    """
    ops = [*function.nodes, *(op for op, _ in (*function.inputs, *function.outputs))]
    sizes = [(op.args, op.kwargs, [meta.shape for meta in op.metas if meta is not None]) for op in ops]
    callee_symbols = (name for item in body if isinstance(item, PartitionCall) for name in symbols[item.function])
    return tuple(sorted({*symbols_in(sizes), *callee_symbols}, key=lambda name: (len(name), name)))


def _without_empty(values: Sequence[Value]) -> list[Value]:
    """Returns the values without empty tensors, which are not passed to calls, because they have no memory."""
    return [value for value in values if 0 not in value[0].tensor_meta.shape]


def _types(values: Sequence[Value]) -> list[ir.Type]:
    return [meta_type(op.tensor_meta) for op, _ in values]


def _bind(table: ValueTable, values: Sequence[Value], mlir_values: Sequence[ir.Value]) -> None:
    """Stores the `mlir_values` that a call passes for `values` in `table`; creates new tensors for empty ones."""
    passed = iter(mlir_values)
    for op, index in values:
        meta = op.tensor_meta.stored
        table[op.name, index] = (
            empty(meta.shape, meta.dtype) if 0 in meta.shape else record_shape(next(passed), meta.shape)
        )


def _is_complex(node: Op) -> bool:
    metas = (meta for op in (node, *node.parents) for meta in op.metas if meta is not None)
    return any(meta.dtype.is_complex for meta in metas)


def _argument_attributes(index: int, value: Op, is_parameter: bool, public: bool, is_declaration: bool) -> ir.DictAttr:
    """Returns the attributes of argument `index`: read-only, parameter, dynamic sizes, index of the placeholder."""
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

    `user_registry` is searched before all other registries. `partition` replaces the one that the recipe selects; its
    functions without nodes are only declared. `on_node` is called after each node. Raises `NodeError` for a node that
    can be neither compiled nor called in eager.
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
        *_unapplied_choices(recipe.choice_map(), assignments, graph),
        *_unapplied_precisions(recipe, assignments, graph),
    )
    return LoweredModule(module, assignments, partition, unapplied, lowerer.transient)


def _unapplied_choices(
    choices: dict[str, str], assignments: Sequence[Assignment], graph: Graph
) -> Iterator[tuple[str, str]]:
    """Yields the nodes whose choice was not applied, each with a message that says what was used instead."""
    assignment_of = {assignment.node: assignment for assignment in assignments}
    for node, choice in choices.items():
        assignment = assignment_of.get(node)
        if assignment is not None and assignment.lowering != choice:
            reason = f": {assignment.reason}" if assignment.reason else ", since it needs no lowering"
            yield node, f"the recipe lowers {node} by {choice}, but {assignment.lowering} lowers it{reason}"
        elif assignment is None and all(op.stable != node for op in graph.operations):
            yield node, f"the recipe lowers {node} by {choice}, {_unknown_node_reason(node, graph)}"


def _unapplied_precisions(recipe: Recipe, assignments: Sequence[Assignment], graph: Graph) -> Iterator[tuple[str, str]]:
    """Yields the nodes whose precision was not applied, each with a message that says what was used instead.

    Of nodes whose precision is that of all products, only those that multiply float32 are reported, once per reason.
    """
    explicit = {choice.node: choice.precision for choice in recipe.precisions if choice.precision != F32}
    ops = {op.stable: op for op in graph.operations}
    by_reason: dict[str, list[str]] = {}
    for assignment in assignments:
        if not assignment.precision_reason:
            continue
        if assignment.node in explicit:
            text = f"the recipe computes {assignment.node} in {explicit[assignment.node]}"
            yield assignment.node, f"{text}, but it stays in the program's precision: {assignment.precision_reason}"
        elif _multiplies_float32(ops[assignment.node]):
            by_reason.setdefault(assignment.precision_reason, []).append(assignment.node)
    for reason, nodes in by_reason.items():
        subject = nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"
        verb = "stays" if len(nodes) == 1 else "stay"
        yield nodes[0], f"the recipe computes products in {recipe.precision}, but {subject} {verb} in f32: {reason}"
    assigned = {assignment.node for assignment in assignments}
    for node in [node for node in explicit if node not in assigned]:
        yield node, f"the recipe computes {node} in {explicit[node]}, {_unknown_node_reason(node, graph)}"


def _multiplies_float32(op: Op) -> bool:
    """Returns whether a node multiplies matrices of float32, to which the recipe's precisions apply."""
    meta = op.metas[0] if op.metas else None
    return type(op).__name__ in MULTIPLYING_OPS and meta is not None and meta.dtype is TensorDType.Float32


def _unknown_node_reason(node: str, graph: Graph) -> str:
    if any(op.stable == node for op in graph.body):
        return "which is a placeholder or the output"
    close = get_close_matches(node, [op.stable for op in graph.operations], n=1)
    return "but no compiled node has that name" + (f"; did you mean {close[0]}?" if close else "")


def lower_top_level(
    graph: Graph, dialect: Literal["linalg", "tosa"] = "linalg", partition: Literal["layers", "whole"] = "whole",
    user_registry: Registry | None = None, context: ir.Context | None = None,
) -> ir.Module:  # fmt: skip
    """Lowers `graph` to a top-level module, in `context` or a new context.

    Raises `NodeError` as `lower` does.
    """
    recipe = Recipe(dialect=dialect, partition=partition)
    return lower(graph, recipe, context or new_context(), LocationSets(), user_registry).module
