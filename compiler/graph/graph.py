"""The Buddy graph: a program as a list of nodes in the order they run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from buddy.compiler.graph.operation import Op, OutputOp, PlaceholderOp, map_nodes
from buddy.compiler.graph.types import NodeType, TensorMeta


class Graph:
    """Nodes in execution order: placeholders, ops, one output.

    `kinds` tells for each placeholder, in order, whether it is an input or a parameter (or buffer) of the model.
    `mutated` holds the indices of the inputs that the program itself writes to.
    """

    def __init__(self, name: str = "forward", func_name: str = "forward") -> None:
        self.name = name
        self._func_name = func_name
        self._body: list[Op] = []
        self.kinds: list[NodeType] = []
        self.mutated: tuple[int, ...] = ()

    @property
    def body(self) -> list[Op]:
        return self._body

    @property
    def node_table(self) -> dict[str, Op]:
        return {op.name: op for op in self._body}

    @property
    def placeholders(self) -> list[Op]:
        return [op for op in self._body if isinstance(op, PlaceholderOp)]

    @property
    def output(self) -> OutputOp:
        last = self._body[-1]
        assert isinstance(last, OutputOp)
        return last

    @property
    def operations(self) -> list[Op]:
        """The nodes that compute: neither placeholders nor the output."""
        return [op for op in self._body if not isinstance(op, (PlaceholderOp, OutputOp))]

    @property
    def results(self) -> list[Any]:
        """What the program returns, in order: nodes, `None`, or Python scalars."""
        returned = self.output.args[0] if self.output.args else ()
        return list(returned) if isinstance(returned, (list, tuple)) else [returned]

    @property
    def params_shapes(self) -> list[tuple[int, ...]]:
        return [meta.shape for meta in self._metas_of(NodeType.FakeNode)]

    @property
    def inputs_shapes(self) -> list[tuple[int, ...]]:
        return [meta.shape for meta in self._metas_of(NodeType.InputNode)]

    def _metas_of(self, kind: NodeType) -> Iterable[TensorMeta]:
        return (op.tensor_meta for op, found in zip(self.placeholders, self.kinds, strict=True) if found is kind)

    def add_node(self, node: Op, kind: NodeType = NodeType.InputNode) -> None:
        self._body.append(node)
        if isinstance(node, PlaceholderOp):
            self.kinds.append(kind)
        for parent in node.parents:
            node.add_parent(parent)

    def replace_argument(self, user: Op, old: Op, new: Op) -> None:
        """Let `user` read `new` wherever it reads `old`."""
        user._arguments = map_nodes(user._arguments, lambda op: new if op is old else op)
        user._keyword_arguments = map_nodes(user._keyword_arguments, lambda op: new if op is old else op)
        if user in old._children:
            old._children.remove(user)
        new.add_children(user)

    def replace_uses(self, old: Op, new: Op) -> None:
        """Let every user of `old` read `new`, the output excepted: what is returned keeps its own node."""
        for user in list(old._children):
            if not isinstance(user, OutputOp):
                self.replace_argument(user, old, new)

    def drop_unused(self) -> None:
        """Remove the nodes whose results nobody reads; placeholders stay."""
        for op in reversed(self.operations):
            if not op._children:
                self._body.remove(op)
                for parent in op.parents:
                    parent._children.remove(op)

    def __str__(self) -> str:
        """The graph as text, one node a line, with its result types."""
        lines = [f"graph {self.name} {{"]
        for op in self._body:
            types = ", ".join(str(meta) for meta in op.metas)
            lines.append(f"  {op!r}" + (f" : {types}" if types else ""))
        return "\n".join([*lines, "}", ""])
