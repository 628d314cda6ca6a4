"""Compiles a program with a fault planted in its captured graph, beside the eager program, which is right."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from buddy.compiler.driver.compilation import Compiler
from buddy.compiler.frontend.aten import AtenGraph, Runner, default_decompositions, target_key
from buddy.compiler.frontend.capture import GraphRecorder, capture
from buddy.compiler.frontend.convert import to_buddy
from buddy.compiler.graph.graph import Graph
from buddy.compiler.protocol import RunReport
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.run_report import NodeCounts
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.graph_interpreter import LockstepInterpreter, symbol_values
from buddy.compiler.runtime.measure import run_and_compare
from buddy.compiler.runtime.sensitivity import (
    MAX_FURTHER_RUNS,
    Spread,
    further_spreads,
    measure_difference,
    measure_spreads,
)

# What is computed in the place of a call: `change(call, *arguments, **keywords)`, where `call` is the op.
Change = Callable[..., Any]
ALL = None
OnValues = Callable[[Sequence[Any], Sequence[Any]], None]


@dataclass(frozen=True)
class Planted:
    """`change` in the place of a call of the ATen op `target` (`add.Tensor`): number `which`, or `ALL`.

    Numbers below 0 count from the last call.
    """

    name: str
    kind: str
    target: str
    change: Change
    which: int | None = -1


@dataclass
class Keeping(GraphRecorder):
    """Records graphs, and keeps the ATen graphs that they are made of."""

    aten: list[AtenGraph] = field(default_factory=list)

    def _record_at_call(self, aten: AtenGraph) -> Runner:
        self.aten.append(aten)
        return super()._record_at_call(aten)


@dataclass(frozen=True)
class Subject:
    """A captured graph with its eager program, and the ATen graph that faults are planted in."""

    captured: CapturedGraph
    aten: AtenGraph

    def run(self, fault: Planted | None = None, on_values: OnValues | None = None) -> RunReport:
        """What `buddy-tui run` says of the graph with `fault` in it, compiled by the default recipe.

        Raises `LookupError` where the graph has no place for the fault.
        """
        artifact = Compiler(self.graph(fault)).compile(default_recipe()).artifact
        return run_and_compare(
            self.captured,
            artifact,
            repeats=0,
            threads=1,
            nodes=NodeCounts(0, 0),
            compile_seconds=0.0,
            on_values=on_values,
        )

    def effects(self, fault: Planted) -> list[tuple[float, float]]:
        """What the fault moves each float result by, as multiples of the spread: at most, and by root mean square.

        Both are measured in double precision, of a program that has run.
        """
        graph, tensors = self.graph(fault), self.captured.tensors
        with torch.no_grad():
            own = measure_spreads(self.captured, self.captured.eager(tensors) if self.captured.eager else [])
            wrong = LockstepInterpreter(
                graph, tensors, symbol_values(graph, tensors, self.captured.numbers), (), "float64"
            ).finish()
        found = []
        further = [further_spreads(self.captured, seed) for seed in range(MAX_FURTHER_RUNS)]
        for one, other, pair in zip(wrong, self.captured.exact_results, zip(own, *further, strict=True), strict=True):
            moved, spread = measure_difference(one, other), reduce(Spread.maximum_with, pair)
            found += [(moved.largest / spread.largest, moved.rms / spread.rms)] if spread.rms else []
        return found

    def graph(self, fault: Planted | None = None) -> Graph:
        """The graph to compile."""
        if fault is None:
            return self.captured.graph
        return to_buddy(replace(self.aten, module=planted(self.aten.module, fault))).graph


def subjects_of(program: Callable[[], Any]) -> list[Subject]:
    """The graphs that a program goes through without gradients."""
    recorder = Keeping()
    with torch.no_grad():
        graphs = capture(program, recorder=recorder)
    return [Subject(captured, aten) for captured, aten in zip(graphs, recorder.aten, strict=True)]


def planted(module: GraphModule, fault: Planted) -> GraphModule:
    """A copy of an ATen graph with what `fault` computes in the place of its calls, and all else as it was."""
    copied = GraphModule(module, copy.deepcopy(module.graph))
    nodes = [node for node in copied.graph.nodes if node.op == "call_function"]
    calls = [node for node in nodes if target_key(node.target) == fault.target]
    if fault.which is not ALL and not -len(calls) <= fault.which < len(calls):
        raise LookupError(f"{fault.name}: the graph has {len(calls)} calls of {fault.target}")
    for node in calls if fault.which is ALL else [calls[fault.which]]:
        _replace(node, fault.change)
    copied.graph.eliminate_dead_code()
    copied.recompile()
    return copied


def _replace(node: Node, change: Change) -> None:
    read = node.all_input_nodes
    changed = _traced(node, read, change)
    with node.graph.inserting_before(node):
        inputs = [each for each in changed.graph.nodes if each.op == "placeholder"]
        result = node.graph.graph_copy(changed.graph, dict(zip(inputs, read, strict=True)))
    _put_in_place(node, result)


def _traced(node: Node, read: Sequence[Node], change: Change) -> GraphModule:
    """`change` as an ATen graph, whose inputs are what `node` reads."""
    fakes = [each.meta["val"] for each in read]

    def run(*tensors: Any) -> Any:
        values = dict(zip(read, tensors, strict=True))
        arguments = map_arg(node.args, values.__getitem__)
        return change(node.target, *arguments, **map_arg(node.kwargs, values.__getitem__))

    mode = detect_fake_mode(fakes)
    assert mode is not None
    with mode, torch.no_grad():
        return make_fx(run, decomposition_table=default_decompositions())(*fakes)


def _put_in_place(node: Node, result: Any) -> None:
    """Replaces the uses of `node` by `result`, a node or one for each of several results."""
    if isinstance(result, Node):
        node.replace_all_uses_with(result)
        return
    for user in list(node.users):
        user.replace_all_uses_with(result[user.args[1]])
        user.graph.erase_node(user)
