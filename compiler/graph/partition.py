"""Partitions a graph into functions, so that a repeated layer is compiled once.

A run of nodes from one item of a module list (`encoder.layer.3`) becomes a function if the same run occurs elsewhere in
the graph; all other nodes stay in the main function. A long main function is split into parts, because compile time in
bufferization and LLVM grows faster than linearly with the function's length. Two runs share a function if they have the
same structure and the same lowering for each node; a call site with another lowering gets a separate copy. Nodes that
only pass values to an observer do not affect the partition.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import GetItemOp, Op, OutputOp, PlaceholderOp, map_nodes, nodes_in
from buddy.compiler.graph.operations.effects import ObserveOp
from buddy.compiler.graph.serialization import to_plain
from buddy.compiler.graph.types import NodeType, TensorMeta
from buddy.compiler.protocol.recipe import digest


def split_nodes(nodes: Sequence[Op], readers: Mapping[str, set[str]], part_length: int) -> list[tuple[Op, ...]]:
    """Splits consecutive `nodes` into parts of about `part_length` nodes.

    A part has at most `3 * part_length / 2` nodes, unless all cuts there are impossible: a value that is not a single
    tensor is not passed from one part to another. `readers` maps a node's name to the names of its readers. A cut is
    made where the fewest values are live, and among such places where these have the fewest bytes: before a quantised
    tensor is converted to floats, for instance, so that the next part converts it in the loops of its own ops.
    """
    live = _live_values(nodes, readers)
    parts: list[tuple[Op, ...]] = []
    start = 0
    while len(nodes) - start > part_length + part_length // 2:
        window = range(start + part_length // 2, start + part_length + part_length // 2)
        cut = min(window, key=lambda position: (live[position], abs(position - start - part_length)))
        if math.isinf(live[cut][0]):
            possible = (position for position in range(window.stop, len(nodes)) if math.isfinite(live[position][0]))
            cut = next(possible, len(nodes))
            if cut == len(nodes):
                break
        parts.append(tuple(nodes[start:cut]))
        start = cut
    parts.append(tuple(nodes[start:]))
    return parts


def _live_values(nodes: Sequence[Op], readers: Mapping[str, set[str]]) -> list[tuple[float, int]]:
    """Returns, for each node, the number of values that are live before it, and their bytes.

    A value is live from the node of `nodes` that computes it to the last node of `nodes` that reads it. The number is
    infinite if no cut is possible before the node. A size that is symbolic counts as 1.
    """
    positions = {op.name: i for i, op in enumerate(nodes)}
    # At each position, the change of both numbers compared with the position before.
    count_change, bytes_change = [0] * (len(nodes) + 1), [0] * (len(nodes) + 1)
    is_cut_forbidden = [False] * (len(nodes) + 1)
    for i, op in enumerate(nodes):
        reader_positions = [positions[name] for name in readers.get(op.name, ()) if name in positions]
        last = max(reader_positions, default=i)
        size = _result_bytes(op)
        count_change[i + 1] += 1
        bytes_change[i + 1] += size
        count_change[last + 1] -= 1
        bytes_change[last + 1] -= size
        has_one_tensor = not op.multiple and bool(op.metas) and op.metas[0] is not None
        if not has_one_tensor or any(isinstance(nodes[r], GetItemOp) for r in reader_positions):
            is_cut_forbidden[i + 1 : last + 1] = [True] * (last - i)
    live = zip(is_cut_forbidden, accumulate(count_change), accumulate(bytes_change), strict=True)
    return [(math.inf if is_forbidden else count, size) for is_forbidden, count, size in live][: len(nodes)]


def _result_bytes(op: Op) -> int:
    """Returns the bytes of the results of `op`; a symbolic size counts as 1."""
    metas = [meta for meta in op.metas if meta is not None]
    return sum(
        meta.dtype.bytes * math.prod(size if isinstance(size, int) else 1 for size in meta.shape) for meta in metas
    )


# Shorter runs are not outlined, because a call prevents fusion across it.
MIN_NODES = 8

# Up to this many nodes the main function is not split; a longer one is split into parts of about PART_NODES. Shorter
# parts compile faster, but more values go through memory from one part to the next.
MAX_MAIN_NODES = 256
PART_NODES = 96
# The name of the functions of parts. A part's label has the form of a list item's, `part.0`.
PART = "part"

# The shortest module path that ends in a number: `encoder.layer.3`, or `3` if the model itself is a list.
_LIST_ITEM = re.compile(r"^(?:[^.]*\.)*?\d+(?=\.|$)")

# A node and the index of its result, which is always 0: only single tensors are passed to functions.
Value = tuple[Op, int]


@dataclass(frozen=True)
class PartitionFunction:
    """A function to lower. `sites[k]` are the nodes of call site `k`, and `nodes` those of call site 0.

    `is_parameter` has a flag for each input: true if it is a parameter of the model.
    """

    name: str
    nodes: tuple[Op, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    sites: tuple[tuple[Op, ...], ...]
    is_parameter: tuple[bool, ...]

    def origins(self, position: int) -> list[str]:
        """Returns the stable names of the node at `position`, one per call site."""
        return [site[position].stable for site in self.sites]


@dataclass(frozen=True)
class PartitionCall:
    """A call of `function` with the caller's values `inputs`; its results are the values `outputs` of `nodes`."""

    function: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Op, ...]


@dataclass(frozen=True)
class Partition:
    """The functions to compile, and the body of the main function: nodes and calls in order."""

    functions: tuple[PartitionFunction, ...]
    body: tuple[Op | PartitionCall, ...]

    def function_of(self) -> dict[str, str]:
        """Returns the name of the function that each node was moved to, by node name; omits nodes of the main body."""
        calls = (item for item in self.body if isinstance(item, PartitionCall))
        return {node.name: call.function for call in calls for node in call.nodes}


@dataclass(frozen=True)
class _Run:
    """Consecutive nodes, with the values that they read from outside and those that other nodes read.

    Only a run with a label becomes a function, named after the label. The others stay in the main function, so their
    `inputs` and `outputs` may be empty.
    """

    label: str
    nodes: tuple[Op, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def as_one_function(graph: Graph) -> Partition:
    """Returns a partition with all nodes in the main function."""
    return Partition((), tuple(graph.operations))


def outline_layers(graph: Graph, choices: Mapping[str, str]) -> Partition:
    """Outlines repeated layers. `choices` maps stable node names to the lowerings that the recipe selects for them."""
    kinds = {op.name: kind for op, kind in zip(graph.placeholders, graph.kinds, strict=True)}
    ops = [op for op in graph.operations if not isinstance(op, ObserveOp)]
    readers = _reader_names([*ops, graph.output])
    ops, reader_of = _move_constants_to_readers(ops, readers, kinds)
    runs = _unlabel_unique(_runs(ops, readers, reader_of), kinds)
    runs = _split_long_runs(runs, readers)
    if len(ops) < len(graph.operations):
        runs = _add_observers(runs, graph)
    keys = [_structure_hash(run, kinds, choices) if run.label else "" for run in runs]
    groups: dict[str, list[_Run]] = {}
    for run, key in zip(runs, keys, strict=True):
        if key:
            groups.setdefault(key, []).append(run)
    functions = _make_functions(groups, kinds, graph._func_name)
    body: list[Op | PartitionCall] = []
    for run, key in zip(runs, keys, strict=True):
        if key:
            body.append(PartitionCall(functions[key].name, run.inputs, run.outputs, run.nodes))
        else:
            body.extend(run.nodes)
    return Partition(tuple(functions.values()), tuple(body))


def _move_constants_to_readers(
    ops: Sequence[Op], readers: Mapping[str, set[str]], kinds: Mapping[str, NodeType]
) -> tuple[list[Op], dict[str, Op]]:
    """Returns `ops`; each op that depends only on parameters, and has one reader, is directly before that reader.

    A weight that is transposed or converted first is then a parameter of the function that multiplies it, and is packed
    before the calls. Otherwise the first function would compute all of these ops and pass their results to the other
    functions, which would pack them in each call. The second result has the reader of each moved op, by name.
    """
    by_name = {op.name: op for op in ops}
    constant = {name for name, kind in kinds.items() if kind is NodeType.FakeNode}
    reader_of: dict[str, Op] = {}
    for op in ops:
        movable = not (op.multiple or op.has_effect or op.only_eager)
        if not movable or not op.parents or any(parent.name not in constant for parent in op.parents):
            continue
        constant.add(op.name)
        names = readers.get(op.name, set())
        if len(names) == 1 and (reader := by_name.get(next(iter(names)))) is not None:
            reader_of[op.name] = reader
    moved_sources: dict[str, list[Op]] = {}
    for op in ops:
        if op.name in reader_of:
            moved_sources.setdefault(reader_of[op.name].name, []).append(op)
    ordered: list[Op] = []
    for op in ops:
        if op.name in reader_of:
            continue
        # The walk visits each reader before the moved ops that it reads, so the graph's order is the reverse.
        pending, reversed_order = [op], list[Op]()
        while pending:
            reversed_order.append(pending.pop())
            pending.extend(moved_sources.get(reversed_order[-1].name, ()))
        ordered.extend(reversed(reversed_order))
    return ordered, reader_of


def _runs(operations: Sequence[Op], readers: Mapping[str, set[str]], reader_of: Mapping[str, Op]) -> list[_Run]:
    """Splits a graph's ops into consecutive runs; a run has a label if it comes from one item of a module list.

    An op in `reader_of` belongs to the run of its reader.
    """
    labels: dict[str, str] = {}
    for op in operations:
        if isinstance(op, GetItemOp):
            # A node that picks an element of a tuple belongs to the tuple's run: only tensors are passed to calls.
            labels[op.name] = labels.get(op.args[0].name, "")
        else:
            match = _LIST_ITEM.match(op.module)
            labels[op.name] = match.group() if match else ""
    for op in reversed(operations):
        if op.name in reader_of:
            labels[op.name] = labels[reader_of[op.name].name]
    runs = []
    for label, ops in groupby(operations, key=lambda op: labels[op.name]):
        nodes = tuple(ops)
        label_if_long = label if len(nodes) >= MIN_NODES else ""
        runs.append(_Run(label_if_long, nodes, _inputs(nodes), _outputs(nodes, readers)))
    return [run if _passes_only_tensors(run) else _Run("", run.nodes, (), ()) for run in runs]


def _add_observers(runs: Sequence[_Run], graph: Graph) -> list[_Run]:
    """Returns the runs with the graph's `ObserveOp`s, each after the node that it follows in the graph."""
    observers: dict[str, list[Op]] = {}
    predecessor = ""
    for op in graph.operations:
        if isinstance(op, ObserveOp):
            observers.setdefault(predecessor, []).append(op)
        else:
            predecessor = op.name
    readers = _reader_names(graph.body)
    with_observers = []
    for run in runs:
        nodes = tuple(op for node in run.nodes for op in (node, *observers.get(node.name, ())))
        inputs, outputs = (_inputs(nodes), _outputs(nodes, readers)) if run.label else ((), ())
        with_observers.append(_Run(run.label, nodes, inputs, outputs))
    return with_observers


def _unlabel_unique(runs: Sequence[_Run], kinds: Mapping[str, NodeType]) -> list[_Run]:
    """Removes the labels of runs that occur only once in the graph."""
    structures = [_structure_hash(run, kinds, {}) if run.label else "" for run in runs]
    counts = Counter(structures)
    return [
        run if structure and counts[structure] > 1 else _Run("", run.nodes, (), ())
        for run, structure in zip(runs, structures, strict=True)
    ]


def _split_long_runs(runs: Sequence[_Run], readers: Mapping[str, set[str]]) -> list[_Run]:
    """Joins adjacent runs without a label, and splits them into parts that become functions.

    Returns the runs unchanged if the runs without a label have at most `MAX_MAIN_NODES` nodes in total.
    """
    if sum(len(run.nodes) for run in runs if not run.label) <= MAX_MAIN_NODES:
        return list(runs)
    result: list[_Run] = []
    for is_unlabelled, group in groupby(runs, key=lambda run: not run.label):
        if is_unlabelled:
            nodes = [op for run in group for op in run.nodes]
            parts = split_nodes(nodes, readers, PART_NODES) if len(nodes) > PART_NODES else [tuple(nodes)]
            result.extend(_make_part(part, readers) for part in parts)
        else:
            result.extend(group)
    return result


def _make_part(nodes: tuple[Op, ...], readers: Mapping[str, set[str]]) -> _Run:
    """Returns a run of `nodes`, without a label if it is too short or passes values that are not tensors."""
    run = _Run(f"{PART}.0", nodes, _inputs(nodes), _outputs(nodes, readers))
    return run if len(nodes) >= MIN_NODES and _passes_only_tensors(run) else _Run("", nodes, (), ())


def _passes_only_tensors(run: _Run) -> bool:
    """True if a call of the run would pass only tensors; also for a run without a label, which is not called."""
    return not run.label or all(
        not op.multiple or isinstance(op, PlaceholderOp) for op, _ in (*run.inputs, *run.outputs)
    )


def _reader_names(nodes: Sequence[Op]) -> dict[str, set[str]]:
    """Returns the names of each node's readers among `nodes`, by the node's name."""
    readers: dict[str, set[str]] = {}
    for op in nodes:
        for parent in op.parents:
            readers.setdefault(parent.name, set()).add(op.name)
    return readers


def _inputs(nodes: Sequence[Op]) -> tuple[Value, ...]:
    """Returns the values that `nodes` read from outside, in order of first use."""
    inside = {op.name for op in nodes}
    read = (parent for op in nodes for parent in nodes_in((op.args, op.kwargs)))
    return tuple(dict.fromkeys((op, 0) for op in read if op.name not in inside))


def _outputs(nodes: Sequence[Op], readers: Mapping[str, set[str]]) -> tuple[Value, ...]:
    """Returns the values of `nodes` that other nodes read."""
    inside = {op.name for op in nodes}
    return tuple((op, 0) for op in nodes if readers.get(op.name, set()) - inside)


def _structure_hash(run: _Run, kinds: Mapping[str, NodeType], choices: Mapping[str, str]) -> str:
    """Returns a hash that is equal for two runs if they lower to the same function."""
    canonical: dict[str, str] = {op.name: f"in{i}" for i, (op, _) in enumerate(run.inputs)}
    canonical |= {op.name: f"n{i}" for i, op in enumerate(run.nodes)}
    ops = [
        (type(op).__name__, op.target, _canonical_arguments(op.args, canonical),
         _canonical_arguments(op.kwargs, canonical), _meta_texts(op.metas), choices.get(op.stable, ""))
        for op in run.nodes
    ]  # fmt: skip
    inputs = [(_meta_texts(op.metas), kinds.get(op.name) is NodeType.FakeNode) for op, _ in run.inputs]
    return digest(ops, inputs, [canonical[op.name] for op, _ in run.outputs])


def _canonical_arguments(value: object, canonical: Mapping[str, str]) -> object:
    """Returns arguments in plain form, with the names of nodes replaced by those in `canonical`."""
    mapped = map_nodes(value, lambda op: canonical[op.name])
    return {key: to_plain(item) for key, item in mapped.items()} if isinstance(mapped, dict) else to_plain(mapped)


def _meta_texts(metas: Sequence[TensorMeta | None]) -> list[str]:
    return [str(meta) for meta in metas]


def _make_functions(
    groups: Mapping[str, Sequence[_Run]], kinds: Mapping[str, NodeType], main_name: str
) -> dict[str, PartitionFunction]:
    """Returns a function for each group of equal runs, by the group's key.

    The names of the functions differ from each other and from `main_name`.
    """
    functions: dict[str, PartitionFunction] = {}
    names = {main_name}
    for key, runs in groups.items():
        sample = runs[0]
        # `encoder.layer.3` becomes `encoder_layer`, then `encoder_layer_v2` and so on.
        base = re.sub(r"\W", "_", sample.label.rpartition(".")[0]) or "layer"
        candidates = (base, *(f"{base}_v{n}" for n in range(2, len(names) + 3)))
        name = next(name for name in candidates if name not in names)
        names.add(name)
        is_parameter = tuple(kinds.get(op.name) is NodeType.FakeNode for op, _ in sample.inputs)
        sites = tuple(run.nodes for run in runs)
        functions[key] = PartitionFunction(name, sample.nodes, sample.inputs, sample.outputs, sites, is_parameter)
    return functions


def main_function(graph: Graph, name: str) -> PartitionFunction:
    """Returns the graph as one function: its inputs are all placeholders, its outputs the graph's tensor results."""
    outputs = tuple((op, 0) for op in graph.results if isinstance(op, Op))
    inputs = tuple((op, 0) for op in graph.placeholders)
    is_parameter = tuple(kind is NodeType.FakeNode for kind in graph.kinds)
    nodes = tuple(op for op in graph.body if not isinstance(op, (PlaceholderOp, OutputOp)))
    return PartitionFunction(name, nodes, inputs, outputs, (nodes,), is_parameter)
