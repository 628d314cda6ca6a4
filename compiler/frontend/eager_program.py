"""Runs a captured graph in eager PyTorch, and records values from inside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.fx._pytree

from buddy.compiler.frontend.aten import AtenGraph, description_index
from buddy.compiler.frontend.random_numbers import draws_seeds, restores_states
from buddy.compiler.graph import serialization
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.types import GraphError
from buddy.compiler.runtime.captured import Eager

if TYPE_CHECKING:
    from torch._functorch._aot_autograd.descriptors import AOTOutput


def eager_program(aten: AtenGraph, arguments: Sequence[torch.Tensor] = (), n_constants: int = 0) -> Eager:
    """Returns the eager computation of `aten`: the torch calls of the Dynamo graph, if it has the same results.

    Training graphs, and those whose inputs or outputs AOTAutograd has rearranged, run their ATen ops instead.
    `arguments` are those of one call: the program stores the numbers among them, and takes only tensors. The last
    `n_constants` of these tensors are constants that the graph holds.
    """
    mapping = None if draws_seeds(aten.module) else _output_mapping(aten)
    program = _AtenProgram(aten.module, n_constants) if mapping is None else _DynamoProgram(aten, mapping)
    # Each argument as (number, False), or (None, True) for a tensor, which must not be kept alive.
    slots = [(None, True) if isinstance(value, torch.Tensor) else (value, False) for value in arguments]
    if all(is_tensor for _, is_tensor in slots):
        return program

    def run_with_numbers(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        remaining = iter(tensors)
        return program([*(next(remaining) if is_tensor else value for value, is_tensor in slots), *remaining])

    return run_with_numbers


def unseeded_program(aten: AtenGraph, arguments: Sequence[torch.Tensor], n_constants: int = 0) -> Eager | None:
    """Like `eager_program`, with PyTorch's random ops in place of bits from a seed; None for a graph without a seed.

    The program ignores the seed among its tensors. Also None for a graph that recomputes the random numbers of another
    graph: PyTorch's ops would need the generator's state, and the graph only gets a seed.
    """
    if aten.unseeded is None or restores_states(aten.unseeded):
        return None
    unseeded = replace(
        aten, module=aten.unseeded, origins=aten.origins[:-1], input_of=aten.input_of[:-1], unseeded=None
    )
    program = eager_program(unseeded, arguments[:-1], n_constants)
    seed_position = sum(isinstance(value, torch.Tensor) for value in arguments[:-1])
    return lambda tensors: program([*tensors[:seed_position], *tensors[seed_position + 1 :]])


class _AtenProgram:
    """Runs the ATen graph, op by op; the last `n_constants` tensors of a call are constants that the graph holds."""

    def __init__(self, module: torch.fx.GraphModule, n_constants: int) -> None:
        self._module = module
        self._n_constants = n_constants

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        return list(self._module(*tensors[: len(tensors) - self._n_constants]))


class _DynamoProgram:
    """Runs the Dynamo graph on clones of the inputs that it mutates, and returns the results of the ATen graph.

    `mapping` is the result of `_output_mapping`: where each result of the ATen graph is in the Dynamo graph.
    """

    def __init__(self, aten: AtenGraph, mapping: list[tuple[str, int]]) -> None:
        self._module = aten.dynamo
        self._order = [aten.input_of.index(index) for index in range(len(aten.input_of))]
        self._mapping = mapping
        self._mutated = {index for kind, index in mapping if kind == "input"}
        self._autocast = aten.autocast

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        inputs = [tensors[position] for position in self._order]
        for index in self._mutated:
            inputs[index] = inputs[index].clone()
        with torch.autocast("cpu", self._autocast, enabled=self._autocast is not None):
            outputs = self._module(*inputs)
        sources = {"output": outputs, "input": inputs}
        return [sources[kind][index] for kind, index in self._mapping]


class EagerCode(msgspec.Struct, frozen=True):
    """The Python code of a Dynamo graph, as the source of a function `forward(self, ...)` of its inputs.

    `order[i]` is the position of the function's input `i` among the tensors of the ATen graph. Result `i` of the ATen
    graph is output number `outputs[i]` of the function.
    """

    source: str
    order: tuple[int, ...]
    outputs: tuple[int, ...]


# The global names in the code of a graph that calls only functions of `torch`, with their values.
_NAMES = {
    "inf": math.inf,
    "nan": math.nan,
    "NoneType": type(None),
    "torch": torch,
    "device": torch.device,
    "fx_pytree": torch.fx._pytree,
    "pytree": torch.utils._pytree,
}
# The opcodes of nodes whose code uses only these names; others read modules or constants of the graph.
_OPCODES = {"placeholder", "call_function", "call_method", "output"}


def eager_code_of(program: Eager | None) -> EagerCode | None:
    """Returns the code of a program of `eager_program`.

    Returns `None` if the program does not run a Dynamo graph, or if that graph has modules or constants, calls
    functions outside of torch, writes to its inputs, or runs in an autocast context.
    """
    if not isinstance(program, _DynamoProgram) or program._mutated or program._autocast is not None:
        return None
    graph = program._module.graph
    code = graph.python_code("self")
    is_plain = {node.op for node in graph.nodes} <= _OPCODES and all(
        value is _NAMES.get(name) or (name == "nan" and value != value) for name, value in code.globals.items()
    )
    outputs = tuple(index for _, index in program._mapping)
    return EagerCode(code.src, tuple(program._order), outputs) if is_plain else None


def program_from_code(code: EagerCode) -> Eager:
    """Returns a program that runs the code of `eager_code_of`."""
    names: dict[str, Any] = dict(_NAMES)
    exec(code.source, names)
    module = type("Graph", (torch.nn.Module,), {"forward": names["forward"]})()

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        results = module(*(tensors[position] for position in code.order))
        return [results[index] for index in code.outputs]

    return run


def _output_mapping(aten: AtenGraph) -> list[tuple[str, int]] | None:
    """Returns which output or mutated input of the Dynamo graph each ATen result is; None if a result is neither.

    ("output", i) is output number i of the Dynamo graph, ("input", i) is its input number i.
    """
    if aten.kind != "inference" or set(aten.input_of) != set(range(_count_inputs(aten.dynamo))):
        return None
    output = next(iter(reversed(aten.module.graph.nodes)))
    sources = [_output_source(description) for description in output.meta.get("desc") or [None]]
    return None if None in sources else [source for source in sources if source is not None]


def _output_source(description: AOTOutput) -> tuple[str, int] | None:
    """Returns the entry of `_output_mapping` for a result, from AOTAutograd's description of it, or None."""
    index = description_index(description, "PlainAOTOutput")
    if index is not None:
        return ("output", index)
    index = description_index(getattr(description, "mutated_input", None), "PlainAOTInput")
    return None if index is None else ("input", index)


def _count_inputs(module: torch.fx.GraphModule) -> int:
    return sum(node.op == "placeholder" for node in module.graph.nodes)


# The keys of a traced node in a mapping or a TOML table.
_ENTRY_KEYS = {"node", "id", "tag"}


class Trace:
    """Names of nodes whose values are recorded, each with its tag. `values` are those of the last call, by tag.

    `of` accepts None; a mapping from node name to a tag, an id or `{"id": 1, "tag": "conv1"}`; an object with such a
    mapping as `trace_config`; or the path of a TOML file with a `[[trace]]` table for each node (`node`, and `id` or
    `tag`).
    """

    def __init__(self, tags: Mapping[str, str]) -> None:
        self.tags = dict(tags)
        self.values: dict[str, torch.Tensor] = {}

    @classmethod
    def of(cls, value: object) -> Trace:
        """Constructs a trace; see the class. Raises `ValueError` for any other type, and for two nodes with one tag."""
        if isinstance(value, (str, Path)):
            value = _read_tags(Path(value))
        mapping = getattr(value, "trace_config", {} if value is None else value)
        if not isinstance(mapping, Mapping):
            raise ValueError(f"trace is {value!r}; give a mapping from node names to tags, or the path of a TOML file")
        tags = {name: _tag(name, entry) for name, entry in mapping.items()}
        duplicates = [tag for tag in tags.values() if list(tags.values()).count(tag) > 1]
        if duplicates:
            raise ValueError(f"trace has two nodes under the tag {duplicates[0]!r}; give each a different tag")
        return cls(tags)

    def add_to(self, graph: Graph) -> Graph:
        """Returns a copy of `graph` that also returns the traced nodes, after its own results.

        Raises `GraphError` for an unknown name, and for a node that is not a single tensor.
        """
        if not self.tags:
            return graph
        traced = serialization.from_bytes(serialization.to_bytes(graph))
        nodes = []
        for name in self.tags:
            if name not in traced.node_table:
                hint = ", ".join(get_close_matches(name, traced.node_table)) or "print the graph to list its nodes"
                raise GraphError(f"unknown node {name} in trace · graph {graph.name} · {hint}")
            node = traced.node_table[name]
            if node.multiple or not node.metas or node.metas[0] is None:
                raise GraphError(
                    f"{name} is not a single tensor · graph {graph.name} · trace the getitem that picks one"
                )
            nodes.append(node)
        traced.output._arguments = [(*traced.results, *nodes)]
        traced.link()
        return traced

    def split_results(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the graph's own results, and stores those of the traced nodes in `values`."""
        n_results = len(results) - len(self.tags)
        self.values = dict(zip(self.tags.values(), results[n_results:], strict=True))
        return list(results[:n_results])


def _tag(name: str, entry: object) -> str:
    """Returns the tag of the node `name`, from its tag, id or table. Raises `ValueError` for another `entry`."""
    if isinstance(entry, Mapping) and {*entry} <= _ENTRY_KEYS:
        entry = entry.get("tag", entry.get("id"))
    if not isinstance(entry, (str, int)):
        raise ValueError(f"trace of {name!r} is {entry!r}; give a tag, an id, or both as {{'id': 1, 'tag': 'name'}}")
    return str(entry)


def _read_tags(path: Path) -> dict[str, object]:
    """Returns the entries of a TOML file, by node.

    Raises `ValueError` for a file that cannot be read, is not TOML, or has no `[[trace]]`.
    """
    try:
        entries = msgspec.toml.decode(path.read_bytes()).get("trace")
    except (OSError, msgspec.MsgspecError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(entries, list) or not all("node" in entry for entry in entries):
        raise ValueError(f"{path} has no [[trace]] tables with a `node` each")
    return {entry["node"]: entry for entry in entries}
