"""Checks one program: captures, lowers, compiles and runs it, and compares its results with eager's."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.frontend.aten import AtenGraph, Runner, run_aot, target_key
from buddy.compiler.frontend.backend import Own, Settings, buddy_backend, compile_aten
from buddy.compiler.frontend.pieces import BETWEEN, Pieces, computing
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operations.random import PhiloxOp
from buddy.compiler.ops.lowering import Lowered
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.recipe import EAGER, TORCH_MLIR, Recipe
from buddy.compiler.tools.coverage.agreement import UNINITIALISED, Allowed, disagreement, tolerance_of
from buddy.compiler.tools.coverage.plan import STEPS, Finding, Outcome, Pair
from buddy.compiler.tools.coverage.samples import SEED, Call, database

CAPTURED, LOWERED, COMPILED, RAN, COMPARED = range(1, len(STEPS) + 1)


class Recorder:
    """A Dynamo backend that compiles like "buddy" and records how far each graph came, and the lowering of each
    node.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.reached = 0
        self.fault = ""
        self.reasons: dict[str, None] = {}
        self.roads: dict[str, dict[str, int]] = {}
        self.graphs: list[Graph] = []
        self._targets: dict[str, str] = {}

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        return buddy_backend(module, inputs, options=self.options, compile_graph=self._compile)

    @property
    def road(self) -> Outcome:
        """The outcome of the program if its results are right."""
        if self.reasons:
            return "eager"
        return "torch-mlir" if any(TORCH_MLIR in roads for roads in self.roads.values()) else "compiled"

    def _compile(self, aten: AtenGraph, settings: Settings) -> Runner:
        self.reached = max(self.reached, CAPTURED)
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always", UserWarning)
                compiled = compile_aten(aten, settings, Own(build=self._build))
        except Exception as error:
            self.fault = f"{type(error).__name__}: {_first_line(error)}"
            return aten.module
        left = [_first_line(warning.message) for warning in told if "eager" in str(warning.message)]
        self.reasons |= dict.fromkeys(left)
        if compiled is aten.module:
            self._count((target_key(node.target), EAGER) for node in computing(aten.module))
            return compiled
        if isinstance(compiled, Pieces):
            self._count((target_key(node.target), EAGER) for node in compiled.in_eager)
            self._count((target_key(node.target), BETWEEN) for node in compiled.between)
        self.reached = COMPILED
        return compiled

    def _build(self, graph: Graph, recipe: Recipe) -> Artifact:
        self.graphs.append(graph)
        self._targets = {op.stable: op.target for op in graph.operations}
        return compile_graph(graph, recipe, on_lowered=self._note)

    def _note(self, lowered: Lowered) -> None:
        self.reached = LOWERED
        named = [(self._targets.get(found.node, found.node), found) for found in lowered.assignments]
        self._count((target, found.lowering) for target, found in named)
        self.reasons |= {f"{target}: {found.reason}": None for target, found in named if found.lowering == EAGER}

    def _count(self, taken: Iterable[tuple[str, str]]) -> None:
        """Adds nodes, as pairs of target and lowering, to `roads`."""
        for target, road in taken:
            counts = self.roads.setdefault(target, {})
            counts[road] = counts.get(road, 0) + 1


def check(pair: Pair, calls: Sequence[Call], options: Mapping[str, Any]) -> Finding:
    """Checks `calls` as one program."""
    text = calls[0].text if len(calls) == 1 else f"{len(calls)} calls in one program"
    recorder = Recorder(options)
    ours, theirs = [call.fresh() for call in calls], [call.fresh() for call in calls]
    program = _program([call.function for call in calls])
    expected = _seeded(program, theirs)
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=recorder, fullgraph=True, dynamic=False)
    try:
        results = _seeded(compiled, ours)
    except Exception as error:
        return _stopped(text, recorder, error)
    if recorder.fault:
        return Finding(text, "error", recorder.reached, (recorder.fault,), roads=recorder.roads)
    entry = database()[pair.op]
    if _makes_random_numbers(recorder):
        theirs = [call.fresh() for call in calls]
        expected = _captured(program, theirs)
    expected = _with_captured_strides(program, calls, results, expected)
    values = entry.name not in UNINITIALISED
    said, error_ = _compared((results, ours), (expected, theirs), lambda dtype: tolerance_of(entry, dtype)[0], values)
    if said:
        return Finding(text, "wrong", RAN, (said, *recorder.reasons), _plain(error_), recorder.roads)
    reached = COMPARED if recorder.reached >= COMPILED else recorder.reached
    return Finding(text, recorder.road, reached, tuple(recorder.reasons), _plain(error_), recorder.roads)


def _stopped(text: str, recorder: Recorder, error: Exception) -> Finding:
    """The finding for an exception: before compilation PyTorch raised it, later the program did."""
    error = getattr(error, "inner_exception", error)  # Dynamo wraps the exceptions of backends
    said = f"{type(error).__name__}: {_first_line(error)}"
    if recorder.reached >= COMPILED:
        return Finding(text, "error", COMPILED, (f"when run: {said}",), roads=recorder.roads)
    return Finding(text, "refused", 0, (said,))


def _with_captured_strides(
    program: Callable[[list[Any]], list[Any]], calls: Sequence[Call], results: list[Any], expected: list[Any]
) -> list[Any]:
    """Eager's results, but with the program's strides where PyTorch's own decompositions choose other strides than
    eager.
    """
    if _strided(results) == _strided(expected):
        return expected
    captured = _captured(program, [call.fresh() for call in calls])
    return [tree_map(laid_out_as, *both) for both in zip(expected, captured, strict=True)]


def _makes_random_numbers(recorder: Recorder) -> bool:
    """Whether compiled code generates random numbers from a seed, which differ from those of PyTorch's ops."""
    return any(isinstance(op, PhiloxOp) for graph in recorder.graphs for op in graph.operations)


def _captured(program: Callable[[list[Any]], list[Any]], calls: list[Any]) -> list[Any]:
    """The results of the captured program run in eager, node by node."""
    torch._dynamo.reset()
    return _seeded(torch.compile(program, backend=in_eager, fullgraph=True, dynamic=False), calls)


def in_eager(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that runs the captured graph unchanged."""
    return run_aot(module, inputs, lambda aten: aten.module)


def laid_out_as(value: Any, other: Any) -> Any:
    """Tensor `value` with the strides of `other`, if both are non-overlapping."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.shape != other.shape:
        return value
    if 0 in value.stride() or 0 in other.stride():
        return value
    return torch.empty_strided(other.shape, other.stride(), dtype=value.dtype).copy_(value)


def _strided(results: Any) -> list[tuple[int, ...]]:
    return [leaf.stride() for leaf in _tensors(results) if leaf.layout == torch.strided]


def _program(functions: Sequence[Callable[..., Any]]) -> Callable[[list[Any]], list[Any]]:
    def program(calls: list[Any]) -> list[Any]:
        return [function(*args, **kwargs) for function, (args, kwargs) in zip(functions, calls, strict=True)]

    return program


def _seeded(program: Callable[[list[Any]], list[Any]], calls: list[Any]) -> list[Any]:
    """The results of the program, with random numbers from a fixed seed."""
    torch.manual_seed(SEED)
    with torch.no_grad():
        return program(calls)


def _compared(ours: Any, theirs: Any, allowed: Allowed, values: bool) -> tuple[str, float]:
    """Compares results, then arguments: only those that eager writes to may have changed."""
    said, error = disagreement(ours[0], theirs[0], allowed, values)
    if said:
        return said, error
    said, changed = disagreement(_tensors(ours[1]), _tensors(theirs[1]), allowed, values)
    return (f"an argument after the call: {said}" if said else ""), max(error, changed)


def _tensors(arguments: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]


def _plain(error: float) -> float:
    """A finite error: JSON has no infinity, and differing shapes have no difference."""
    return error if math.isfinite(error) else -1.0


def _first_line(error: BaseException | str) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else ""
