"""Converts ATen FX graphs to Buddy graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import getitem
from typing import Any, TypeVar

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from buddy.compiler.frontend.aten import AtenGraph, default_decompositions, is_zero, target_key
from buddy.compiler.frontend.complex_numbers import decompose_complex
from buddy.compiler.frontend.errors import UnsupportedGraphError
from buddy.compiler.frontend.names import StableNames, module_path, node_title, python_line, schema_of
from buddy.compiler.frontend.quantisation.tensors import decompose_quantised, is_marked, mark_quantised
from buddy.compiler.frontend.saved_tensors import training_role
from buddy.compiler.frontend.strided_views import fills_storage
from buddy.compiler.frontend.symbolic_sizes import GraphSymbols, UnknownSymbolError, record_slices
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import EagerOp, GetItemOp, Op, OutputOp, PlaceholderOp, default_ops_map
from buddy.compiler.graph.operations import RandomLikeOp
from buddy.compiler.graph.serialization import Opaque
from buddy.compiler.graph.sizes import Dim
from buddy.compiler.graph.types import NodeType, TensorMeta
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.runtime.torch_values import from_torch_dtype, tensor_form, to_plain_argument

# Ops that read the memory of their operand by strides, without their overloads.
_READS_STRIDES = {"as_strided", "as_strided_copy", "as_strided_scatter"}


@dataclass
class Conversion:
    """A Buddy graph, the FX node of each of its nodes, and the constants that became its last placeholders.

    The last `n_bases` of its results are not results of the captured graph: other results are views of their memory.
    """

    graph: Graph
    fx_nodes: list[Node] = field(default_factory=list)
    constants: list[torch.Tensor] = field(default_factory=list)
    symbols: GraphSymbols = field(default_factory=lambda: GraphSymbols(()))
    n_bases: int = 0

    def strides(self, node: Node) -> tuple[Dim, ...]:
        """Returns the strides of the result of `node`.

        Raises `UnsupportedGraphError` if they do not depend on inputs' sizes alone.
        """
        return tuple(self._size(node, stride, "strides") for stride in node.meta["val"].stride())

    def offset(self, node: Node, offset: int | torch.SymInt) -> Dim:
        """Returns the offset of a view that `node` returns.

        Raises `UnsupportedGraphError` if it does not depend on inputs' sizes alone.
        """
        return self._size(node, offset, "an offset")

    def _size(self, node: Node, value: int | torch.SymInt, noun: str) -> Dim:
        try:
            return self.symbols.size(value)
        except UnknownSymbolError as error:
            raise _unsupported(node, f"has {noun} made of {error}") from None


def to_buddy(
    aten: AtenGraph,
    name: str = "forward",
    ops_map: Mapping[str, type[Op]] | None = None,
    func_name: str = "forward",
) -> Conversion:
    """Returns the Buddy graph of `aten`, with op classes by `ops_map`, and `EagerOp` for targets that `ops_map` lacks.

    Dynamic sizes become expressions of the inputs' sizes, and the nodes that compute sizes are dropped. Complex numbers
    are computed by their parts, quantised ones by integers. Raises `UnsupportedGraphError` for element types,
    data-dependent sizes and higher-order ops that a Buddy graph cannot represent.
    """
    op_classes = default_ops_map() if ops_map is None else ops_map
    # This check comes before complex tensors are split, because their parts have separate memory with other strides.
    for node in aten.module.graph.nodes:
        _check_strides(node)
    converter = _Converter(Conversion(Graph(name, func_name)), op_classes)
    table = default_decompositions(op_classes)
    # `decompose_quantised` reads the marks. `run` marks the nodes of the new graph, to reject what is left.
    mark_quantised(aten.module.graph.nodes)
    converter.run(replace(aten, module=decompose_complex(decompose_quantised(aten.module, table), table)))
    return converter.result


_T = TypeVar("_T")


class _Converter:
    """Adds the nodes of an ATen graph to the Buddy graph of `result`, in order."""

    def __init__(self, result: Conversion, ops_map: Mapping[str, type[Op]]) -> None:
        self.result = result
        self.ops_map = ops_map
        self.names = StableNames()
        self.values: dict[Node, Op] = {}
        self.sizes: dict[Node, Dim] = {}

    def run(self, aten: AtenGraph) -> None:
        """Converts all nodes: placeholders, then constants as further placeholders, calls, and the output."""
        nodes = list(aten.module.graph.nodes)
        mark_quantised(nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        self.symbols = self.result.symbols = GraphSymbols(placeholders)
        self.result.graph.symbols = self.symbols.sources
        for node in placeholders:
            _check_ragged(node)
        for node, origin in zip(placeholders, aten.origins, strict=True):
            if not self._is_size(node):
                op = self._add_placeholder(node, origin.name if origin else node.name, bool(origin and origin.is_state))
                op.is_zero = bool(origin and origin.is_zero)
        for node in nodes:
            if node.op == "get_attr":
                self._add_constant(node, aten.module)
        for node in nodes:
            if node.op == "call_function" and not self._is_size(node):
                self._add_call(node)
        self._add_output(nodes[-1])

    def _is_size(self, node: Node) -> bool:
        """True if `node` returns a size; if so, records the size for the nodes that read it."""
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            self.sizes[node] = self._convert_or_reject(node, lambda: self.symbols.size(value))
        return node in self.sizes

    def _convert_or_reject(self, node: Node, convert: Callable[[], _T]) -> _T:
        """Returns the result of `convert`; raises `UnsupportedGraphError` for `node` if it has an unknown symbol."""
        try:
            return convert()
        except UnknownSymbolError as error:
            raise _unsupported(node, f"has {error}") from None

    def _add_placeholder(self, node: Node, name: str, is_state: bool) -> PlaceholderOp:
        op = PlaceholderOp()
        op.stable = self.names.for_placeholder(name)
        op.is_saved = training_role(node) == "saved"
        self._add(op, node, NodeType.FakeNode if is_state else NodeType.InputNode)
        if len(op.metas) != 1 or op.metas[0] is None:
            raise _unsupported(node, "is an input that is not a tensor")
        return op

    def _add_constant(self, node: Node, module: torch.fx.GraphModule) -> None:
        """Adds a placeholder for the tensor that a `get_attr` node reads; rejects subgraphs and other objects."""
        value = getattr(module, str(node.target), None)
        if not isinstance(value, torch.Tensor):
            raise _unsupported(node, "is a higher-order op's subgraph or another object held by the graph")
        self.result.constants.append(value)
        node.meta.setdefault("val", value)
        self._add_placeholder(node, node.name, is_state=True).is_zero = is_zero(value)

    def _add_call(self, node: Node) -> None:
        op = self.ops_map.get(target_key(node.target), EagerOp)()
        record_slices(node, self.symbols)
        _check_strides(node)
        _check_quantised(node)
        op.module, op.location = module_path(node), python_line(node)
        packet = _packet_name(node.target)
        op.stable = self.names.for_op(op.module, packet)
        op.multiple = isinstance(node.meta.get("val"), (list, tuple)) and not isinstance(op, GetItemOp)
        op._arguments = list(self._to_plain(node, _form_arguments(node) if isinstance(op, RandomLikeOp) else node.args))
        op._keyword_arguments = dict(self._to_plain(node, node.kwargs))
        op.schema = schema_of(node.target)
        if isinstance(op, EagerOp):
            _check_results(node)
        self._add(op, node)

    def _add_output(self, node: Node) -> None:
        op = OutputOp()
        op.stable = "output"
        op._arguments = [self._to_plain(node, node.args[0])]
        self._add(op, node)

    def _add(self, op: Op, node: Node, kind: NodeType = NodeType.OtherNode) -> None:
        """Adds `op`, which is made from `node`, to the graph, with the name, target and results of `node`."""
        op.name = node.name
        op.target = target_key(node.target)
        op.metas = () if node.op == "output" else self._metas(node)
        self.values[node] = op
        self.result.fx_nodes.append(node)
        self.result.graph.add_node(op, kind)

    def _to_plain(self, node: Node, value: object) -> Any:
        """Converts an argument of `node` to the Buddy graph's form: nodes become ops or sizes."""

        def convert(item: object) -> Any:
            if isinstance(item, Node):
                return self.sizes[item] if item in self.sizes else self.values[item]
            if isinstance(item, torch.SymInt):
                return self._convert_or_reject(node, lambda: self.symbols.size(item))
            if isinstance(item, Opaque):
                return item
            try:
                return to_plain_argument(item)
            except TypeError as error:
                raise _unsupported(node, f"has {error}") from None

        return _without_fx_containers(map_aggregate(value, convert))

    def _metas(self, node: Node) -> tuple[TensorMeta | None, ...]:
        value = node.meta.get("val")
        values = value if isinstance(value, (list, tuple)) else [value]
        return tuple(self._tensor_meta(node, item) for item in values)

    def _tensor_meta(self, node: Node, value: object) -> TensorMeta | None:
        if not isinstance(value, torch.Tensor):
            return None
        dtype = from_torch_dtype(value.dtype)
        if dtype is None or _rejection_reason(value):
            raise _unsupported(node, _rejection_reason(value))
        return TensorMeta(self._convert_or_reject(node, lambda: tuple(map(self.symbols.size, value.shape))), dtype)


def unsupported_nodes(nodes: Iterable[Node]) -> dict[str, str]:
    """Returns the reason for each node with a result or operand that compiled code does not support, by its name."""
    reasons = {}
    for node in nodes:
        if node.op != "call_function":
            continue
        for tensor in (node, *node.all_input_nodes):
            value = tensor.meta.get("val")
            values = value if isinstance(value, (list, tuple)) else [value]
            reason = next(filter(None, map(_rejection_reason, values)), "")
            if reason:
                reasons[node.name] = _unsupported(tensor, reason).diagnostic.what
    return reasons


def _rejection_reason(value: object) -> str:
    """Returns why compiled code does not support a tensor; "" if it does, and for other values."""
    if not isinstance(value, torch.Tensor):
        return ""
    if value.device.type != "cpu":
        return f"is on the device {value.device}"
    if value.layout != torch.strided:
        return f"has the layout {str(value.layout).removeprefix('torch.')}"
    return "" if from_torch_dtype(value.dtype) else f"has the element type {value.dtype}"


def _packet_name(target: Callable[..., object] | str) -> str:
    """Returns the name of an FX target without its namespace and its overload."""
    parts = target_key(target).split(".")
    return parts[1] if len(parts) == 3 else parts[0]


def _form_arguments(node: Node) -> tuple[object, ...]:
    """Returns the arguments of an op such as `rand_like`, which reads only the form of its first operand.

    The form (`tensor_form`) replaces the operand, so that the graph need not compute it.
    """
    first, *rest = node.args
    form = tensor_form(first.meta["val"]) if isinstance(first, Node) else None
    return (form or first, *rest)


def _without_fx_containers(value: object) -> Any:
    """Converts FX's immutable lists and dicts to plain ones; tuples stay tuples."""
    if isinstance(value, tuple):
        return tuple(_without_fx_containers(item) for item in value)
    if isinstance(value, list):
        return [_without_fx_containers(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_fx_containers(item) for key, item in value.items()}
    return value


def reads_storage(node: Node) -> bool:
    """True if `node` reads the memory of its operand, by strides."""
    return node.op == "call_function" and target_key(node.target).split(".")[0] in _READS_STRIDES


def _check_strides(node: Node) -> None:
    """Raises `UnsupportedGraphError` for an op that reads the memory of an operand that is not dense and row-major.

    In compiled code, all tensors are dense and row-major.
    """
    if not reads_storage(node):
        return
    operand = node.args[0]
    value = operand.meta.get("val") if isinstance(operand, Node) else None
    if not isinstance(value, torch.Tensor):
        return
    if not value.is_contiguous():
        raise _unsupported(node, "reads the strides of a tensor that is not contiguous")
    if not fills_storage(value):
        raise _unsupported(node, "reads the storage that a tensor shares with others")


def _check_quantised(node: Node) -> None:
    """Raises `UnsupportedGraphError` for a node that returns or reads a quantised tensor."""
    if any(map(is_marked, (node, *node.all_input_nodes))):
        raise _unsupported(node, "works on a quantised tensor")


def _check_ragged(placeholder: Node) -> None:
    """Raises `UnsupportedGraphError` for the ragged dim of a jagged nested tensor, which has no single size."""
    value = placeholder.meta.get("val")
    if isinstance(value, torch.SymInt) and value.node.is_nested_int():
        raise _unsupported(placeholder, "is the ragged dim of a jagged nested tensor")


def _check_results(node: Node) -> None:
    """Raises `UnsupportedGraphError` for a node that compiled code cannot call in eager.

    Such a node is not an op of `torch.ops`, or returns something other than tensors.
    """
    if "." not in target_key(node.target):
        raise _unsupported(node, "is not a torch op")
    value = node.meta.get("val")
    results = [value]
    if isinstance(value, (list, tuple)):  # only results that are read have to be tensors
        results = [value[user.args[1]] for user in node.users if user.target is getitem]
    if not all(isinstance(result, torch.Tensor) for result in results):
        raise _unsupported(node, "returns a value that is not a tensor of known shape")


def _unsupported(node: Node, reason: str) -> UnsupportedGraphError:
    return UnsupportedGraphError(
        Diagnostic(
            what=f"{node_title(node)} ({node.target}) {reason}, which compiled code cannot represent",
            where=python_line(node) or module_path(node),
            todo="run this part outside the compiled function, or let the graph stay in eager (fallback='eager')",
            node=node.name,
        )
    )
