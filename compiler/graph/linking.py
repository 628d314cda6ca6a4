"""Updates a graph's node table, children, node order and groups from its nodes' arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from buddy.compiler.graph.node import Op, OutputOp, PlaceholderOp
from buddy.compiler.graph.types import GraphError

Item = TypeVar("Item")


class LinkableGraph(Protocol):
    """The members of `Graph` that this module reads and updates; `Graph` itself imports this module."""

    op_groups: dict[str, list[Op]]
    _body: list[Op]

    @property
    def node_table(self) -> NodeTable: ...
    @property
    def name(self) -> str: ...
    @property
    def body(self) -> list[Op]: ...
    @property
    def placeholders(self) -> Sequence[Op]: ...


class NodeTable(dict[Any, Op]):
    """A graph's nodes by name; a lookup accepts a name or a node.

    A lookup also finds nodes that a script has appended to the body, and adds them.
    """

    def __init__(self, graph: LinkableGraph) -> None:
        super().__init__()
        self._graph = graph

    def add(self, node: Op) -> None:
        self[node.name] = node

    def remove(self, node: Op) -> None:
        if super().get(node.name) is node:
            del self[node.name]

    def rebuild(self) -> None:
        self.clear()
        self.update((op.name, op) for op in self._graph.body)

    def __missing__(self, key: Any) -> Op:
        if isinstance(key, Op):
            return self[key.name]
        for op in self._graph.body:
            if op.name == key:
                self.add(op)
                return op
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return self.get(key) is not None

    def get(self, key: Any, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def pop(self, key: Any, *default: Any) -> Any:
        return super().pop(str(key), *default)

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(str(key))


def link(graph: LinkableGraph) -> None:
    """Replaces names in arguments by nodes, sorts the body, and rebuilds the table, the children and the groups.

    Raises `GraphError` as `Graph.link` describes.
    """
    table = _index_nodes(graph)
    for op in graph._body:
        _resolve_arguments(op, table, graph)
    graph._body[:] = ordered_body(graph)
    graph.node_table.rebuild()
    for op in graph._body:
        op._children = []
    for op in graph._body:
        for parent in op.parents:
            # Parents are unique, so no child is added twice.
            parent._children.append(op)
    for group in graph.op_groups.values():
        group[:] = [table[op.name] for op in group if op.name in table]


def _index_nodes(graph: LinkableGraph) -> dict[str, Op]:
    """Returns the nodes by name, and sets missing stable names and targets.

    Raises `GraphError` for a node without a name, and for two nodes with the same name.
    """
    table: dict[str, Op] = {}
    for op in graph._body:
        if not op.name or table.setdefault(op.name, op) is not op:
            problem = f"two nodes have the name {op.name}" if op.name else f"a {type(op).__name__} has no name"
            raise GraphError(f"{problem} · graph {graph.name} · give each node a unique name")
        op.stable = op.stable or op.name
        op.target = op.target or (type(op).targets[0] if type(op).targets else type(op).__name__)
    return table


def _resolve_arguments(op: Op, table: Mapping[str, Op], graph: LinkableGraph) -> None:
    """Replaces names in the arguments by nodes, and replaced nodes by the current nodes of the same name."""
    may_have_names = op._declared_parents or isinstance(op, OutputOp)
    if may_have_names or any(table.get(parent.name) is not parent for parent in op.parents):
        names = {str(parent) for parent in op._declared_parents}
        op._declared_parents = []
        op._arguments = _look_up(op._arguments, names, op, table, graph)
        op._keyword_arguments = _look_up(op._keyword_arguments, names, op, table, graph)


def _look_up(value: Any, names: set[str], op: Op, table: Mapping[str, Op], graph: LinkableGraph) -> Any:
    """Returns the argument `value` of `op` with its nodes, and the strings in `names`, replaced by nodes of `table`.

    All strings of an output are names. Raises `GraphError` for a node that is not in the graph.
    """
    if isinstance(value, Op) or (isinstance(value, str) and (value in names or isinstance(op, OutputOp))):
        node = table.get(str(value))
        if node is None:
            raise GraphError(
                f"{op.name} reads {value}, which is not in the graph · graph {graph.name}, node {op!r} · "
                "add that node before this one, or change the argument"
            )
        return node
    if isinstance(value, (list, tuple)):
        return type(value)(_look_up(item, names, op, table, graph) for item in value)
    if isinstance(value, dict):
        return {key: _look_up(item, names, op, table, graph) for key, item in value.items()}
    return value


def ordered_body(graph: LinkableGraph) -> list[Op]:
    """Returns the body in topological order: placeholders first, the output last.

    An order that is topological is kept; otherwise a node moves before its first user.

    Raises `GraphError` for cycles.
    """

    def cycle_error(nodes: list[Op]) -> GraphError:
        names = " → ".join(op.name for op in (*nodes, nodes[0]))
        return GraphError(
            f"the graph has a cycle · graph {graph.name}, each reads the next: {names} · remove one of its edges"
        )

    ops = (op for op in graph._body if not isinstance(op, (PlaceholderOp, OutputOp)))
    ordered = topological_order([*graph.placeholders, *ops], lambda op: op.parents, cycle_error)
    return [*ordered, *(op for op in graph._body if isinstance(op, OutputOp))]


def topological_order(
    items: Iterable[Item],
    dependencies: Callable[[Item], Iterable[Item]],
    cycle_error: Callable[[list[Item]], Exception],
) -> list[Item]:
    """Returns `items` and their dependencies in topological order: each dependency moves before its first user.

    `dependencies(item)` returns the items that `item` depends on. The search is depth-first but not recursive, since a
    graph may be thousands of nodes deep. If the items of `cycle` form a cycle, raises `cycle_error(cycle)`.
    """
    placed: dict[Item, None] = {}
    for item in items:
        # The items from `item` to the one that is visited, each with its dependencies that remain to be visited.
        path: dict[Item, Iterator[Item]] = {} if item in placed else {item: iter(dependencies(item))}
        while path:
            top = next(reversed(path))
            dependency = next((candidate for candidate in path[top] if candidate not in placed), None)
            if dependency is None:
                placed[top] = None
                del path[top]
            elif dependency in path:
                items_on_path = list(path)
                raise cycle_error(items_on_path[items_on_path.index(dependency) :])
            else:
                path[dependency] = iter(dependencies(dependency))
    return list(placed)
