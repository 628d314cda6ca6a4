"""Runs a program in other runtimes, interleaved with compiled code and eager, and finds the first node that differs.

The search adds intermediate values to the model's outputs: a node is marked if the model returns its value. The runtime
cannot fuse across a marked node, so a mark may hide an error of a fusion. The search therefore marks a few nodes at a
time. If a mark makes the results right, the search reports the fusion across that node.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import torch

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import Op, OutputOp
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.run_report import RUNTIMES, Divergence, Mark, OutputReport, SideReport
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.compare import compare
from buddy.compiler.runtime.graph_interpreter import SEED, compute_results
from buddy.compiler.runtime.measure import OnProgress, compare_with_reference, describe_error, summarize_times
from buddy.compiler.runtime.sensitivity import compare_result
from buddy.compiler.support import files
from buddy.compiler.support.files import scratch_folder
from buddy.compiler.tools.runtimes.onnx_model import RuntimeModel, make_evaluator, make_model, make_result_function
from buddy.compiler.tools.runtimes.sessions import INSTALL_COMMAND, RuntimeProcess, missing_packages

if TYPE_CHECKING:
    import numpy as np


# ---- the first node that differs -------------------------------------------------------------------------------------


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
            # Goes back as long as an operand of the culprit differs too, to the first node that makes the operand
            # differ.
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
            matching = [index for index in indices if first is None or index < first]
            low = matching[-1] + 1 if matching else low
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


# ---- runs in other runtimes ------------------------------------------------------------------------------------------


# The pause after a call on several threads: idle threads of the runtime spin briefly, and would slow the next call.
_PAUSE_SECONDS = 0.01


class RuntimeSide:
    """A program in another runtime: its results, and the functions in `calls`, each of which times one call.

    If the runtime failed, `problem` is the reason and `calls` is empty.
    """

    def __init__(
        self, name: str, threads: int, mark: Mark, on_progress: OnProgress = lambda _what, _done: None,
    ) -> None:  # fmt: skip
        missing = missing_packages(name)
        self.name, self.problem = name, f"{missing}: {INSTALL_COMMAND}" if missing else ""
        self._threads, self._mark, self._report_progress = threads, mark, on_progress
        self._model: RuntimeModel | None = None
        self._load_seconds = self._export_seconds = 0.0
        self._results: list[torch.Tensor] = []
        self.calls: list[Callable[[], float]] = []

    def start(self, model: RuntimeModel, export_seconds: float, processes: contextlib.ExitStack) -> None:
        """Loads the model in a process that lives as long as `processes`, and calls it once."""
        self._model, self._export_seconds = model, export_seconds
        self._report_progress(f"loading the model in {RUNTIMES[self.name]}", 0.0)
        with self._storing_errors():
            process = processes.enter_context(RuntimeProcess(self.name, model.write(name=self.name), self._threads))
            self._load_seconds = process.wait_until_loaded()
            self._results, _ = model.split(process.call())
            self.calls = [lambda: self._time_call(process)]

    def _time_call(self, process: RuntimeProcess) -> float:
        seconds = process.time_call()
        if self._threads > 1:
            time.sleep(_PAUSE_SECONDS)
        return seconds

    @contextlib.contextmanager
    def _storing_errors(self) -> Iterator[None]:
        """Catches and stores errors of this runtime, which do not affect the other results."""
        try:
            yield
        except Exception as error:
            self.problem = describe_error(error)

    def report(
        self, captured: CapturedGraph, reference: CapturedGraph, expected: Sequence[object],
        seconds: Sequence[Sequence[float]], threads: int, equal_nan: bool,
    ) -> SideReport:  # fmt: skip
        """Compares the results with eager's, and searches for the first node that differs.

        `expected` are eager's results, and `seconds` the measured times of each function in `calls`. `reference` is not
        used: it has the recipe's precisions, and other runtimes compute in those of the program.
        """
        if self.problem or self._model is None:
            return SideReport(self.name, problem=self.problem)
        outputs = compare_with_reference(captured, captured, self._results, expected, equal_nan)
        timing = summarize_times(seconds[0] if seconds else (), threads)
        divergence: Divergence | None = None
        note = ""
        try:
            divergence = self._find_divergence(captured, expected, outputs, equal_nan)
        except Exception as error:  # the comparison above remains valid
            note = f"the search for the first node that differs failed: {error}"
        return SideReport(
            self.name,
            outputs,
            timing,
            self._export_seconds,
            self._load_seconds,
            divergence=divergence,
            note=note,
        )

    def _find_divergence(
        self, captured: CapturedGraph, expected: Sequence[object], outputs: Sequence[OutputReport], equal_nan: bool
    ) -> Divergence | None:
        # The number of the first wrong one among the results that are tensors.
        wrong = next((index for index, output in enumerate(outputs) if output.verdict not in ("ok", "unchecked")), None)
        if self._model is None or self._mark == "none" or (wrong is None and self._mark == "auto"):
            return None

        def is_right(results: Sequence[torch.Tensor]) -> bool:
            reports = compare_with_reference(captured, captured, results, expected, equal_nan)
            return wrong is not None and reports[wrong].verdict == "ok"

        search = DivergenceSearch(captured, self._model, self._call_marked, is_right, self._report_progress)
        if self._mark == "all":
            return search.compare_all()
        assert wrong is not None
        tensor_results = [index for index, value in enumerate(expected) if isinstance(value, torch.Tensor)]
        return search.find(tensor_results[wrong])

    def _call_marked(self, nodes: Sequence[str]) -> list[np.ndarray]:
        assert self._model is not None
        with RuntimeProcess(self.name, self._model.write(nodes, f"{self.name}-marked"), self._threads) as process:
            process.wait_until_loaded()
            return process.call()


@contextlib.contextmanager
def runtime_sides(
    captured: CapturedGraph, names: Sequence[str], threads: int, mark: Mark, on_progress: OnProgress,
    make: Callable[[CapturedGraph, Path], RuntimeModel] = make_model,
) -> Iterator[list[RuntimeSide]]:  # fmt: skip
    """Yields a side for each runtime in `names`, each in a process that ends with the `with` block.

    `make` exports the program to a folder, once for all runtimes.
    """
    sides = [RuntimeSide(name, threads, mark, on_progress) for name in names]
    usable = [side for side in sides if not side.problem]
    with scratch_folder(files.RUNTIMES) as folder, contextlib.ExitStack() as processes:
        if usable:
            on_progress("exporting the program to ONNX", 0.0)
            start = time.perf_counter()
            try:
                model = make(captured, Path(folder))
            except BuddyError as error:
                for side in usable:
                    side.problem = str(error)
            else:
                seconds = time.perf_counter() - start
                for side in usable:
                    side.start(model, seconds, processes)
        yield sides


def with_independent_reference(captured: CapturedGraph) -> CapturedGraph:
    """Returns the program of an ONNX file with ONNX's evaluator as its reference; returns other programs unchanged.

    The usual reference of an ONNX file is ONNX Runtime, which would be compared with itself. It still provides the
    timings of eager.
    """
    if not captured.onnx_model or captured.eager is None:
        return captured
    return replace(
        captured, eager=make_result_function(captured), eager_to_time=captured.eager_to_time or captured.eager
    )
