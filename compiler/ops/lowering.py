"""Lowers the Buddy graph to top-level IR: one function on tensors per part of the graph, with packed parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from traceback import extract_tb
from typing import Any, Literal

import msgspec

from buddy.compiler.graph import partition as cut
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import EagerOp, GetItemOp, Op
from buddy.compiler.graph.operations import CallExternalOp
from buddy.compiler.graph.plugins import is_ours
from buddy.compiler.graph.sizes import Dim, UnknownSizeError, is_dynamic, symbol, symbols_in
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import func, ir, tensor
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops import registries, torch_mlir
from buddy.compiler.ops.bounds import value_checks
from buddy.compiler.ops.func import eager_call, recorded_paths
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.sizes import (
    RESULTS,
    SIZES,
    function_sizes,
    index_value,
    remember,
    sizes_attribute,
    symbol_attributes,
)
from buddy.compiler.ops.structured import empty, fitted, reshape
from buddy.compiler.ops.utils import LoweringError, TransientLoweringError, meta_type, tensor_type
from buddy.compiler.protocol import Assignment
from buddy.compiler.protocol.recipe import EAGER, TORCH_MLIR, Recipe

# The phase of nodes that have been lowered.
LOWERED = "toplevel"
Table = dict[tuple[str, int], Any]
# Called with each node and the MLIR ops that were created for it, in order.
OnNode = Callable[[Op, Sequence[Any]], None]

# The reasons for fallbacks to eager, with what a script or the package must add.
NO_CLASS = (
    "{target} has no op class: a script adds the key {target!r} to `_ops_map`, the package a class with that target to "
    "compiler/graph/operations/; docs/adding-an-operator.md has the three steps"
)
EXTERNAL = "a graph pass replaced it by a call of torch's {target}"
NO_LOWERING = (
    "no registry lowers {op}: add a lowering under that name to an `ops_registry`, in a script or in compiler/ops/; "
    "docs/adding-an-operator.md has the three steps"
)
BY_HAND = "chosen by hand"
NOT_COMPLEX = "complex numbers are lowered as pairs of floats, which this op does not support"

# The registry of a user's own lowerings, which is searched first.
USER = "user"


class NodeError(Exception):
    """A node can neither be compiled nor called in eager. `node` is its stable name."""

    def __init__(self, node: Op, reason: str) -> None:
        super().__init__(reason)
        self.node = node


@dataclass
class LoweredModule:
    """Top-level IR, and how each node was lowered.

    `unapplied` lists the nodes whose lowering chosen by hand was not applied, each with a message. If `transient`, a
    lowering failed for an external reason, and another attempt may succeed. If `given`, the IR was imported and may be
    at another `phase` of the pipeline.
    """

    module: Any
    assignments: tuple[Assignment, ...]
    partition: cut.Partition
    unapplied: tuple[tuple[str, str], ...] = ()
    transient: bool = False
    phase: str = LOWERED
    given: bool = False


@dataclass
class _Lowerer:
    registries: dict[str, Registry]
    choices: dict[str, str]
    locations: LocationSets
    on_node: OnNode | None = None
    assigned: dict[str, Assignment] = field(default_factory=dict)
    symbols: dict[str, tuple[str, ...]] = field(default_factory=dict)
    transient: bool = False

    def function(self, function: cut.PartitionFunction, body: Sequence[Op | cut.PartitionCall], public: bool) -> None:
        """Emits one `func.func` at the insertion point; a private function without a body is only declared."""
        arguments = _with_elements(function.inputs)
        results = _with_elements(function.outputs)
        symbols = self.symbols[function.name] = _symbols_of(function, body, self.symbols)
        inputs = [*_types(arguments), *[ir.IndexType.get()] * len(symbols)]
        kind = ir.FunctionType.get(inputs, _types(results))
        nodes = [name for i in range(len(function.nodes)) for name in function.origins(i)]
        # Ops without a node, such as the function and its return, get the location of all nodes.
        whole = self.locations.location((), derived=nodes)
        op = func.FuncOp(function.name, kind, visibility=None if public else "private", loc=whole)
        declared = not public and not body
        flags = [
            _argument_attributes(i, value[0].tensor_meta.stored.shape, parameter, public, declared)
            for i, (value, parameter) in enumerate(zip(function.inputs, function.is_parameter, strict=True))
            if value in arguments
        ]
        op.arg_attrs = ir.ArrayAttr.get([*flags, *map(symbol_attributes, symbols)])
        if any(is_dynamic(value[0].tensor_meta.shape) for value in results):
            op.attributes[RESULTS] = ir.ArrayAttr.get(
                [sizes_attribute(value[0].tensor_meta.stored.shape) for value in results]
            )
        if declared:
            return
        places = [self.locations.location([value[0].stable]) for value in arguments]
        block = op.add_entry_block([*places, *[whole] * len(symbols)])
        table: Table = {}
        values = dict(zip(symbols, list(block.arguments)[len(arguments) :], strict=True))
        with ir.InsertionPoint(block), whole, function_sizes(values):
            _bind(table, function.inputs, list(block.arguments)[: len(arguments)])
            self._body(function, body, table)
            func.ReturnOp([table[op.name, index] for op, index in results])

    def _body(self, function: cut.PartitionFunction, body: Sequence[Op | cut.PartitionCall], table: Table) -> None:
        positions = {op.name: i for i, op in enumerate(function.nodes)}
        for item in body:
            if isinstance(item, cut.PartitionCall):
                self._call(item, table)
            else:
                position = positions[item.name]
                with self.locations.location(function.origins(position)):
                    assignment = self._lower_and_notify(item, table) if self.on_node else self._node(item, table)
                self._assign(function, position, assignment)

    def _lower_and_notify(self, node: Op, table: Table) -> Assignment:
        operations = ir.InsertionPoint.current.block.operations
        before = len(operations)
        assignment = self._node(node, table)
        assert self.on_node is not None
        self.on_node(node, list(operations)[before:])
        return assignment

    def _assign(self, function: cut.PartitionFunction, position: int, assignment: Assignment) -> None:
        for site in function.sites:
            stable = site[position].stable
            self.assigned[stable] = msgspec.structs.replace(assignment, node=stable, function=function.name)

    def _call(self, call: cut.PartitionCall, table: Table) -> None:
        operands = [table[op.name, index] for op, index in _with_elements(call.inputs)]
        operands += [index_value(symbol(name)) for name in self.symbols[call.function]]
        results = _types(_with_elements(call.outputs))
        with self.locations.location(op.stable for op in call.nodes):
            op = func.CallOp(results, ir.FlatSymbolRefAttr.get(call.function), operands)
            _bind(table, call.outputs, op.results)

    def _node(self, node: Op, table: Table) -> Assignment:
        """Lowers a node by the registry chosen by hand, else by the first one that can."""
        if isinstance(node, GetItemOp):
            table[node.name, 0] = table[node.args[0].name, node.args[1]]
            return Assignment(node.stable, "func", ("func",))
        name = type(node).__name__
        found = tuple(key for key, registry in self.registries.items() if name in registry and _supports(key, node))
        own, choices = set(found) - {TORCH_MLIR}, (*found, EAGER)
        wanted = self.choices.get(node.stable, "")
        reasons = [*([BY_HAND] if wanted == EAGER else []), *([] if own else [_eager_reason(node)])]
        rejections: dict[str, str] = {}
        if _is_complex(node) and not node.takes_complex:
            reasons.append(NOT_COMPLEX)
            rejections = dict.fromkeys(found, NOT_COMPLEX)
        elif wanted != EAGER:
            for key in dict.fromkeys([wanted, *self.registries] if wanted else self.registries):
                with recorded_paths() as paths:
                    error = self._try_registry(key, node, table)
                if error is None:
                    return Assignment(
                        node.stable, key, choices, "", "; ".join(reasons), paths.slow_path, paths.error_path,
                        tuple(rejections.items()),
                    )  # fmt: skip
                if key in found or (own and key in (self._first_registry, wanted)):
                    reasons.append(f"{key}: {error}")
                # A transient error does not reject the choice: another attempt may succeed.
                if key in found and not isinstance(error, TransientLoweringError):
                    rejections[key] = str(error)
        return self._eager(node, table, choices, reasons, rejections)

    @property
    def _first_registry(self) -> str:
        """The name of the dialect's first registry; a missing lowering is reported for this registry only."""
        return next(key for key in self.registries if key != USER)

    def _try_registry(self, key: str, node: Op, table: Table) -> LoweringError | None:
        """Lowers `node` by the registry `key`. Returns `None` on success, otherwise the error."""
        registry, name = self.registries.get(key), type(node).__name__
        if registry is None:
            return LoweringError(f"unknown registry; known: {', '.join(self.registries)}")
        if name not in registry:
            return LoweringError(registry.absence_reason(name))
        if key == "tosa" and _has_dynamic(node):
            return LoweringError("TOSA ops need static sizes")
        try:
            self._store_results(node, table, self._attempt(registry[name], node, table))
        except LoweringError as error:
            self.transient |= isinstance(error, TransientLoweringError)
            return error
        return None

    def _eager(
        self, node: Op, table: Table, choices: tuple[str, ...], reasons: list[str], rejections: Mapping[str, str]
    ) -> Assignment:
        try:
            self._store_results(node, table, eager_call(node, table))
        except LoweringError as error:
            raise NodeError(node, "; ".join([*reasons, str(error)])) from error
        return Assignment(node.stable, EAGER, choices, reason="; ".join(reasons), rejections=tuple(rejections.items()))

    @staticmethod
    def _attempt(lowering: Any, node: Op, table: Table) -> Any:
        """Runs a lowering; erases its ops if it fails."""
        block = ir.InsertionPoint.current.block
        before = len(block.operations)
        try:
            return lowering(node, table)
        except Exception as error:
            reason = _as_lowering_error(error, lowering, node)
            if reason is None:
                raise
            for op in reversed(list(block.operations)[before:]):
                op.operation.erase()
            raise reason from error

    @staticmethod
    def _store_results(node: Op, table: Table, results: Any) -> None:
        """Stores the result of a lowering (a value, an op, or a list of values) in the symbol table."""
        if not isinstance(results, (list, tuple)):
            results = list(results.results) if hasattr(results, "results") else [results]
        for index, (value, meta) in enumerate(zip(results, node.metas, strict=False)):
            if meta is not None and is_dynamic(meta.shape):
                value = fitted(value, meta.stored)
            if meta is not None and value.type != meta_type(meta):
                raise LoweringError(f"the lowering returned {value.type}, the graph has {meta_type(meta)}")
            table[node.name, index] = value


def _supports(key: str, node: Op) -> bool:
    return key != TORCH_MLIR or not torch_mlir.unsupported_reason(node)


def _eager_reason(node: Op) -> str:
    """Returns the reason why a node that no registry lowers falls back to eager."""
    template = EXTERNAL if isinstance(node, CallExternalOp) else NO_CLASS if isinstance(node, EagerOp) else NO_LOWERING
    return node.only_eager or template.format(target=node.target, op=type(node).__name__)


# The errors with which a lowering that was written for static sizes fails on dynamic sizes.
_STATIC_SIZE_ERRORS = (UnknownSizeError, TypeError, ValueError, ir.MLIRError)


def _has_dynamic(node: Op) -> bool:
    metas = (meta for op in (node, *node.parents) for meta in op.metas if meta is not None)
    return any(is_dynamic(meta.shape) for meta in metas) or any(True for _ in symbols_in((node.args, node.kwargs)))


def _as_lowering_error(error: Exception, lowering: Any, node: Op) -> LoweringError | None:
    """Converts an error of a lowering to a `LoweringError`; returns `None` if the error is a bug of this project.

    After an error in a user's lowering the next registry is tried.
    """
    if isinstance(error, LoweringError):
        return error
    if not is_ours(lowering):
        frame = extract_tb(error.__traceback__)[-1]
        return LoweringError(f"it raised {type(error).__name__}: {error} ({frame.filename}:{frame.lineno})")
    if isinstance(error, _STATIC_SIZE_ERRORS) and _has_dynamic(node):
        return LoweringError(_static_size_reason(error))
    return None


def _static_size_reason(error: Exception) -> str:
    if isinstance(error, UnknownSizeError):
        return str(error)
    return f"its lowering needs static sizes ({str(error).splitlines()[0]})"


def _symbols_of(
    function: cut.PartitionFunction, body: Sequence[Op | cut.PartitionCall], of_callees: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Returns the symbols that a function needs: those of its values, inputs and outputs, and those of its callees."""
    ops = [*function.nodes, *(op for op, _ in (*function.inputs, *function.outputs))]
    named = [(op.args, op.kwargs, [meta.shape for meta in op.metas if meta is not None]) for op in ops]
    called = (name for item in body if isinstance(item, cut.PartitionCall) for name in of_callees[item.function])
    return tuple(sorted({*symbols_in(named), *called}, key=lambda name: (len(name), name)))


def _with_elements(values: Sequence[cut.Value]) -> list[cut.Value]:
    """Returns the values that have elements: empty tensors are not passed to calls, since they have no memory."""
    return [value for value in values if 0 not in value[0].tensor_meta.shape]


def _types(values: Sequence[cut.Value]) -> list[Any]:
    return [meta_type(op.tensor_meta) for op, _ in values]


def _bind(table: Table, values: Sequence[cut.Value], found: Sequence[Any]) -> None:
    """Stores values that were passed through a call in `table`; creates new tensors for those without elements."""
    passed = iter(found)
    for op, index in values:
        meta = op.tensor_meta.stored
        table[op.name, index] = empty(meta.shape, meta.dtype) if 0 in meta.shape else remember(next(passed), meta.shape)


def _is_complex(node: Op) -> bool:
    metas = (meta for op in (node, *node.parents) for meta in op.metas if meta is not None)
    return any(meta.dtype.is_complex for meta in metas)


def _argument_attributes(index: int, shape: Sequence[Dim], is_parameter: bool, public: bool, declared: bool) -> Any:
    """Returns the attributes of argument `index`: read-only, whether it is a parameter, sizes, placeholder number."""
    read_only = {"bufferization.access": ir.StringAttr.get("read")}
    attributes = read_only if declared else {"bufferization.writable": ir.BoolAttr.get(False)}
    if is_parameter:
        attributes["buddy.parameter"] = ir.UnitAttr.get()
    if is_dynamic(shape):
        attributes[SIZES] = sizes_attribute(shape)
    if public:
        attributes["buddy.source"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), index)
    return ir.DictAttr.get(attributes)


def new_context() -> Any:
    """Creates an MLIR context for one graph; it allows the unregistered attributes of this project."""
    context = ir.Context()
    context.allow_unregistered_dialects = True
    # With MLIR's threads the order of diagnostics would not be deterministic, and forking this process not safe.
    context.enable_multithreading(False)
    return context


def lower(
    graph: Graph, recipe: Recipe, context: Any, locations: LocationSets, first: Registry | None = None,
    parts: cut.Partition | None = None, on_node: OnNode | None = None,
) -> LoweredModule:  # fmt: skip
    """Lowers `graph` to top-level IR under `recipe`, in `context`; the registry `first` is searched before all others.

    `parts` replaces the partition that the recipe asks for; its functions without nodes are only declared. Raises
    `NodeError` for a node that can be neither compiled nor called in eager.
    """
    if parts is None:
        parts = (
            cut.by_layers(graph, recipe.choice_map()) if recipe.partition == "layers" else cut.as_one_function(graph)
        )
    found = {**registries(recipe.dialect), TORCH_MLIR: torch_mlir.ops_registry}
    ordered = {USER: first, **found} if first is not None else found
    lowerer = _Lowerer(ordered, recipe.choice_map(), locations, on_node)
    with context, locations.nowhere(context), value_checks(recipe.checks == "eager"):
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for function in parts.functions:
                lowerer.function(function, function.nodes, public=False)
            main = cut.main_function(graph, graph._func_name)
            lowerer.function(main, parts.body, public=True)
    here = (lowerer.assigned.get(op.stable) for op in graph.operations)
    assignments = tuple(assignment for assignment in here if assignment is not None)
    unapplied = tuple(_unapplied_choices(recipe.choice_map(), assignments, graph))
    return LoweredModule(module, assignments, parts, unapplied, lowerer.transient)


def _unapplied_choices(
    choices: dict[str, str], assignments: Sequence[Assignment], graph: Graph
) -> Iterator[tuple[str, str]]:
    """Yields the nodes whose choice was not applied, each with a message that says what was used instead."""
    known = {assignment.node: assignment for assignment in assignments}
    for node, wanted in choices.items():
        assignment = known.get(node)
        if assignment is not None and assignment.lowering != wanted:
            why = f": {assignment.reason}" if assignment.reason else ", since it needs no lowering"
            yield node, f"the recipe lowers {node} by {wanted}, but {assignment.lowering} lowers it{why}"
        elif assignment is None and all(op.stable != node for op in graph.operations):
            yield node, f"the recipe lowers {node} by {wanted}, {_unknown_node_reason(node, graph)}"


def _unknown_node_reason(node: str, graph: Graph) -> str:
    if any(op.stable == node for op in graph.body):
        return "which is a placeholder or the output"
    close = get_close_matches(node, [op.stable for op in graph.operations], n=1)
    return "but no compiled node has that name" + (f"; did you mean {close[0]}?" if close else "")


def lower_top_level(
    graph: Graph, dialect: Literal["linalg", "tosa"] = "linalg", partition: Literal["layers", "whole"] = "whole",
    first: Registry | None = None, context: Any = None,
) -> Any:  # fmt: skip
    """Lowers `graph` to a top-level module, in a new context unless one is given.

    Raises `NodeError` as `lower` does.
    """
    recipe = Recipe(dialect=dialect, partition=partition)
    return lower(graph, recipe, context or new_context(), LocationSets(), first).module


_SOURCE = "buddy.source"


Parameter = tuple[int, TensorDType]


def pack_parameters(
    module: Any, name: str, parameters: Sequence[Parameter], inputs: Sequence[int]
) -> tuple[TensorMeta, ...]:
    """Rewrites public function `name` of a top-level module to take packs, then inputs. Returns the packs' types.

    `parameters` and `inputs` are numbers of the graph's placeholders, as in `buddy.source`; afterwards `buddy.source`
    numbers the packs and then the inputs. A pack contains the parameters of its element type in the order of
    `parameters`, without gaps; packs are in alphabetical order of their types' names, as in Buddy-MLIR.
    """
    with module.context, ir.Location.unknown():
        old = next(op for op in module.body if op.operation.name == "func.func" and _name(op) == name)
        flags = [ir.DictAttr(attributes) for attributes in ir.ArrayAttr(old.arg_attrs)]
        numbers = {_source(found): number for number, found in enumerate(flags) if _SOURCE in found}
        packed = [(numbers[source], dtype) for source, dtype in parameters if source in numbers]
        dtypes = sorted({dtype for _, dtype in packed}, key=lambda dtype: dtype.name)
        packs = [TensorMeta((_elements(old, packed, dtype),), dtype) for dtype in dtypes]
        kept = {numbers[source]: len(packs) + i for i, source in enumerate(inputs) if source in numbers}
        # Symbolic sizes are arguments without a source: they stay the last ones.
        kept |= {number: -1 for number, found in enumerate(flags) if _SOURCE not in found}
        new = _signature(old, [tensor_type(pack.shape, pack.dtype) for pack in packs], kept)
        values = list(new.entry_block.arguments)
        with ir.InsertionPoint(new.entry_block):
            for pack, value in zip(packs, values, strict=False):
                _unpack(old, [number for number, found in packed if found is pack.dtype], value, pack.dtype)
        for number, value in zip(kept, values[len(packs) :], strict=True):
            old.arguments[number].replace_all_uses_with(value)
        for op in list(old.entry_block.operations):
            op.operation.detach_from_parent()
            new.entry_block.append(op)
        old.operation.erase()
    return tuple(packs)


def _name(op: Any) -> str:
    return ir.StringAttr(op.operation.attributes["sym_name"]).value


def _source(attributes: Any) -> int:
    return ir.IntegerAttr(ir.DictAttr(attributes)[_SOURCE]).value


def _elements(function: Any, packed: Sequence[Parameter], dtype: TensorDType) -> int:
    return sum(math.prod(function.arguments[number].type.shape) for number, found in packed if found is dtype)


def _signature(old: Any, packs: list[Any], kept: Mapping[int, int]) -> Any:
    """Creates an empty function before `old` with `packs` and the `kept` arguments of `old`.

    `kept` gives the new source of each by its number, -1 for one without a source.
    """
    attributes, place = ir.ArrayAttr(old.arg_attrs), old.operation.location
    inputs = [*packs, *(old.arguments[number].type for number in kept)]
    pack = ir.DictAttr.get({"bufferization.writable": ir.BoolAttr.get(False), "buddy.parameter": ir.UnitAttr.get()})
    flags = [_from(pack, source) for source in range(len(packs))]
    flags += [
        attributes[number] if source < 0 else _from(attributes[number], source) for number, source in kept.items()
    ]
    with ir.InsertionPoint(old):
        new = func.FuncOp(_name(old), ir.FunctionType.get(inputs, list(old.type.results)), loc=place)
    new.arg_attrs = ir.ArrayAttr.get(flags)
    if RESULTS in old.attributes:
        new.attributes[RESULTS] = old.attributes[RESULTS]
    new.add_entry_block([place] * len(packs) + [old.arguments[number].location for number in kept])
    return new


def _from(attributes: Any, source: int) -> Any:
    """Returns an argument's attributes with `buddy.source` set to `source`."""
    found = {entry.name: entry.attr for entry in ir.DictAttr(attributes)}
    return ir.DictAttr.get({**found, _SOURCE: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), source)})


def _unpack(function: Any, numbers: Sequence[int], pack: Any, dtype: TensorDType) -> None:
    """Replaces the used arguments `numbers` by consecutive slices of `pack`."""
    offset = 0
    for number in numbers:
        argument = function.arguments[number]
        count = math.prod(argument.type.shape)
        with argument.location:
            flat = ir.RankedTensorType.get([count], argument.type.element_type)
            part = tensor.extract_slice(flat, pack, [], [], [], [offset], [count], [1])
            argument.replace_all_uses_with(reshape(part, tuple(argument.type.shape), dtype))
        offset += count
