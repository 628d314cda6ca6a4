"""Records ops on fake tensors as nodes of an FX graph, so that a rule is an ordinary function of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import getitem
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, Node
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

# The keys of a node's meta that describe its origin.
_PROVENANCE = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack", "partitioner_tag")


class ComplexEmitter(TorchDispatchMode):
    """While active, each ATen op on known tensors becomes a node of `graph`, decomposed by `table`.

    Real tensors among the operands become constants: attributes of the graph's module, by name in `constants`.
    """

    def __init__(self, graph: Graph, fake_mode: FakeTensorMode, table: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.graph = graph
        self.constants: dict[str, torch.Tensor] = {}
        self.fake_mode = fake_mode
        self._table = table
        self._nodes: dict[int, tuple[torch.Tensor, Node]] = {}
        self._known: dict[int, torch.Tensor] = {}
        self._origin: Node | None = None
        self._emitted: list[Node] = []

    def node_of(self, tensor: torch.Tensor) -> Node:
        return self._nodes[id(tensor)][1]

    def know(self, tensor: torch.Tensor, node: Node) -> torch.Tensor:
        """A tensor of the form of `tensor` for the value of `node`, with lazy conjugation and negation resolved."""
        with _disable_current_modes(), self.fake_mode:
            view = torch.ops.aten.alias.default(tensor.resolve_conj().resolve_neg())
        self._nodes[id(view)] = (view, node)
        return view

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.fake_mode.from_tensor(tensor, static_shapes=True)

    @contextmanager
    def at(self, origin: Node) -> Iterator[None]:
        """Nodes emitted inside replace `origin`, and have its name and provenance."""
        self._origin = origin
        with torch.no_grad(), self.fake_mode, self:
            yield

    def drop_unused(self) -> None:
        """Take off emitted nodes that nobody reads, but assertions."""
        for node in reversed(self._emitted):
            if not node.users and not node.is_impure():
                self.graph.erase_node(node)

    def emit(self, target: Any, args: Any, kwargs: Mapping[str, Any], value: Any, name: str = "") -> Node:
        """Adds one node with the value `value`."""
        origin = self._origin
        assert origin is not None
        nodes = tree_map_only(torch.Tensor, self.node_of, (list(args), dict(kwargs)))
        nodes = tree_map_only(torch.SymInt, lambda size: self.graph.materialize_symints([size])[0], nodes)
        node = self.graph.create_node("call_function", target, tuple(nodes[0]), nodes[1], name or f"{origin.name}_part")
        node.meta = {key: origin.meta[key] for key in _PROVENANCE if key in origin.meta}
        node.meta["val"] = value
        self._emitted.append(node)
        return node

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if op.namespace == "prim":  # a query of a tensor's property, such as its device
            return op(*args, **kwargs)
        found = NotImplemented
        if op in self._table:
            with self:
                found = self._table[op](*args, **kwargs)
        elif torch._C.DispatchKey.CompositeImplicitAutograd in op.py_kernels or op._can_decompose():
            with self:
                found = op.decompose(*args, **kwargs)
        return self._called(op, args, kwargs) if found is NotImplemented else found

    def _called(self, op: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, self._fake, (args, kwargs))
        value = op(*args, **kwargs)
        node = self.emit(op, args, kwargs, value)
        if isinstance(value, torch.Tensor):
            self._nodes[id(value)] = (value, node)
            return value
        for index, item in enumerate(tree_leaves(value) if value is not None else ()):
            picked = self.graph.create_node("call_function", getitem, (node, index), name=f"{node.name}_{index}")
            picked.meta = {**node.meta, "val": item}
            self._emitted.append(picked)
            self._nodes[id(item)] = (item, picked)
        return value

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """A constant as a fake tensor, with its node; a fake tensor is returned unchanged."""
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._known:
            name = f"_part_constant{len(self.constants)}"
            fake = self.fake(tensor)
            node = self.graph.create_node("get_attr", name, name=name)
            node.meta["val"] = fake
            self._emitted.append(node)
            self.constants[name] = tensor
            self._known[id(tensor)], self._nodes[id(fake)] = fake, (fake, node)
        return self._known[id(tensor)]
