"""Finds the first node whose value differs in another runtime, by returning intermediate values of the model.

A value that a model returns has to be computed, so marking it breaks the fusion across it, and may hide the fault. The
search therefore marks a few nodes at a time. If the results become right by a mark, the fusion across that node is at
fault, which is reported as such.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import torch

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import Op, OutputOp
from buddy.compiler.protocol.run_report import Divergence, OutputReport
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.compare import compare
from buddy.compiler.runtime.graph_interpreter import SEED, results_of
from buddy.compiler.runtime.sensitivity import compare_result
from buddy.compiler.tools.runtimes.onnx_model import RuntimeModel, evaluator_of

# The number of nodes that are marked at a time.
MARKS = 8
# Loads a model with marked nodes, and returns the outputs of one call.
CallMarked = Callable[[Sequence[str]], list[Any]]
OnProgress = Callable[[str, float], None]


class Search:
    """A search for the first node of `captured` whose value differs from eager's in a runtime.

    `call(nodes)` calls the model with the values of `nodes` marked, and returns its outputs. `wrong` is the index of a
    result that differs, and `is_right(results)` says whether it no longer does.
    """

    def __init__(
        self, captured: CapturedGraph, model: RuntimeModel, call: CallMarked,
        is_right: Callable[[Sequence[torch.Tensor]], bool], on_progress: OnProgress = lambda _what, _done: None,
    ) -> None:  # fmt: skip
        self._captured, self._model, self._call = captured, model, call
        self._is_right, self._report_progress = is_right, on_progress
        self._order = {op.name: op for op in captured.graph.operations if op.name in model.values}
        self._reports: dict[str, OutputReport] = {}
        self._runs = 0
        self._values_of = _reference_values(captured, model)

    def find(self, wrong: int) -> Divergence:
        """Returns the node where result `wrong` begins to differ: its own operands match eager's."""
        start = time.perf_counter()
        culprit = self._captured.graph.results[wrong]
        try:
            while (operands := self._differing(self._operands(culprit))) and (
                first := self._first_differing(self._ancestors(operands[0]))
            ):
                culprit = first
        except _FusionFound as found:
            return self._divergence(found.node, start, "fusion")
        return self._divergence(culprit, start)

    def compare_all(self) -> Divergence:
        """Marks all nodes at once, which breaks all fusions; returns every comparison, and the first difference."""
        start = time.perf_counter()
        nodes = list(self._order.values())
        self._report_progress(f"calling the model with {len(nodes)} nodes marked", 0.0)
        _, values = self._call_marked(nodes)
        self._judge(nodes, values)
        wrong = {op.name for op in nodes if self._reports[op.name].verdict != "ok"}
        reports = tuple(_short(self._reports[op.name], op) for op in nodes)
        for op in nodes:
            if op.name in wrong and not any(each.name in wrong for each in self._operands(op)):
                return msgspec.structs.replace(self._divergence(op, start), marked=reports)
        return Divergence("", runs=self._runs, seconds=time.perf_counter() - start, marked=reports)

    def _divergence(self, op: Op, start: float, kind: str = "node") -> Divergence:
        report = self._reports.get(op.name)
        return Divergence(
            op.stable,
            "fusion" if kind == "fusion" else "node",
            _short(report, op) if report is not None and kind == "node" else None,
            tuple(operand.stable for operand in self._operands(op)),
            self._runs,
            time.perf_counter() - start,
        )

    # ---- the graph ---------------------------------------------------------------------------------------------------

    def _operands(self, op: Op) -> list[Op]:
        """Returns the nearest nodes before `op` that can be marked, on each path, in the program's order."""
        found: dict[str, Op] = {}
        waiting = list(op.parents)
        seen: set[str] = set()
        while waiting:
            parent = waiting.pop()
            if parent.name in seen:
                continue
            seen.add(parent.name)
            if parent.name in self._order:
                found[parent.name] = parent
            else:
                waiting += parent.parents
        return [node for name, node in self._order.items() if name in found]

    def _ancestors(self, op: Op) -> list[Op]:
        """Returns the nodes that can be marked among `op` and all that it depends on, in the program's order."""
        names, waiting = {op.name}, [op]
        while waiting:
            for parent in waiting.pop().parents:
                if parent.name not in names:
                    names.add(parent.name)
                    waiting.append(parent)
        return [node for name, node in self._order.items() if name in names]

    # ---- marking -----------------------------------------------------------------------------------------------------

    def _first_differing(self, candidates: Sequence[Op]) -> Op | None:
        """Returns the first of `candidates` that differs, if those after it differ too, by a search in eighths."""
        low, high = 0, len(candidates)
        while low < high:
            count = high - low
            indices = range(low, high) if count <= MARKS else [low + count * i // MARKS for i in range(MARKS)]
            differing = {op.name for op in self._differing([candidates[index] for index in indices])}
            first = next((index for index in indices if candidates[index].name in differing), None)
            before = [index for index in indices if first is None or index < first]
            low = before[-1] + 1 if before else low
            high = high if first is None else first
        return candidates[high] if high < len(candidates) else None

    def _differing(self, nodes: Sequence[Op]) -> list[Op]:
        """Returns the nodes whose values differ. Raises `_FusionFound` if marking them makes the results right."""
        for begin in range(0, len(nodes), MARKS):
            part = [op for op in nodes[begin : begin + MARKS] if op.name not in self._reports]
            if part:
                self._report_progress(f"marking {_names(part)} (call {self._runs + 1})", 0.0)
                self._compare_marked(part)
        return [op for op in nodes if self._reports[op.name].verdict != "ok"]

    def _compare_marked(self, nodes: Sequence[Op]) -> None:
        results, values = self._call_marked(nodes)
        self._judge(nodes, values)
        if not self._is_right(results):
            return
        for op in nodes if len(nodes) > 1 else ():
            if self._is_right(self._call_marked([op])[0]):
                raise _FusionFound(op)
        raise _FusionFound(nodes[0])

    def _call_marked(self, nodes: Sequence[Op]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        self._runs += 1
        return self._model.split(self._call([op.name for op in nodes]))

    def _judge(self, nodes: Sequence[Op], values: Sequence[torch.Tensor]) -> None:
        for op, report in zip(nodes, self._values_of(nodes, values), strict=True):
            self._reports[op.name] = report


class _FusionFound(Exception):
    """Marking `node` makes the results right."""

    def __init__(self, node: Op) -> None:
        super().__init__(node.name)
        self.node = node


def _names(nodes: Sequence[Op]) -> str:
    return nodes[0].stable if len(nodes) == 1 else f"{len(nodes)} nodes from {nodes[0].stable} to {nodes[-1].stable}"


def _short(report: OutputReport, op: Op) -> OutputReport:
    """Returns a report without its map and histogram, under the stable name of its node."""
    return msgspec.structs.replace(report, name=op.stable, map=(), histogram=(), checks=())


Judge = Callable[[Sequence[Op], Sequence[torch.Tensor]], list[OutputReport]]


def _reference_values(captured: CapturedGraph, model: RuntimeModel) -> Judge:
    """Returns a function that compares values of nodes with eager's, or with those of ONNX's evaluator for a file."""
    if captured.onnx_model:
        evaluate = evaluator_of(captured)

        def compare_with_evaluator(nodes: Sequence[Op], values: Sequence[torch.Tensor]) -> list[OutputReport]:
            names = [model.values[op.name] for op in nodes]
            expected = evaluate(captured.tensors, names)
            pairs = zip(nodes, names, values, strict=True)
            return [compare(op.stable, value, expected[name], equal_nan=True) for op, name, value in pairs]

        return compare_with_evaluator

    def compare_with_eager(nodes: Sequence[Op], values: Sequence[torch.Tensor]) -> list[OutputReport]:
        # The verdict of a value is that of a program that returns it.
        part = replace(captured, graph=_returning(captured.graph, nodes), result_names=())
        torch.manual_seed(SEED)
        expected = results_of(part.graph, captured.tensors, captured.numbers)
        return [compare_result(part, expected, index, value, equal_nan=True) for index, value in enumerate(values)]

    return compare_with_eager


def _returning(graph: Graph, nodes: Sequence[Op]) -> Graph:
    """Returns a graph with the same nodes that returns `nodes`."""
    view = Graph(graph.name)
    view.symbols = graph.symbols
    output = OutputOp("output")
    output._arguments = [list(nodes)]
    view.body = [*graph.body[:-1], output]
    return view
