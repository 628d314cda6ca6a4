"""The Buddy graph: a list of nodes in execution order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from buddy.compiler.graph.linking import NodeTable, link
from buddy.compiler.graph.node import Op, OutputOp, PlaceholderOp, map_nodes
from buddy.compiler.graph.sizes import SymbolSource
from buddy.compiler.graph.types import DeviceType, GraphError, NodeType, TensorMeta
from buddy.compiler.protocol.artifact import ArtifactSymbol
from buddy.compiler.protocol.plain_values import ImportedIR
from buddy.compiler.support import hooks

# Rewrites a graph in place.
Transform = Callable[["Graph"], object]


@dataclass(frozen=True)
class GraphSettings:
    """How a script's graph is lowered to MLIR.

    `user_registry()` returns a registry of lowerings that takes precedence over those of the dialect, or `None`.
    `on_node` is called with each node and the MLIR ops created for it. `external_calls` allows nodes to call functions
    of libraries.
    """

    dialect: Literal["linalg", "tosa"] = "tosa"
    user_registry: Callable[[], Any] = lambda: None
    on_node: Callable[[Op, Sequence[Any]], None] | None = None
    external_calls: bool = False


class Graph:
    """Nodes in execution order: placeholders, ops, one output.

    Each placeholder is an input or a parameter (or buffer) of the model. `mutated` holds the indices of the
    placeholders that the program writes to. `symbols` says where a call finds the values of symbolic sizes. `op_groups`
    has the ops of each subgraph of `GraphDriver`, by the subgraph's name, and `group_map_device` its device.
    `imported_ir` is an imported module that is compiled instead of the nodes, which have no lowering themselves.

    Arguments are the links between nodes. The editing methods keep `_children`, the groups and the order consistent
    with the arguments; after manual edits call `link()`. `fuse_ops`, `perform` and all lowering methods also call it.

    Some names with an underscore, such as `_inputs` and `_ctx`, are Buddy-MLIR's.
    """

    def __init__(self, name: str = "forward", func_name: str = "forward", device: DeviceType = DeviceType.CPU) -> None:
        self.name = name
        self.device = device
        self.mutated: tuple[int, ...] = ()
        self.symbols: tuple[SymbolSource, ...] = ()
        self.imported_ir: ImportedIR | None = None
        self.op_groups: dict[str, list[Op]] = {}
        self.group_map_device: dict[str, DeviceType] = {}
        self._func_name = func_name
        self._body: list[Op] = []
        self._table = NodeTable(self)
        # Whether a `with` block of `rewriting` is running, in which `link` does nothing.
        self._rewriting = False
        self.settings = GraphSettings()
        # The graph as MLIR, once it has been lowered, and the context and locations of that module.
        self._imported_module: Any = None
        self._context: Any = None
        self._location_sets: Any = None

    # ---- contents ----------------------------------------------------------------------------------------------------

    @property
    def body(self) -> list[Op]:
        return self._body

    @body.setter
    def body(self, nodes: Iterable[Op]) -> None:
        self._body = list(nodes)
        self._table.rebuild()

    @property
    def node_table(self) -> NodeTable:
        """Returns the nodes by name. A node is also a valid key."""
        return self._table

    @property
    def placeholders(self) -> list[PlaceholderOp]:
        return [op for op in self._body if isinstance(op, PlaceholderOp)]

    @property
    def kinds(self) -> list[NodeType]:
        """Returns the kind of each placeholder, in order: an input, or a parameter (or buffer) of the model."""
        return [op.kind for op in self.placeholders]

    @property
    def inputs(self) -> list[Op]:
        return [op for op in self.placeholders if op.kind is NodeType.InputNode]

    @property
    def params(self) -> list[Op]:
        return [op for op in self.placeholders if op.kind is NodeType.FakeNode]

    @property
    def inputs_shapes(self) -> list[TensorMeta]:
        return [op.tensor_meta for op in self.inputs]

    @property
    def params_shapes(self) -> list[TensorMeta]:
        return [op.tensor_meta for op in self.params]

    @property
    def _inputs(self) -> list[int]:
        """Returns the positions of `inputs` in the body. An assignment makes the nodes at these positions inputs."""
        return self._positions_of(NodeType.InputNode)

    @_inputs.setter
    def _inputs(self, positions: Iterable[int]) -> None:
        self._set_kind(positions, NodeType.InputNode)

    @property
    def _fake_params(self) -> list[int]:
        """Returns the positions of `params` in the body. An assignment makes the nodes there parameters."""
        return self._positions_of(NodeType.FakeNode)

    @_fake_params.setter
    def _fake_params(self, positions: Iterable[int]) -> None:
        self._set_kind(positions, NodeType.FakeNode)

    def _positions_of(self, kind: NodeType) -> list[int]:
        return [i for i, op in enumerate(self._body) if isinstance(op, PlaceholderOp) and op.kind is kind]

    def _set_kind(self, positions: Iterable[int], kind: NodeType) -> None:
        for position in positions:
            node = self._body[position]
            if not isinstance(node, PlaceholderOp):
                raise GraphError(
                    f"{node.name} is not a placeholder · graph {self.name}, position {position} · choose a placeholder"
                )
            node.kind = kind

    @property
    def output(self) -> OutputOp:
        """Returns the output node. Raises `GraphError` if the last node is not one."""
        last = self._body[-1] if self._body else None
        if not isinstance(last, OutputOp):
            raise GraphError(f"the graph has no output · graph {self.name} · add an OutputOp with add_node")
        return last

    @property
    def operations(self) -> list[Op]:
        """Returns the op nodes: all nodes except placeholders and the output."""
        return [op for op in self._body if not isinstance(op, (PlaceholderOp, OutputOp))]

    @property
    def results(self) -> list[Any]:
        """Returns the results of the program, in order; each is a node, `None`, or a Python scalar.

        The output node has the results as its arguments, or one list or tuple of them.
        """
        arguments = self.output.args
        is_nested = len(arguments) == 1 and isinstance(arguments[0], (list, tuple))
        return list(arguments[0] if is_nested else arguments)

    # ---- edits -------------------------------------------------------------------------------------------------------

    def add_node(self, node: Op, node_type: NodeType = NodeType.OtherNode) -> None:
        """Appends `node`. For a placeholder, `node_type` says whether it is an input or a parameter (or buffer)."""
        self._body.append(node)
        self._table.add(node)
        if isinstance(node, PlaceholderOp) and node_type is not NodeType.OtherNode:
            node.kind = node_type
        for parent in node.parents:
            if isinstance(parent, Op):
                _add_child(parent, node)

    def link(self) -> None:
        """Updates the node table, children, node order and groups from the nodes' arguments.

        Raises `GraphError` for a node without a name, for two nodes with the same name, for a node that reads a node
        outside of the graph, and for cycles.
        """
        if not self._rewriting:
            link(self)

    @contextmanager
    def rewriting(self) -> Iterator[None]:
        """Links the graph once after the `with` block instead of after each edit in it, which makes edits cheap.

        In the block, edit with the methods of this class: these keep children and the node table up to date. The order
        of the body and the groups may be outdated. Raises `GraphError` as `link` does, before and after the block.
        """
        self.link()
        self._rewriting = True
        try:
            yield
        finally:
            self._rewriting = False
        self.link()

    def check(self) -> None:
        """Links the graph, and checks that it has an output and that each node has result types, as lowering requires.

        Raises `GraphError` as `link` does, and for a node without `tensor_meta` or a graph without output.
        """
        self.link()
        for op in (*self.placeholders, *self.operations):
            if not op.metas:
                raise GraphError(
                    f"{op.name} has no result types · graph {self.name}, node {op!r} · "
                    "assign its tensor_meta: shape and dtype"
                )
        _ = self.output  # Raises without an output.

    def readers(self, node: Op) -> list[Op]:
        """Returns the nodes that read `node`, including the output.

        Searches the arguments of all nodes, except in a `rewriting` block, where the children are up to date.
        """
        return list(node._children) if self._rewriting else [op for op in self._body if node in op.parents]

    def set_arguments(self, node: Op, args: Iterable[object], kwargs: Mapping[str, object] | None = None) -> None:
        """Sets the arguments of `node`, and updates the children of its old and new parents."""
        for parent in node.parents:
            self._remove_child(parent, node)
        node._arguments, node._keyword_arguments = list(args), dict(kwargs or {})
        node._declared_parents = []
        self._add_to_parents(node)

    def _remove_child(self, parent: Op | str, child: Op) -> None:
        """Removes `child` from the children of `parent`, if both are still linked."""
        node = self._table.get(parent)
        if node is not None and child in node._children:
            node._children.remove(child)

    def _add_to_parents(self, node: Op) -> None:
        """Adds `node` to the children of the nodes that it reads."""
        for parent in node.parents:
            if isinstance(parent, Op):
                parent.add_children(node)

    def check_delete_node(self, node: Op) -> bool:
        """True if no node reads `node`. Raises `GraphError` if it is not in the graph."""
        self._position(node)
        return not self.readers(node)

    def delete_node(self, node: Op, parents: Sequence[Op] | None = None) -> None:
        """Removes a node without readers, also from its group and from the children of its parents and of `parents`.

        Raises `GraphError` if the node has readers, or is not in the graph.
        """
        position, readers = self._position(node), self.readers(node)
        if readers:
            names = ", ".join(map(str, readers[:5])) + (", …" if len(readers) > 5 else "")
            raise GraphError(
                f"{node.name} cannot be deleted: {names} still read{'s' if len(readers) == 1 else ''} it · "
                f"graph {self.name}, node {node!r} · "
                "replace it with displace_node, or change the arguments of its readers first"
            )
        if isinstance(node, PlaceholderOp):
            index = self.placeholders.index(node)
            self.mutated = tuple(i - (i > index) for i in self.mutated if i != index)
        del self._body[position]
        self._table.remove(node)
        for parent in (*node.parents, *(parents or ())):
            self._remove_child(parent, node)
        for group in self.op_groups.values():
            group[:] = [op for op in group if op is not node]

    def displace_node(self, node: Op, newnode: Op) -> None:
        """Replaces `node` by `newnode`, which takes over its arguments, result types and readers.

        Raises `GraphError` if `node` is not in the graph, or if another node has the name of `newnode`.
        """
        # Like Buddy-MLIR: patterns of scripts then treat the new node like the old one.
        newnode._op_type = node._op_type
        self.displace_node_with_chain(node, [newnode])

    def displace_node_with_chain(self, node: Op, chain: Sequence[Op]) -> None:
        """Replaces `node` by the nodes of `chain`.

        The first node of `chain` takes over the arguments of `node`, the last one its result types and readers. The
        caller has set the arguments of all but the first. Raises `GraphError` as `displace_node` does, and for an empty
        chain.
        """
        position, readers = self._position(node), self.readers(node)
        if not chain:
            raise GraphError(
                f"{node.name} cannot be replaced by an empty chain · graph {self.name} · call delete_node instead"
            )
        head, tail = chain[0], chain[-1]
        for parent in node.parents:
            self._remove_child(parent, node)
        head._arguments, head._keyword_arguments = list(node.args), dict(node.kwargs)
        head._declared_parents = []
        tail.metas, tail.multiple = node.metas, node.multiple
        for new in chain:
            _inherit_origin(new, node)
            self._add_to_parents(new)
        self._body[position : position + 1] = chain
        self._table.remove(node)
        for new in chain:
            self._table.add(new)
        for reader in readers:
            if not any(reader is new for new in chain):
                self.replace_argument(reader, node, tail)
        for group in self.op_groups.values():
            group[:] = [new for op in group for new in (chain if op is node else [op])]
        node._children.clear()
        self.link()

    def replace_as_child(self, parent_ops: Sequence[Op | str] | Op | str, child_op: Op, new_op: Op) -> None:
        """Replaces `child_op` by `new_op` among the children of `parent_ops`.

        `link` derives children from arguments, so make `new_op` read these parents before the next `link`.
        """
        for parent in _as_sequence(parent_ops):
            children = self._table[parent]._children
            if child_op in children:
                children[children.index(child_op)] = new_op

    def replace_as_parent(self, parent_op: Op, child_ops: Sequence[Op | str] | Op | str, new_op: Op) -> None:
        """Makes `child_ops` read `new_op` instead of `parent_op`."""
        for child in _as_sequence(child_ops):
            self.replace_argument(self._table[child], parent_op, new_op)

    def replace_argument(self, user: Op, old: Op, new: Op) -> None:
        """Makes `user` read `new` instead of `old`, at any depth of its arguments."""

        def replace(op: Op) -> Op:
            return new if op is old else op

        user._arguments = map_nodes(user._arguments, replace)
        user._keyword_arguments = map_nodes(user._keyword_arguments, replace)
        user._declared_parents = [new if parent == old else parent for parent in user._declared_parents]
        if user in old._children:
            old._children.remove(user)
        new.add_children(user)

    def replace_uses(self, old: Op, new: Op) -> None:
        """Makes every reader of `old` read `new`, except the output: the graph's results stay the same nodes."""
        for user in list(old._children):
            if not isinstance(user, OutputOp):
                self.replace_argument(user, old, new)

    def insert_before(self, node: Op, *new: Op) -> None:
        """Inserts nodes before `node` and into its group. Raises `GraphError` if `node` is not in the graph."""
        position = self._position(node)
        self._body[position:position] = new
        for op in new:
            self._table.add(op)
            self._add_to_parents(op)
        for group in self.op_groups.values():
            group[:] = [member for op in group for member in ((*new, op) if op is node else (op,))]
        self.link()

    def drop_unused(self) -> None:
        """Removes nodes without readers, except placeholders and nodes with a side effect."""
        for op in reversed(self.operations):
            if not op._children and not op.has_effect:
                self.delete_node(op)

    def _position(self, node: Op) -> int:
        """Returns the index of `node` in the body. Raises `GraphError` if it is not in the graph."""
        for position, op in enumerate(self._body):
            if op is node:
                return position
        raise GraphError(f"{node.name} is not in the graph · graph {self.name} · add it with add_node")

    # ---- transforms --------------------------------------------------------------------------------------------------

    def init_op_group(self) -> None:
        """Puts each op into a separate group, on the CPU: the initial state of a fusion that merges groups."""
        self.op_groups = {
            f"subgraph{i}": [op]
            for i, op in enumerate(self._body)
            if not isinstance(op, (PlaceholderOp, OutputOp))
        }  # fmt: skip
        self.group_map_device = dict.fromkeys(self.op_groups, DeviceType.CPU)

    def fuse_ops(self, pattern_list: Iterable[Transform]) -> None:
        """Applies fusion patterns in order: functions that set `op_groups` or rewrite nodes. Raises like `perform`."""
        self.perform(pattern_list)

    def perform(self, func_list: Iterable[Transform]) -> None:
        """Applies functions that rewrite the graph in place, in order.

        Raises their exceptions, and `GraphError` as `link` does if one of them leaves an invalid graph.
        """
        for function in func_list:
            function(self)
            self.link()

    # ---- lowering ----------------------------------------------------------------------------------------------------

    @property
    def _ctx(self) -> Any:
        """Returns the MLIR context of the graph's module."""
        if self._context is None:
            self._context = graph_lowering().new_context()
        return self._context

    @property
    def _locations(self) -> Any:
        """Returns the `LocationSets` of the graph's module."""
        if self._location_sets is None:
            from buddy.compiler.mlir.provenance import LocationSets

            self._location_sets = LocationSets()
        return self._location_sets

    def lower_to_top_level_ir(self, do_params_pack: bool = False) -> None:
        """Lowers the graph to a module on tensors (TOSA, linalg and others), and stores it as `_imported_module`.

        The arguments of the module's function are the placeholders in order. With `do_params_pack`, they are one 1-D
        tensor per element type with all parameters, in the order of `params`, and then the inputs. Raises
        `CompilationError` for a node that can be neither compiled nor called in eager.
        """
        self._imported_module = graph_lowering().top_level(self, do_params_pack).module

    def lower_to_llvm_ir(self) -> None:
        """Lowers `_imported_module`, creating it if necessary, to the LLVM dialect with the default pipeline.

        Raises `CompilationError` if a pass fails.
        """
        if self._imported_module is None:
            self.lower_to_top_level_ir()
        graph_lowering().lower_to_llvm(self)

    def compile(self, do_params_pack: bool = False) -> Callable[..., list[Any]]:
        """Lowers the graph again, completely, and returns a function from tensors to the list of results.

        The function takes the arguments that `lower_to_top_level_ir` describes. Afterwards, `_imported_module` is in
        the LLVM dialect. Raises `CompilationError` as the other lowering methods do.
        """
        lowering = graph_lowering()
        top_level = lowering.top_level(self, do_params_pack)
        self._imported_module = top_level.module
        return lowering.runnable(top_level, self)

    def __str__(self) -> str:
        """Returns the graph as text, one node per line, with its result types."""
        lines = [f"graph {self.name} {{"]
        for op in self._body:
            types = ", ".join(str(meta) for meta in op.metas)
            lines.append(f"  {op!r}" + (f" : {types}" if types else ""))
        return "\n".join([*lines, "}", ""])


class GraphLowering(Protocol):
    """Lowers a script's graph to MLIR; implemented by `driver/modules.py`, in a layer above this one.

    `top_level` returns an object with the MLIR `module`; `partition` is a `Partition`, or `None` for a single function,
    and `pack` is `do_params_pack` of `Graph.lower_to_top_level_ir`. `set_device` marks function `name` with its device.
    `lower_to_llvm` lowers the graph's module. `runnable` compiles the result of `top_level` to a function on tensors.
    """

    def new_context(self) -> Any: ...
    def top_level(self, graph: Graph, pack: bool, partition: Any = None) -> Any: ...
    def set_device(self, module: Any, name: str, device: DeviceType) -> None: ...
    def lower_to_llvm(self, graph: Graph) -> None: ...
    def runnable(self, top_level: Any, graph: Graph) -> Callable[..., list[Any]]: ...


def graph_lowering() -> GraphLowering:
    """Returns the implementation of `GraphLowering`; the first call loads MLIR."""
    lowering: GraphLowering = hooks.graph_lowering()
    return lowering


def _add_child(parent: Op, node: Op) -> None:
    """Adds `node` to the children of `parent`; searches them only if they may already contain the node."""
    children = parent._children
    if not node._may_be_child:
        children.append(node)
    elif not children or children[-1] is not node:
        parent.add_children(node)


def _as_sequence(ops: Sequence[Op | str] | Op | str) -> Sequence[Op | str]:
    return [ops] if isinstance(ops, (Op, str)) else ops


def _inherit_origin(new: Op, node: Op) -> None:
    """Copies the module path and the source location of the replaced `node` to `new` where `new` has none."""
    new.module, new.location = new.module or node.module, new.location or node.location


def symbols_of(graph: Graph) -> list[ArtifactSymbol]:
    """Returns where a call of `graph` finds the value of each symbol.

    An `ArtifactSymbol` has the index of the placeholder whose shape contains the symbol, or -1 for a symbol that is an
    integer argument of the program.
    """
    indices = {op.name: i for i, op in enumerate(graph.placeholders)}
    return [ArtifactSymbol(symbol.name, indices.get(symbol.node, -1), symbol.position) for symbol in graph.symbols]
