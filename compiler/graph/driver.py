"""`GraphDriver`: splits a graph into a main graph and one subgraph per group of ops."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.graph import Graph, graph_lowering
from buddy.compiler.graph.linking import topological_order
from buddy.compiler.graph.node import GetItemOp, Op, OutputOp, PlaceholderOp, map_nodes
from buddy.compiler.graph.partition import Partition, PartitionCall, PartitionFunction
from buddy.compiler.graph.types import DeviceType, GraphError, NodeType

# The name of the only subgraph of a graph without `op_groups`.
_DEFAULT_GROUP = "subgraph0"
# Nodes by the name of their subgraph.
NodesByGroup = dict[str, list[Op]]


@dataclass(frozen=True, eq=False)
class _Unit:
    """A step of the main graph: a call of the group `name` of ops, or a single op outside of all groups (`name` "")."""

    name: str
    ops: list[Op]


class GraphDriver:
    """Splits a graph into the subgraphs that its `op_groups` name, and builds the main graph that calls them.

    Without groups, all ops form one subgraph. Ops outside of all groups stay in the main graph. A `GetItemOp` belongs
    to the group of the op whose result it picks, since calls can only pass tensors; a group left empty by this is
    dropped.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.build_subgraph_by_group()

    @property
    def subgraphs(self) -> list[Graph]:
        return list(self._subgraphs.values())

    def build_subgraph_by_group(self) -> tuple[dict[str, Graph], NodesByGroup, NodesByGroup]:
        """Rebuilds the subgraphs from the current graph. Returns, by name: the subgraphs, their inputs, their outputs.

        A subgraph returns the values that another subgraph, the main graph or the caller reads. Raises `GraphError` for
        a group with the name of the main function, a group with an op that is not in the graph, an op in two groups,
        and groups with cyclic dependencies.
        """
        self._graph.link()
        unit_of = _unit_by_op(self._graph)
        self._order = _topological_order(self._graph, unit_of)
        unit_by_name = {unit.name: unit for unit in self._order if unit.name}
        group_names = self._graph.op_groups or [_DEFAULT_GROUP]
        # A group has no unit if all its ops are `GetItemOp`s that belong to other groups.
        groups = {name: unit_by_name[name] for name in group_names if name in unit_by_name}
        self._subgraphs_inputs = {name: _inputs(unit, unit_of) for name, unit in groups.items()}
        self._subgraphs_outputs = {name: _outputs(unit, unit_of) for name, unit in groups.items()}
        self._subgraphs = {
            name: _subgraph(self._graph, unit, self._subgraphs_inputs[name], self._subgraphs_outputs[name])
            for name, unit in groups.items()
        }
        return self._subgraphs, self._subgraphs_inputs, self._subgraphs_outputs

    def topological_sort_subgraph(self) -> list[str]:
        """Returns the subgraphs' names in topological order."""
        return [unit.name for unit in self._order if unit.name]

    def construct_main_graph(self, do_param_pack: bool = False) -> Any:
        """Returns the main graph as an MLIR module that calls the subgraphs' functions, declared private.

        With `do_param_pack` the parameters are passed as one 1-D tensor per element type, in the order of
        `graph.params`, before the inputs. Raises `CompilationError` for an op that stays in the main graph and cannot
        be lowered.
        """
        return self._lower_main(do_param_pack).module

    def _lower_main(self, pack: bool) -> Any:
        """Lowers the main graph. Returns a `driver.modules.TopLevelModule`: the MLIR module and its arguments."""
        lowering = graph_lowering()
        declarations = tuple(self._declaration(name) for name in self._subgraphs)
        items_of_units = ([self._call(unit)] if unit.name else unit.ops for unit in self._order)
        body = tuple(item for items in items_of_units for item in items)
        top_level = lowering.top_level(self._graph, pack, Partition(declarations, body))
        for name, subgraph in self._subgraphs.items():
            if subgraph.device is not DeviceType.CPU:
                lowering.set_device(top_level.module, name, subgraph.device)
        return top_level

    def _declaration(self, name: str) -> PartitionFunction:
        """Returns the function of subgraph `name` with its signature only: it has no nodes."""
        inputs = self._subgraphs_inputs[name]
        is_parameter = tuple(isinstance(op, PlaceholderOp) and op.kind is NodeType.FakeNode for op in inputs)
        return PartitionFunction(name, (), _values(inputs), _values(self._subgraphs_outputs[name]), ((),), is_parameter)

    def _call(self, unit: _Unit) -> PartitionCall:
        """Returns the call of the subgraph of a group."""
        inputs, outputs = self._subgraphs_inputs[unit.name], self._subgraphs_outputs[unit.name]
        return PartitionCall(unit.name, _values(inputs), _values(outputs), tuple(unit.ops))


def _values(ops: Sequence[Op]) -> tuple[tuple[Op, int], ...]:
    """Returns the first result of each node, as in `partition.Value`."""
    return tuple((op, 0) for op in ops)


def _unit_by_op(graph: Graph) -> dict[Op, _Unit]:
    """Returns the unit of each op. A `GetItemOp` belongs to the unit of the op whose result it picks.

    Raises `GraphError` for invalid groups.
    """
    unit_of: dict[Op, _Unit] = {}
    for name, ops in (graph.op_groups or {_DEFAULT_GROUP: graph.operations}).items():
        unit = _Unit(name, [])
        if name == graph._func_name:
            raise GraphError(f"group {name} has the name of the main function · graph {graph.name} · rename the group")
        for op in ops:
            if graph.node_table.get(op.name) is not op:
                raise GraphError(f"{op.name} is not in the graph · group {name} · remove it from the group")
            if unit_of.setdefault(op, unit) is not unit:
                groups = f"{unit_of[op].name} and {name}"
                raise GraphError(f"{op.name} is in two groups, {groups} · graph {graph.name} · remove it from one")
    for op in graph.operations:
        source = op.args[0] if isinstance(op, GetItemOp) else op
        unit_of[op] = unit_of.get(source) or _Unit("", [])
        unit_of[op].ops.append(op)
    # A group may also have the output, which is not an op and has no unit.
    return {op: unit_of[op] for op in graph.operations}


def _inputs(unit: _Unit, unit_of: Mapping[Op, _Unit]) -> list[Op]:
    """Returns the values that the unit reads from outside, in order of first use."""
    return list(dict.fromkeys(parent for op in unit.ops for parent in op.parents if unit_of.get(parent) is not unit))


def _outputs(unit: _Unit, unit_of: Mapping[Op, _Unit]) -> list[Op]:
    """Returns the values of the unit that are read outside of it, also by the graph's output."""
    return [op for op in unit.ops if any(unit_of.get(child) is not unit for child in op._children)]


def _topological_order(graph: Graph, unit_of: Mapping[Op, _Unit]) -> list[_Unit]:
    """Returns the units of the main graph in topological order; independent units keep the graph's order."""

    def dependencies(unit: _Unit) -> list[_Unit]:
        units = (unit_of[parent] for parent in _inputs(unit, unit_of) if parent in unit_of)
        return list(dict.fromkeys(units))

    def cycle_error(units: list[_Unit]) -> GraphError:
        names = ", ".join(unit.name or unit.ops[0].name for unit in units)
        return GraphError(f"cyclic dependency: {names} · the groups of {graph.name} · group the ops differently")

    return topological_order(dict.fromkeys(unit_of[op] for op in graph.operations), dependencies, cycle_error)


def _subgraph(graph: Graph, unit: _Unit, inputs: Sequence[Op], outputs: Sequence[Op]) -> Graph:
    """Returns the unit as a separate graph of copied nodes."""
    subgraph = Graph(unit.name, unit.name, graph.group_map_device.get(unit.name, DeviceType.CPU))
    subgraph.settings, subgraph._context, subgraph._location_sets = graph.settings, graph._ctx, graph._locations
    copies: dict[Op, Op] = {}
    for op in inputs:
        copies[op] = _placeholder(op)
        subgraph.add_node(copies[op])
    for op in unit.ops:
        copies[op] = _copy(op, copies)
        subgraph.add_node(copies[op])
    output = OutputOp("output")
    output.stable = "output"
    output._arguments = [tuple(copies[op] for op in outputs)]
    subgraph.add_node(output)
    return subgraph


def _placeholder(op: Op) -> PlaceholderOp:
    """Returns a placeholder for the first result of `op`, of the same kind if `op` is one."""
    new = PlaceholderOp(op.name, op.kind if isinstance(op, PlaceholderOp) else NodeType.InputNode)
    new.stable, new.module, new.location, new.target = op.stable, op.module, op.location, op.target
    new.metas = op.metas[:1]
    return new


def _copy(op: Op, copies: Mapping[Op, Op]) -> Op:
    """Returns a copy of `op` that reads the copies of its parents, and has no children yet."""
    node = copy.copy(op)
    node._arguments = map_nodes(op._arguments, copies.__getitem__)
    node._keyword_arguments = map_nodes(op._keyword_arguments, copies.__getitem__)
    node._children, node._declared_parents, node._may_be_child, node._meta_view = [], [], False, None
    return node
