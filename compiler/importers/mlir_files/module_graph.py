"""Represents a module's functions and their ops as nodes of a graph, and sets each op's location to its node's name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import Op, OutputOp, PlaceholderOp, new_op
from buddy.compiler.graph.operations.effects import ImportedOp, ImportedResultOp
from buddy.compiler.graph.types import NodeType, TensorDType, TensorMeta
from buddy.compiler.importers.mlir_files.reading import line_of
from buddy.compiler.importers.mlir_files.signatures import SignatureValue
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import attributes_of, nested_ops, symbol_of

# If the functions have more ops than this, each function becomes one node.
MAX_NODES = 20_000
FUNCTIONS = frozenset({"func.func", "llvm.func"})
_TERMINATORS = frozenset({"func.return", "llvm.return"})
# The longest attribute text shown for a node, in characters.
_MAX_ATTRIBUTE_CHARACTERS = 60
_DTYPES = {dtype.value: dtype for dtype in TensorDType}


class ModuleGraphBuilder:
    """The nodes of a module as it was written; `entry` is the function to call.

    Create it before `wrapping.wrap` adds its wrapper function to the module. `title` is the name of the file in
    locations, and `lines_before` the number of its lines before this module.
    """

    def __init__(
        self,
        module: ir.Module,
        entry: ir.Operation,
        arguments: Sequence[SignatureValue],
        title: str,
        lines_before: int = 0,
    ) -> None:
        self._title, self._lines_before = title, lines_before
        self._used_names: Counter[str] = Counter()
        self._node_of_op: dict[Any, Op] = {}
        self._inputs = [self._make_placeholder(value) for value in arguments]
        self._body: list[Op] = []
        self._one_node_per_function = sum(1 for function in _functions(module) for _ in _ops_of(function)) > MAX_NODES
        self._entry_arguments = list(entry.regions[0].blocks[0].arguments)
        for op in module.body:
            self._add_top_level(op.operation)
        self._returned_nodes = self._find_returned_nodes(entry)
        # Locations are set last, because an op's hash includes its location.
        with module.context:
            for op, node in self._node_of_op.items():
                _set_location(op, ir.Location.name(node.stable))
            for value, node in zip(self._entry_arguments, self._inputs, strict=False):
                value.set_location(ir.Location.name(node.stable))

    def make_graph(self, name: str, outs: Sequence[SignatureValue]) -> Graph:
        """Makes the graph with the results `outs`: those of the entry function, then the arguments it writes to."""
        graph = Graph(name)
        for node in self._inputs:
            graph.add_node(node, NodeType.InputNode)
        for node in self._body:
            graph.add_node(node)
        results = []
        for index, out in enumerate(outs):
            if index < len(self._returned_nodes):
                parents = self._returned_nodes[index]
            else:
                parents = [op for op in self._inputs if op.name == out.name]
            is_argument = any(op.name == out.name for op in self._inputs)
            results.append(self._make_result(f"{out.name}_written" if is_argument else out.name, parents, out))
            graph.add_node(results[-1])
        graph.add_node(new_op(OutputOp, "output", "output", [results]))
        return graph

    def _add_top_level(self, op: ir.Operation) -> None:
        """Adds nodes for a function's ops, or one node for another op, such as a global."""
        if op.name not in FUNCTIONS:
            self._add(op, "")
            return
        name = symbol_of(op)
        if self._one_node_per_function:
            self._add(op, name)
            return
        for nested in _ops_of(op):
            self._add(nested, name)

    def _add(self, op: ir.Operation, function: str) -> None:
        """Adds the node of an op in `function`, "" for one at the top level of the module."""
        name = op.name.rpartition(".")[2]
        node = new_op(ImportedOp, self._unique_name(name), op.name, self._parents_of(op), _metas(op))
        node.stable = self._unique_name(".".join(filter(None, (function, op.name))))
        node._keyword_arguments = _attributes(op)
        node.module = function
        line = line_of(op, self._lines_before)
        node.location = f"{self._title}:{line}" if line else ""
        self._node_of_op[op] = node
        self._body.append(node)

    def _unique_name(self, name: str) -> str:
        """Returns `name`, with a number appended if the name is taken."""
        self._used_names[name] += 1
        return name if self._used_names[name] == 1 else self._unique_name(f"{name}_{self._used_names[name] - 1}")

    def _make_placeholder(self, value: SignatureValue) -> Op:
        node = new_op(PlaceholderOp, self._unique_name(value.name), value.name, (), [value.meta])
        node.stable = node.name
        return node

    def _make_result(self, name: str, parents: Sequence[Op], out: SignatureValue) -> Op:
        node = new_op(ImportedResultOp, self._unique_name(name), "result", parents, [out.meta])
        node.stable = node.name
        return node

    def _parents_of(self, op: ir.Operation) -> list[Op]:
        """Returns the nodes whose values the op, or an op in its regions, reads."""
        producers = [self._producer(operand) for inner in (op, *nested_ops(op)) for operand in inner.operands]
        return list(dict.fromkeys(node for node in producers if node is not None))

    def _producer(self, value: ir.Value) -> Op | None:
        """Returns the node of an op's result or of an argument of the entry; `None` for other values."""
        if isinstance(value, ir.OpResult):
            return self._node_of_op.get(value.owner.operation)
        inputs = zip(self._entry_arguments, self._inputs, strict=False)
        return next((node for argument, node in inputs if argument == value), None)

    def _find_returned_nodes(self, entry: ir.Operation) -> list[list[Op]]:
        """Returns, for each result of `entry`, the nodes of the values that may be returned, without duplicates.

        Arguments of blocks after the first have no node. The list is empty if no block returns, or if each function is
        one node.
        """
        if self._one_node_per_function:
            return []
        last_ops = (list(block.operations)[-1].operation for block in entry.regions[0].blocks)
        operands = [list(op.operands) for op in last_ops if op.name in _TERMINATORS]
        producers = (map(self._producer, values) for values in zip(*operands, strict=True))
        return [list(dict.fromkeys(node for node in nodes if node is not None)) for nodes in producers]


def _functions(module: ir.Module) -> Iterator[ir.Operation]:
    return (op.operation for op in module.body if op.operation.name in FUNCTIONS)


def _ops_of(function: ir.Operation) -> Iterator[ir.Operation]:
    """Returns the ops at the top level of a function, without its terminator."""
    blocks = (block for region in function.regions for block in region.blocks)
    return (op.operation for block in blocks for op in block.operations if op.operation.name not in _TERMINATORS)


def _set_location(op: ir.Operation, location: ir.Location) -> None:
    """Sets the location of an op and of all ops inside."""

    def visit(nested: ir.Operation) -> ir.WalkResult:
        nested.location = location
        for region in nested.regions:
            for block in region.blocks:
                for argument in block.arguments:
                    argument.set_location(location)
        return ir.WalkResult.ADVANCE

    op.walk(visit)


def _metas(op: ir.Operation) -> list[TensorMeta | None]:
    return [_meta(result.type) for result in op.results]


def _meta(mlir_type: ir.Type) -> TensorMeta | None:
    """Returns the shape and dtype of a type with static sizes; `None` for other types."""
    if not isinstance(mlir_type, ir.RankedTensorType | ir.MemRefType | ir.VectorType) or not mlir_type.has_static_shape:
        return None
    dtype = _DTYPES.get(str(mlir_type.element_type))
    return TensorMeta(tuple(mlir_type.shape), dtype) if dtype is not None else None


def _attributes(op: ir.Operation) -> dict[str, str]:
    """Returns an op's attributes, with long ones truncated: weights may be among them."""
    return {
        name: _attribute_text(attribute)
        for name, attribute in attributes_of(op).items()
        if name != "operandSegmentSizes"
    }


def _attribute_text(attribute: ir.Attribute) -> str:
    if isinstance(attribute, ir.DenseElementsAttr | ir.DenseResourceElementsAttr) and not getattr(
        attribute, "is_splat", False
    ):
        return f"dense<…> : {attribute.type}"
    text = str(attribute)
    return text if len(text) <= _MAX_ATTRIBUTE_CHARACTERS else f"{text[: _MAX_ATTRIBUTE_CHARACTERS - 1]}…"
