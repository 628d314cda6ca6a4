"""Partitions a graph into functions, so that a repeated layer is compiled once.

A run of nodes from one item of a module list (`encoder.layer.3`) becomes a function if the same run occurs elsewhere in
the graph; all other nodes stay in the main function. A long main function is split into parts, because the time of
bufferization and LLVM grows faster than a function's length. Two runs share a function if they have the same structure
and the same lowering for each of their nodes; if another lowering is chosen at one call site, that call site gets its
own copy. Nodes that only pass values to an observer do not affect the partition.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import GetItemOp, Op, OutputOp, PlaceholderOp, map_nodes, nodes_in
from buddy.compiler.graph.operations.effects import ObserveOp
from buddy.compiler.graph.serialize import plain
from buddy.compiler.graph.types import NodeType, TensorMeta
from buddy.compiler.protocol.recipe import digest


def split_nodes(nodes: Sequence[Op], uses: Mapping[str, set[str]], length: int) -> list[tuple[Op, ...]]:
    """Splits consecutive `nodes` into parts of `length / 2` to `3 * length / 2` nodes.

    `uses` maps the name of a node to those of its readers. A cut is made where the fewest values are live, and never
    between a node with several results and the nodes that pick one of them.
    """
    live = _live_values(nodes, uses)
    found, start = [], 0
    while len(nodes) - start > length + length // 2:
        window = range(start + length // 2, start + length + length // 2)
        cut = min(window, key=lambda position: (live[position], abs(position - start - length)))
        found.append(tuple(nodes[start:cut]))
        start = cut
    found.append(tuple(nodes[start:]))
    return found


def _live_values(nodes: Sequence[Op], uses: Mapping[str, set[str]]) -> list[float]:
    """Returns for each position the number of values that are live across it; infinite where no cut is possible."""
    positions = {op.name: i for i, op in enumerate(nodes)}
    change = [0.0] * (len(nodes) + 1)
    barred = [False] * (len(nodes) + 1)
    for i, op in enumerate(nodes):
        readers = [positions[name] for name in uses.get(op.name, ()) if name in positions]
        last = max(readers, default=i)
        change[i + 1] += 1
        change[last + 1] -= 1
        if op.multiple or not op.metas or op.metas[0] is None or any(isinstance(nodes[r], GetItemOp) for r in readers):
            barred[i + 1 : last + 1] = [True] * (last - i)
    live, count = list[float](), 0.0
    for i in range(len(nodes)):
        count += change[i]
        live.append(float("inf") if barred[i] else count)
    return live


# Shorter runs are not outlined: a call prevents fusion across it.
MIN_NODES = 8

# Up to this many nodes the main function is not split; a longer one is split into parts of about PART_NODES.
MAX_MAIN_NODES = 256
PART_NODES = 96
PART = "part"

# The shortest path that ends in a number: `encoder.layer.3`, or `3` if the model itself is a list.
_LIST_ITEM = re.compile(r"^(?:[^.]*\.)*?\d+(?=\.|$)")

Value = tuple[Op, int]


@dataclass(frozen=True)
class PartitionFunction:
    """A function to lower. `sites[k]` are the nodes of call site `k`; `nodes` are those of call site 0."""

    name: str
    nodes: tuple[Op, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    sites: tuple[tuple[Op, ...], ...]
    is_parameter: tuple[bool, ...]

    def origins(self, position: int) -> list[str]:
        """Returns the stable names of node number `position`, one per call site."""
        return [site[position].stable for site in self.sites]


@dataclass(frozen=True)
class PartitionCall:
    """A call of `function` with the caller's values `inputs`; its results are the values `outputs`."""

    function: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Op, ...]


@dataclass(frozen=True)
class Partition:
    """Functions to compile, and the main body as nodes and calls in order."""

    functions: tuple[PartitionFunction, ...]
    body: tuple[Op | PartitionCall, ...]

    def function_of(self) -> dict[str, str]:
        """Returns the function's name for each node's name; nodes of the main body are omitted."""
        calls = (item for item in self.body if isinstance(item, PartitionCall))
        return {node.name: call.function for call in calls for node in call.nodes}


@dataclass(frozen=True)
class _Run:
    label: str
    nodes: tuple[Op, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def as_one_function(graph: Graph) -> Partition:
    """Returns a partition with everything in the main function."""
    return Partition((), tuple(graph.operations))


def by_layers(graph: Graph, choices: Mapping[str, str]) -> Partition:
    """Outlines repeated layers; `choices` maps stable node names to lowerings chosen by hand."""
    kinds = {op.name: kind for op, kind in zip(graph.placeholders, graph.kinds, strict=True)}
    computing = [op for op in graph.operations if not isinstance(op, ObserveOp)]
    uses = _uses([*computing, graph.output])
    runs = _in_parts(_only_repeated(_runs(computing, uses), kinds), uses)
    runs = _with_observers(runs, graph) if len(computing) < len(graph.operations) else runs
    keys = [_structure(run, kinds, choices) if run.label else "" for run in runs]
    groups: dict[str, list[_Run]] = {}
    for run, key in zip(runs, keys, strict=True):
        if key:
            groups.setdefault(key, []).append(run)
    functions = _functions(groups, kinds)
    body: list[Op | PartitionCall] = []
    for run, key in zip(runs, keys, strict=True):
        if key:
            body.append(PartitionCall(functions[key].name, run.inputs, run.outputs, run.nodes))
        else:
            body.extend(run.nodes)
    return Partition(tuple(functions.values()), tuple(body))


def _runs(operations: Sequence[Op], uses: Mapping[str, set[str]]) -> list[_Run]:
    """Splits a graph's ops into consecutive runs; a run has a label if it comes from one item of a module list."""
    labels: dict[str, str] = {}
    for op in operations:
        match = _LIST_ITEM.match(op.module)
        # A node that picks an element of a tuple belongs to the tuple's run: only tensors are passed to calls.
        labels[op.name] = (
            labels.get(op.args[0].name, "") if isinstance(op, GetItemOp) else match.group() if match else ""
        )
    runs = []
    for label, found in groupby(operations, key=lambda op: labels[op.name]):
        nodes = tuple(found)
        keep = label if len(nodes) >= MIN_NODES else ""
        runs.append(_Run(keep, nodes, _inputs(nodes), _outputs(nodes, uses)))
    return [run if _passes_only_tensors(run) else _Run("", run.nodes, (), ()) for run in runs]


def _with_observers(runs: Sequence[_Run], graph: Graph) -> list[_Run]:
    """Inserts the graph's observing nodes into the runs, each after the node that it follows in the graph."""
    followers: dict[str, list[Op]] = {}
    last = ""
    for op in graph.operations:
        if isinstance(op, ObserveOp):
            followers.setdefault(last, []).append(op)
        else:
            last = op.name
    uses, found = _uses(graph.body), []
    for run in runs:
        nodes = tuple(op for node in run.nodes for op in (node, *followers.get(node.name, ())))
        found.append(
            _Run(run.label, nodes, _inputs(nodes), _outputs(nodes, uses)) if run.label else _Run("", nodes, (), ())
        )
    return found


def _only_repeated(runs: Sequence[_Run], kinds: Mapping[str, NodeType]) -> list[_Run]:
    """Removes the labels of runs that occur only once in the graph."""
    structures = [_structure(run, kinds, {}) if run.label else "" for run in runs]
    counts = Counter(structures)
    return [
        run if s and counts[s] > 1 else _Run("", run.nodes, (), ()) for run, s in zip(runs, structures, strict=True)
    ]


def _in_parts(runs: Sequence[_Run], uses: Mapping[str, set[str]]) -> list[_Run]:
    """Splits the runs without a label into parts if they have more than `MAX_MAIN_NODES` nodes."""
    if sum(len(run.nodes) for run in runs if not run.label) <= MAX_MAIN_NODES:
        return list(runs)
    found: list[_Run] = []
    for unlabelled, group in groupby(runs, key=lambda run: not run.label):
        if unlabelled:
            nodes = [op for run in group for op in run.nodes]
            parts = split_nodes(nodes, uses, PART_NODES) if len(nodes) > PART_NODES else [tuple(nodes)]
            found.extend(_part(part, uses) for part in parts)
        else:
            found.extend(group)
    return found


def _part(nodes: tuple[Op, ...], uses: Mapping[str, set[str]]) -> _Run:
    run = _Run(f"{PART}.0", nodes, _inputs(nodes), _outputs(nodes, uses))
    return run if len(nodes) >= MIN_NODES and _passes_only_tensors(run) else _Run("", nodes, (), ())


def _passes_only_tensors(run: _Run) -> bool:
    """True if the run needs no call, or its inputs and outputs are tensors."""
    return not run.label or all(
        not op.multiple or isinstance(op, PlaceholderOp) for op, _ in (*run.inputs, *run.outputs)
    )


def _uses(nodes: Sequence[Op]) -> dict[str, set[str]]:
    uses: dict[str, set[str]] = {}
    for op in nodes:
        for parent in op.parents:
            uses.setdefault(parent.name, set()).add(op.name)
    return uses


def _inputs(nodes: Sequence[Op]) -> tuple[Value, ...]:
    inside = {op.name for op in nodes}
    found = (parent for op in nodes for parent in nodes_in((op.args, op.kwargs)))
    return tuple(dict.fromkeys((op, 0) for op in found if op.name not in inside))


def _outputs(nodes: Sequence[Op], uses: Mapping[str, set[str]]) -> tuple[Value, ...]:
    inside = {op.name for op in nodes}
    return tuple((op, 0) for op in nodes if uses.get(op.name, set()) - inside)


def _structure(run: _Run, kinds: Mapping[str, NodeType], choices: Mapping[str, str]) -> str:
    """Returns a hash that two runs share if they lower to the same function."""
    numbers: dict[str, str] = {op.name: f"in{i}" for i, (op, _) in enumerate(run.inputs)}
    numbers |= {op.name: f"n{i}" for i, op in enumerate(run.nodes)}
    ops = [
        (type(op).__name__, op.target, _numbered(op.args, numbers), _numbered(op.kwargs, numbers), _metas(op.metas),
         choices.get(op.stable, ""))
        for op in run.nodes
    ]  # fmt: skip
    inputs = [(_metas(op.metas), kinds.get(op.name) is NodeType.FakeNode) for op, _ in run.inputs]
    return digest(ops, inputs, [numbers[op.name] for op, _ in run.outputs])


def _numbered(value: object, numbers: Mapping[str, str]) -> object:
    """Returns arguments in plain form, with numbers in place of names of nodes."""
    mapped = map_nodes(value, lambda op: numbers[op.name])
    return {key: plain(item) for key, item in mapped.items()} if isinstance(mapped, dict) else plain(mapped)


def _metas(metas: Sequence[TensorMeta | None]) -> list[str]:
    return [str(meta) for meta in metas]


def _functions(groups: Mapping[str, Sequence[_Run]], kinds: Mapping[str, NodeType]) -> dict[str, PartitionFunction]:
    functions: dict[str, PartitionFunction] = {}
    taken: Counter[str] = Counter()
    for key, runs in groups.items():
        first = runs[0]
        base = re.sub(r"\W", "_", first.label.rpartition(".")[0]) or "layer"
        taken[base] += 1
        name = base if taken[base] == 1 else f"{base}_v{taken[base]}"
        parameters = tuple(kinds.get(op.name) is NodeType.FakeNode for op, _ in first.inputs)
        sites = tuple(run.nodes for run in runs)
        functions[key] = PartitionFunction(name, first.nodes, first.inputs, first.outputs, sites, parameters)
    return functions


def main_function(graph: Graph, name: str) -> PartitionFunction:
    """Returns the main function: its inputs are all placeholders, its outputs the graph's tensor results."""
    outputs = tuple((op, 0) for op in graph.results if isinstance(op, Op))
    inputs = tuple((op, 0) for op in graph.placeholders)
    parameters = tuple(kind is NodeType.FakeNode for kind in graph.kinds)
    nodes = tuple(op for op in graph.body if not isinstance(op, (PlaceholderOp, OutputOp)))
    return PartitionFunction(name, nodes, inputs, outputs, (nodes,), parameters)
