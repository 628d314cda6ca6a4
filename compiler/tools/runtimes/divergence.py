"""Finds the first node whose value differs in another runtime, by adding intermediate values to the model's outputs.

A node is marked if the model returns its value. The runtime cannot fuse across a marked node, so a mark may hide an
error of a fusion. The search therefore marks a few nodes at a time. If a mark makes the results right, the search
reports the fusion across that node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
import torch

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import Op, OutputOp
from buddy.compiler.protocol.run_report import Divergence, OutputReport
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.compare import compare
from buddy.compiler.runtime.graph_interpreter import SEED, compute_results
from buddy.compiler.runtime.measure import OnProgress
from buddy.compiler.runtime.sensitivity import compare_result
from buddy.compiler.tools.runtimes.onnx_model import RuntimeModel, make_evaluator

# The maximum number of nodes that one call marks.
MARKS_PER_CALL = 8
# Calls the model once with the nodes of these names marked, and returns its outputs as NumPy arrays.
CallMarked = Callable[[Sequence[str]], list[Any]]


class DivergenceSearch:
    """A search for the first node of `captured` whose value in a runtime differs from eager's.

    `model` is the program as an ONNX model. `is_right(results)` says whether the result that was wrong without marks is
    right in `results`.
    """

    def __init__(
        self, captured: CapturedGraph, model: RuntimeModel, call: CallMarked,
        is_right: Callable[[Sequence[torch.Tensor]], bool], on_progress: OnProgress = lambda _what, _done: None,
    ) -> None:  # fmt: skip
        self._captured, self._model, self._call = captured, model, call
        self._is_right, self._report_progress = is_right, on_progress
        self._markable = {op.name: op for op in captured.graph.operations if op.name in model.values}
        # The comparisons of the nodes that have been marked, by name, and the number of calls so far.
        self._reports: dict[str, OutputReport] = {}
        self._runs = 0
        self._compare_values = _comparison_of_values(captured, model)

    def find(self, wrong_result: int) -> Divergence:
        """Returns a node that result number `wrong_result` depends on, and that differs although its operands match.

        If a mark makes the result right, returns the fusion across the marked node instead.
        """
        start = time.perf_counter()
        culprit = self._captured.graph.results[wrong_result]
        try:
            # Goes back as long as an operand of the culprit differs too, to the first node that makes it differ.
            while (operands := self._find_differing(self._markable_operands(culprit))) and (
                first := self._first_differing(self._markable_ancestors(operands[0]))
            ):
                culprit = first
        except _FusionAtFault as fault:
            return self._divergence(fault.node, start, "fusion")
        return self._divergence(culprit, start)

    def compare_all(self) -> Divergence:
        """Marks all nodes in one call, which prevents all fusions.

        Returns the comparisons of all nodes, and the first node that differs although its operands match.
        """
        start = time.perf_counter()
        nodes = list(self._markable.values())
        self._report_progress(f"calling the model with {len(nodes)} nodes marked", 0.0)
        _, values = self._call_marked(nodes)
        self._store_reports(nodes, values)
        wrong = {op.name for op in nodes if self._reports[op.name].verdict != "ok"}
        reports = tuple(_summarize(self._reports[op.name], op) for op in nodes)
        for op in nodes:
            if op.name in wrong and not any(operand.name in wrong for operand in self._markable_operands(op)):
                return msgspec.structs.replace(self._divergence(op, start), marked=reports)
        return Divergence("", runs=self._runs, seconds=time.perf_counter() - start, marked=reports)

    def _divergence(self, op: Op, start: float, kind: Literal["node", "fusion"] = "node") -> Divergence:
        report = self._reports.get(op.name)
        return Divergence(
            op.stable,
            kind,
            _summarize(report, op) if report is not None and kind == "node" else None,
            tuple(operand.stable for operand in self._markable_operands(op)),
            self._runs,
            time.perf_counter() - start,
        )

    # ---- the graph ---------------------------------------------------------------------------------------------------

    def _markable_operands(self, op: Op) -> list[Op]:
        """Returns the nearest nodes before `op` that can be marked, on each path, in the program's order."""
        operands: set[str] = set()
        pending = list(op.parents)
        seen: set[str] = set()
        while pending:
            parent = pending.pop()
            if parent.name in seen:
                continue
            seen.add(parent.name)
            if parent.name in self._markable:
                operands.add(parent.name)
            else:
                pending += parent.parents
        return [node for name, node in self._markable.items() if name in operands]

    def _markable_ancestors(self, op: Op) -> list[Op]:
        """Returns `op` and the nodes it depends on, as far as they can be marked, in the program's order."""
        names, pending = {op.name}, [op]
        while pending:
            for parent in pending.pop().parents:
                if parent.name not in names:
                    names.add(parent.name)
                    pending.append(parent)
        return [node for name, node in self._markable.items() if name in names]

    # ---- marking -----------------------------------------------------------------------------------------------------

    def _first_differing(self, candidates: Sequence[Op]) -> Op | None:
        """Returns one of `candidates` that differs, by bisection; `None` if none was found. The last one must differ.

        Each call marks nodes at the boundaries of `MARKS_PER_CALL` equal parts. The result is the first one that
        differs if all candidates after it differ too.
        """
        low, high = 0, len(candidates)
        while low < high:
            count, parts = high - low, MARKS_PER_CALL
            indices = range(low, high) if count <= parts else [low + count * number // parts for number in range(parts)]
            differing = {op.name for op in self._find_differing([candidates[index] for index in indices])}
            first = next((index for index in indices if candidates[index].name in differing), None)
            before = [index for index in indices if first is None or index < first]
            low = before[-1] + 1 if before else low
            high = high if first is None else first
        return candidates[high] if high < len(candidates) else None

    def _find_differing(self, nodes: Sequence[Op]) -> list[Op]:
        """Returns the nodes whose values differ. Raises `_FusionAtFault` if marking them makes the results right."""
        for start in range(0, len(nodes), MARKS_PER_CALL):
            batch = [op for op in nodes[start : start + MARKS_PER_CALL] if op.name not in self._reports]
            if batch:
                self._report_progress(f"marking {_describe_nodes(batch)} (call {self._runs + 1})", 0.0)
                self._compare_marked(batch)
        return [op for op in nodes if self._reports[op.name].verdict != "ok"]

    def _compare_marked(self, nodes: Sequence[Op]) -> None:
        """Marks `nodes`, and compares their values. Raises `_FusionAtFault` if this makes the results right."""
        results, values = self._call_marked(nodes)
        self._store_reports(nodes, values)
        if not self._is_right(results):
            return
        for op in nodes if len(nodes) > 1 else ():
            if self._is_right(self._call_marked([op])[0]):
                raise _FusionAtFault(op)
        # One node was marked, or only several marks together make the results right: the first node is reported.
        raise _FusionAtFault(nodes[0])

    def _call_marked(self, nodes: Sequence[Op]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Calls the model with `nodes` marked; returns the program's results, and the values of the nodes."""
        self._runs += 1
        return self._model.split(self._call([op.name for op in nodes]))

    def _store_reports(self, nodes: Sequence[Op], values: Sequence[torch.Tensor]) -> None:
        for op, report in zip(nodes, self._compare_values(nodes, values), strict=True):
            self._reports[op.name] = report


class _FusionAtFault(Exception):
    """Marking `node` makes the results right."""

    def __init__(self, node: Op) -> None:
        super().__init__(node.name)
        self.node = node


def _describe_nodes(nodes: Sequence[Op]) -> str:
    return nodes[0].stable if len(nodes) == 1 else f"{len(nodes)} nodes from {nodes[0].stable} to {nodes[-1].stable}"


def _summarize(report: OutputReport, op: Op) -> OutputReport:
    """Returns the report under the stable name of its node, without its map, histogram and checks."""
    return msgspec.structs.replace(report, name=op.stable, map=(), histogram=(), checks=())


# Returns a report for each of the nodes, from their values in a runtime.
CompareValues = Callable[[Sequence[Op], Sequence[torch.Tensor]], list[OutputReport]]


def _comparison_of_values(captured: CapturedGraph, model: RuntimeModel) -> CompareValues:
    """Returns a function that compares values of nodes with eager's; for an ONNX file, with ONNX's evaluator."""
    if captured.onnx_model:
        evaluate = make_evaluator(captured)

        def compare_with_evaluator(nodes: Sequence[Op], values: Sequence[torch.Tensor]) -> list[OutputReport]:
            names = [model.values[op.name] for op in nodes]
            expected = evaluate(captured.tensors, names)
            pairs = zip(nodes, names, values, strict=True)
            return [compare(op.stable, value, expected[name], equal_nan=True) for op, name, value in pairs]

        return compare_with_evaluator

    def compare_with_eager(nodes: Sequence[Op], values: Sequence[torch.Tensor]) -> list[OutputReport]:
        # Each value is compared as if it were a result of the program.
        program = replace(captured, graph=_with_results(captured.graph, nodes), result_names=())
        torch.manual_seed(SEED)
        expected = compute_results(program.graph, captured.tensors, captured.numbers)
        return [compare_result(program, expected, index, value, equal_nan=True) for index, value in enumerate(values)]

    return compare_with_eager


def _with_results(graph: Graph, nodes: Sequence[Op]) -> Graph:
    """Returns a graph that shares the nodes of `graph`, and returns the values of `nodes`."""
    graph_of_values = Graph(graph.name)
    graph_of_values.symbols = graph.symbols
    output = OutputOp("output")
    output._arguments = [list(nodes)]
    graph_of_values.body = [*graph.body[:-1], output]
    return graph_of_values
