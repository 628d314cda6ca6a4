"""Runs Inductor's code: in a forked process, because its OpenMP runtime would compete with torch's threads.

Also compares every node that the code writes to memory with eager or double precision.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import IO, TYPE_CHECKING

import msgspec
import torch

from buddy.compiler.graph.node import Op
from buddy.compiler.protocol.numerics import Deviation, NodeNumbers, NumericsReport, Reference, ValueState
from buddy.compiler.protocol.recipe import INDUCTOR, Recipe
from buddy.compiler.runtime.compare import ErrorMetrics, tolerance_of
from buddy.compiler.runtime.graph_interpreter import SEED, LockstepInterpreter, symbol_values
from buddy.compiler.runtime.inductor import provenance
from buddy.compiler.runtime.inductor.compiling import InductorArtifact, compile_program
from buddy.compiler.runtime.inductor.program import InductorError, fx_program
from buddy.compiler.runtime.measure import torch_threads
from buddy.compiler.runtime.node_comparison import count_nonfinite, first_beyond_tolerance
from buddy.compiler.runtime.other_compilers import ForkedProgram
from buddy.compiler.runtime.torch_values import to_torch_dtype

if TYPE_CHECKING:
    from buddy.compiler.runtime.captured import CapturedGraph


class InductorProcess(ForkedProgram):
    """An artifact of Inductor on the tensors of one call. Every method may raise `InductorError`."""

    def __init__(self, artifact: InductorArtifact, tensors: Sequence[torch.Tensor], threads: int) -> None:
        self._threads = threads
        super().__init__(lambda: LoadedArtifact(artifact, tensors, threads), _make_error)

    @property
    def backend(self) -> str:
        return INDUCTOR

    def notes(self) -> list[str]:
        return [f"Inductor's code is that of torch {torch.__version__}, in its own process"]

    def _read(self, file: IO[bytes], shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
        results = torch.load(file, weights_only=True)
        assert isinstance(results, list)
        return results


def _make_error(what: str) -> InductorError:
    return InductorError(what, "Inductor's code, while it ran", "change the recipe's backend_flags, or run again")


class LoadedArtifact:
    """The Python module that Inductor has generated, loaded here; its kernels are in Inductor's cache."""

    def __init__(self, artifact: InductorArtifact, tensors: Sequence[torch.Tensor], threads: int) -> None:
        from torch._inductor import config
        from torch._inductor.codecache import PyCodeCache

        torch.set_num_threads(threads)
        self._tensors = tensors
        constants = torch.load(BytesIO(artifact.constants), weights_only=True)
        with config.patch(artifact.settings), provenance.recording_libraries():
            key, path = PyCodeCache.write(artifact.source)
            self.module = PyCodeCache.load_by_key_path(key, path, attrs=constants)

    def call(self) -> Sequence[torch.Tensor]:
        with torch.no_grad():
            return self.module.call(list(self._tensors))

    def write(self, results: Sequence[torch.Tensor], file: IO[bytes]) -> tuple[tuple[int, ...], ...]:
        torch.save([result.contiguous() for result in results], file)
        return tuple(tuple(result.shape) for result in results)


# ---- comparison of nodes ---------------------------------------------------------------------------------------------


OnProgress = Callable[[str, float], None]
# The name of the observer in the generated module.
_OBSERVER = "_observe_buffer"
# Lines of generated code that write to buffers: calls of kernels, calls with a result, and calls with `out=`.
_WRITE = re.compile(
    r"^(?P<indent>\s+)(?:cpp_fused_\w+\(|extern_kernels\.|torch\.ops\.|(?P<result>buf\d+) = (?!buf\d+;))"
)
# Lines that allocate or view a buffer.
_NO_WRITE = re.compile(r"= (?:empty_strided|reinterpret_tensor|alloc_from_pool)")
_BUFFER = re.compile(r"\bbuf\d+\b")


def compare_nodes(
    captured: CapturedGraph, recipe: Recipe, *, reference: Reference = "eager", every: bool = False, graph: int = 0,
    on_progress: OnProgress = lambda _what, _done: None,
) -> NumericsReport:  # fmt: skip
    """Compiles `captured` by Inductor, runs it, and compares each node whose value is in memory.

    With `every`, all nodes are results of the compiled graph, so all are in memory, and fewer loops are fused. Raises
    `InductorError`.
    """
    start = time.perf_counter()
    symbols = symbol_values(captured.graph, captured.tensors, captured.numbers)
    outputs = [op for op in captured.graph.operations if every and len(op.metas) == 1 and op.metas[0] is not None]
    program = fx_program(captured.graph, symbols, [op.stable for op in outputs])
    artifact = compile_program(program, captured.tensors, recipe.backend_flags, recipe.threads, on_activity=on_progress)
    compile_seconds = time.perf_counter() - start
    with torch_threads(recipe.threads), torch.no_grad():
        observed = [*dict.fromkeys(artifact.values.values()), *(op.stable for op in outputs)]
        comparison = _Comparison(captured, symbols, reference, observed)
        start = time.perf_counter()
        comparison.run(artifact, [op.stable for op in outputs])
        return comparison.report(graph, every, time.perf_counter() - start, compile_seconds)


class _Comparison:
    """One comparison: the reference runs in lockstep with the generated code.

    `observed` are the stable names of the nodes whose values are compared, `errors` their deviations by stable name.
    """

    def __init__(
        self, captured: CapturedGraph, symbols: Mapping[str, int], reference: Reference, observed: Sequence[str]
    ) -> None:
        self._captured, self._reference = captured, reference
        self._counts: dict[str, tuple[int, int]] = {}
        self._deviations = ErrorMetrics()
        held = set(observed) & {op.stable for op in captured.graph.operations}
        torch.manual_seed(SEED)
        self._reference_run = LockstepInterpreter(
            captured.graph, captured.tensors, symbols, held, reference, self._count_nonfinite
        )
        self._pending = held
        self.errors: dict[str, Deviation] = {}

    def run(self, artifact: InductorArtifact, outputs: Sequence[str]) -> None:
        """Runs the generated code, and compares its buffers and its last results, the values of the nodes `outputs`."""
        loaded = LoadedArtifact(add_observer_calls(artifact), self._captured.tensors, torch.get_num_threads())
        setattr(loaded.module, _OBSERVER, lambda buffer, value: self._compare(artifact.values.get(buffer, ""), value))
        torch.manual_seed(SEED)
        results = loaded.call()
        for stable, value in zip(outputs, results[len(results) - len(outputs) :], strict=True):
            self._compare(stable, value)
        self._reference_run.finish()

    def _compare(self, stable: str, value: torch.Tensor) -> None:
        """Compares a value of the generated code, unless its node is unknown or has been compared."""
        if stable not in self._pending or not isinstance(value, torch.Tensor):
            return
        expected = self._reference_run.reach(stable)
        if isinstance(expected, torch.Tensor) and expected.shape == value.shape:
            self.errors[stable] = self._deviations.of(value, expected)
        self._pending.discard(stable)
        self._reference_run.release(stable)

    def _count_nonfinite(self, op: Op, value: torch.Tensor) -> None:
        if isinstance(value, torch.Tensor):
            self._counts[op.stable] = count_nonfinite(value)

    def report(self, graph: int, every: bool, seconds: float, compile_seconds: float) -> NumericsReport:
        """Returns the report; `graph` is the number of the graph in its program."""
        nodes = tuple(self._node_numbers(op, every) for op in self._captured.graph.operations)
        first, cause = first_beyond_tolerance(nodes)
        notes = ("values of Inductor's code; nodes that are fused into others have none",)
        results = tuple(op.stable for op in self._captured.graph.results if isinstance(op, Op))
        return NumericsReport(
            graph, self._reference, nodes, first, cause, results=results, seconds=seconds,
            compile_seconds=compile_seconds, notes=notes,
        )  # fmt: skip

    def _node_numbers(self, op: Op, every: bool) -> NodeNumbers:
        """Returns the entry of a node in the report."""
        error = self.errors.get(op.stable)
        value_state: ValueState = "fused" if error is None else "materialised" if every else "observed"
        meta = next((meta for meta in op.metas if meta is not None), None)
        tolerance = str(tolerance_of(to_torch_dtype(meta.dtype))) if meta is not None else ""
        nans, infs = self._counts.get(op.stable, (0, 0))
        why = "Inductor's code of single nodes is not compiled"
        return NodeNumbers(op.stable, value_state, error, None, tolerance, nans, infs, why)


def add_observer_calls(artifact: InductorArtifact) -> InductorArtifact:
    """Returns the artifact with calls of the observer after each line that writes buffers, one for each new buffer.

    The observer is called with the name and the value of the buffer.
    """
    seen: set[str] = set()
    lines = []
    for line in artifact.source.split("\n"):
        lines.append(line)
        write = _WRITE.match(line)
        if write is None or _NO_WRITE.search(line):
            continue
        buffers = [write["result"]] if write["result"] else list(dict.fromkeys(_BUFFER.findall(line)))
        for buffer in buffers:
            if buffer not in seen:
                seen.add(buffer)
                lines.append(f"{write['indent']}{_OBSERVER}({buffer!r}, {buffer})")
    return msgspec.structs.replace(artifact, source="\n".join(lines))
