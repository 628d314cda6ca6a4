"""Runs a program in other runtimes, interleaved with compiled code and eager, and finds the first node that differs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.run_report import RUNTIMES, Divergence, Mark, OutputReport, SideReport
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.measure import OnProgress, compare_with_reference, describe_error, summarize_times
from buddy.compiler.support import files
from buddy.compiler.support.files import scratch_folder
from buddy.compiler.tools.runtimes.divergence import DivergenceSearch
from buddy.compiler.tools.runtimes.onnx_model import RuntimeModel, make_model, make_result_function
from buddy.compiler.tools.runtimes.sessions import INSTALL_COMMAND, RuntimeProcess, missing_packages

if TYPE_CHECKING:
    import numpy as np


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
