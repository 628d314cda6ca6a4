"""Emits nodes into an FX graph by calling ops on fake tensors, for rewrites of complex, random and quantised ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import getitem
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import CallMethodKey, rebind_unbacked
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from buddy.compiler.frontend.errors import UnsupportedGraphError

# The keys of a node's meta that describe its origin.
_PROVENANCE = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack", "partitioner_tag")


class NodeEmitter(TorchDispatchMode):
    """While active, each call of an ATen op becomes a node of `graph`, or nodes if `table` decomposes the op.

    Operands are fake tensors of `fake_mode`, each of which stands for a node: results of earlier calls, and those of
    `register_value`. Other operands become constants: attributes of the graph's module, by name in `constants`.
    """

    def __init__(
        self, graph: Graph, fake_mode: FakeTensorMode, table: Mapping[torch._ops.OpOverload, Callable[..., object]]
    ) -> None:
        super().__init__()
        self.graph = graph
        self.constants: dict[str, torch.Tensor] = {}
        self.fake_mode = fake_mode
        self._table = table
        self._nodes: dict[int, tuple[torch.Tensor, Node]] = {}
        self._fake_constants: dict[int, torch.Tensor] = {}
        self._origin: Node | None = None
        self._emitted: list[Node] = []

    def node_of(self, tensor: torch.Tensor) -> Node:
        """Returns the node that computes a registered fake tensor."""
        return self._nodes[id(tensor)][1]

    def register_value(self, tensor: torch.Tensor, node: Node) -> torch.Tensor:
        """Returns a fake tensor that stands for the value of `node` in calls of ops.

        It has the form of `tensor`, with lazy conjugation and negation resolved.
        """
        with _disable_current_modes(), self.fake_mode:
            view = torch.ops.aten.alias.default(tensor.resolve_conj().resolve_neg())
        self._nodes[id(view)] = (view, node)
        return view

    def to_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a fake tensor of the form of `tensor`, with static sizes."""
        return self.fake_mode.from_tensor(tensor, static_shapes=True)

    @contextmanager
    def replacing(self, origin: Node) -> Iterator[None]:
        """Gives the nodes that are emitted inside the `with` block the name and provenance of `origin`."""
        self._origin = origin
        with torch.no_grad(), self.fake_mode, self:
            yield

    def drop_unused(self) -> None:
        """Removes emitted nodes without users, except for assertions."""
        for node in reversed(self._emitted):
            if not node.users and not node.is_impure():
                self.graph.erase_node(node)

    def emit(
        self,
        target: Callable[..., object],
        args: Sequence[object],
        kwargs: Mapping[str, object],
        value: Any,
        name: str = "",
    ) -> Node:
        """Adds one node that calls `target`; `value` is its result as a fake tensor, or a list of these.

        Fake tensors among the arguments are replaced by their nodes, symbolic sizes by nodes that compute them. Without
        a `name`, the node has the name of the replaced node, and a suffix.
        """
        origin = self._origin
        assert origin is not None
        nodes = tree_map_only(torch.Tensor, self.node_of, (list(args), dict(kwargs)))
        nodes = tree_map_only(torch.SymInt, self._node_of_size, nodes)
        node = self.graph.create_node("call_function", target, tuple(nodes[0]), nodes[1], name or f"{origin.name}_part")
        node.meta = {key: origin.meta[key] for key in _PROVENANCE if key in origin.meta}
        node.meta["val"] = value
        self._emitted.append(node)
        return node

    def _node_of_size(self, size: torch.SymInt) -> Node | int:
        """Returns the node of a symbolic size, or a number. Raises `UnsupportedGraphError` before PyTorch 2.12."""
        materialize = getattr(self.graph, "materialize_symints", None)
        if materialize is None:
            raise UnsupportedGraphError(
                "a rule computes with a symbolic size", "", "use PyTorch 2.12 or newer, or static sizes"
            )
        return materialize([size])[0]

    def __torch_dispatch__(
        self,
        op: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if op.namespace == "prim":  # a query of a tensor's property, such as its device
            return op(*args, **kwargs)
        result: object = NotImplemented
        if op in self._table:
            with self:
                result = self._table[op](*args, **kwargs)
        elif torch._C.DispatchKey.CompositeImplicitAutograd in op.py_kernels or op._can_decompose():
            with self:
                result = op.decompose(*args, **kwargs)
        return self._call(op, args, kwargs) if result is NotImplemented else result

    def _call(self, op: torch._ops.OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        """Emits a node for a call that is not decomposed, one for each of several results, and returns fake results."""
        args, kwargs = tree_map_only(torch.Tensor, self._to_registered_fake, (args, kwargs))
        value = op(*args, **kwargs)
        node = self.emit(op, args, kwargs, value)
        self._keep_sizes(node, value)
        if isinstance(value, torch.Tensor):
            self._nodes[id(value)] = (value, node)
            return value
        for index, item in enumerate(tree_leaves(value) if value is not None else ()):
            item_node = self.graph.create_node("call_function", getitem, (node, index), name=f"{node.name}_{index}")
            item_node.meta = {**node.meta, "val": item}
            self._emitted.append(item_node)
            self._nodes[id(item)] = (item, item_node)
        return value

    def _keep_sizes(self, node: Node, value: object) -> None:
        """Equates the data-dependent sizes of an emitted node, which have new symbols, with the sizes of the origin.

        Offsets differ: they count the elements of parts, not complex numbers.
        """
        assert self._origin is not None
        bindings = self._origin.meta.get("unbacked_bindings") or {}
        if node.target is not self._origin.target or not isinstance(value, torch.Tensor):
            return
        sizes = {symbol: path for symbol, path in bindings.items() if path and path[0] == CallMethodKey("size")}
        if sizes:
            node.meta["unbacked_bindings"] = sizes
            rebind_unbacked(self.fake_mode.shape_env, node, value)

    def _to_registered_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a fake tensor unchanged; for a constant, adds a `get_attr` node and returns a fake tensor for it."""
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._fake_constants:
            name = f"_part_constant{len(self.constants)}"
            fake_constant = self.to_fake(tensor)
            node = self.graph.create_node("get_attr", name, name=name)
            node.meta["val"] = fake_constant
            self._emitted.append(node)
            self.constants[name] = tensor
            self._fake_constants[id(tensor)], self._nodes[id(fake_constant)] = fake_constant, (fake_constant, node)
        return self._fake_constants[id(tensor)]
