"""Checks one program: captures, lowers, compiles and runs it, and compares the results with eager."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.frontend.aten import AtenGraph, Runner, run_aot, target_key
from buddy.compiler.frontend.backend import BackendSettings, buddy_backend, compile_aten
from buddy.compiler.frontend.compiled_graph import CompilerOverrides
from buddy.compiler.frontend.graph_splitter import BETWEEN, SplitGraph, computing_nodes
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operations.effects import PhiloxOp
from buddy.compiler.ops.lowering import LoweredModule
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.recipe import EAGER, TORCH_MLIR, Recipe
from buddy.compiler.runtime.compare import EXACT, TOLERANCES, Tolerance, compare
from buddy.compiler.tools.coverage.samples import SEED, SampleCall, differentiate, leaves_of, op_infos
from buddy.compiler.tools.coverage.session import STEPS, CallResult, OpDtypePair, Outcome

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo

    from buddy.compiler.tools.coverage.samples import CallArguments


# Operators that return uninitialized memory: their results are compared without values.
UNINITIALISED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_"}
)

# The tolerance of operators whose results in eager are less exact than the dtype allows: eager's absolute and relative
# error, rounded up.
#
# Bessel functions of float64: measured with mpmath at 600 points up to 30. The greatest errors are at 5.05, where
# PyTorch's asymptotic form starts: 3.6e-7 (J0), 3.9e-7 (J1), 1.7e-7 (Y0), 8.1e-7 (Y1). Compiled code is within 1e-14
# of the functions (`tests/ops/test_bessel.py`). OpInfo allows 1e-5.
EAGER_ERRORS = {(f"special.bessel_{name}", torch.float64): Tolerance(1e-6, 1e-7) for name in ("j0", "j1", "y0", "y1")}


def tolerance_of(op_info: OpInfo, dtype: torch.dtype) -> tuple[Tolerance, str]:
    """Returns the tolerance for results of `dtype`, and its origin as text.

    The tolerance is eager's own error (`EAGER_ERRORS`), else the wider one of those of OpInfo and `runtime.compare`.
    OpInfo declares its tolerances by decorators of tests. Those of `TestCommon` on the CPU are relevant: its tests
    compare two ways to compute a result, like the checks of this module.
    """
    if (op_info.full_name, dtype) in EAGER_ERRORS:
        return EAGER_ERRORS[op_info.full_name, dtype], "eager's error"
    usual = TOLERANCES.get(dtype, EXACT)
    if usual == EXACT:
        return usual, "torch.testing"
    declared = [
        override.d[dtype]
        for test in op_info.decorators
        if getattr(test, "cls_name", "") == "TestCommon" and getattr(test, "device_type", None) in (None, "cpu")
        for override in test.decorators
        if type(override).__name__ == "toleranceOverride" and dtype in override.d
    ]
    widest = Tolerance(
        max([usual.absolute, *(tol.atol for tol in declared)]), max([usual.relative, *(tol.rtol for tol in declared)])
    )
    return widest, "OpInfo" if widest != usual else "torch.testing"


# ---- the difference of two results -----------------------------------------------------------------------------------

# A function that returns the tolerance of results of a dtype.
ToleranceForDtype = Callable[[torch.dtype], Tolerance]


def describe_difference(
    ours: object, theirs: object, tolerance_for: ToleranceForDtype, compare_values: bool = True
) -> tuple[str, float]:
    """Returns a description of the first difference of two nested results, and the absolute error of that result.

    If there is no difference, returns "" and the largest absolute error. The error is NaN if values cannot be compared.
    Without `compare_values`, only the layout, dtype, shape and strides of tensors are compared.
    """
    left, right = tree_leaves(ours), tree_leaves(theirs)
    if len(left) != len(right):
        return f"{len(left)} results, eager gives {len(right)}", math.nan
    largest = 0.0
    for number, (mine, other) in enumerate(zip(left, right, strict=True)):
        text, error = _describe_leaf_difference(mine, other, tolerance_for, compare_values)
        largest = max(largest, error)
        if text:
            return (f"result {number}: {text}" if len(left) > 1 else text), error
    return "", largest


def _describe_leaf_difference(
    ours: Any, theirs: Any, tolerance_for: ToleranceForDtype, compare_values: bool
) -> tuple[str, float]:
    if not isinstance(theirs, torch.Tensor) or not isinstance(ours, torch.Tensor):
        is_equal = type(ours) is type(theirs) and (ours == theirs or ours != ours)  # NaN differs from itself
        return ("" if is_equal else f"{ours!r}, eager gives {theirs!r}"), 0.0
    for name in ("layout", "dtype", "shape"):
        if getattr(ours, name) != getattr(theirs, name):
            return f"{name} {getattr(ours, name)}, eager gives {getattr(theirs, name)}", math.nan
    if theirs.layout != torch.strided:
        ours, theirs = ours.to_dense(), theirs.to_dense()
    elif _is_dense(theirs) and _strides(ours) != _strides(theirs):
        return f"strides {ours.stride()} of {tuple(ours.shape)}, eager gives {theirs.stride()}", math.nan
    return _describe_value_difference(ours, theirs, tolerance_for(theirs.dtype)) if compare_values else ("", 0.0)


def _describe_value_difference(ours: torch.Tensor, theirs: torch.Tensor, tolerance: Tolerance) -> tuple[str, float]:
    resolved_ours, resolved_theirs = (tensor.resolve_conj().resolve_neg() for tensor in (ours, theirs))
    report = compare("", resolved_ours, resolved_theirs, tolerance, equal_nan=True)
    if report.verdict == "ok":
        return "", report.max_abs
    # `where` is the index as text, such as "[0, 3]".
    index = tuple(int(number) for number in report.where.strip("[]").split(",") if number.strip())
    return f"{ours[index].item()!r} at {report.where}, eager gives {theirs[index].item()!r}", report.max_abs


def _strides(tensor: torch.Tensor) -> list[int]:
    """Returns the significant strides: those of dims with more than one element; none for empty tensors."""
    if not tensor.numel():
        return []
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _is_dense(tensor: torch.Tensor) -> bool:
    """Returns whether the elements fill their memory without gap or overlap; only then are the strides compared."""
    expected = 1
    dims = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1)
    for stride, size in dims:
        if stride != expected:
            return False
        expected *= size
    return True


# ---- recording of a compilation --------------------------------------------------------------------------------------

# The numbers of completed steps (`CallResult.reached`) after each of `STEPS`.
CAPTURED, LOWERED, COMPILED, RUN_DONE, COMPARED = range(1, len(STEPS) + 1)


class CoverageRecorder:
    """A Dynamo backend that compiles like "buddy" and records the steps and the lowerings.

    `reached` is the greatest number of completed steps of any graph, `fault` the error of the compiler, "" for none.
    The keys of `reasons` say why nodes run in eager. `lowerings` counts nodes as in `CallResult`; `graphs` are the
    graphs that reached the compiler. `options` are those of the "buddy" backend.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        self.options = options
        self.reached = 0
        self.fault = ""
        self.reasons: dict[str, None] = {}
        self.lowerings: dict[str, dict[str, int]] = {}
        self.graphs: list[Graph] = []
        # The ATen targets of the last graph's ops, by the stable name of the op.
        self._targets: dict[str, str] = {}

    def __call__(
        self, module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], **_: object
    ) -> Callable[..., object]:
        return buddy_backend(module, inputs, options=self.options, compile_graph=self._compile)

    @property
    def lowering(self) -> Outcome:
        """The outcome of the program if its results are right: how its nodes were lowered."""
        if self.reasons:
            return "eager"
        return "torch-mlir" if any(TORCH_MLIR in lowerings for lowerings in self.lowerings.values()) else "compiled"

    def _compile(self, aten: AtenGraph, settings: BackendSettings) -> Runner:
        self.reached = max(self.reached, CAPTURED)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", UserWarning)
                compiled = compile_aten(aten, settings, CompilerOverrides(build=self._build))
        except Exception as error:
            self.fault = f"{type(error).__name__}: {_first_line(error)}"
            return aten.module
        fallbacks = [_first_line(warning.message) for warning in caught if "eager" in str(warning.message)]
        self.reasons |= dict.fromkeys(fallbacks)
        if compiled is aten.module:  # the whole graph runs in eager
            self._count((target_key(node.target), EAGER) for node in computing_nodes(aten.module))
            return compiled
        if isinstance(compiled, SplitGraph):
            self._count((target_key(node.target), EAGER) for node in compiled.in_eager)
            self._count((target_key(node.target), BETWEEN) for node in compiled.between)
        self.reached = COMPILED
        return compiled

    def _build(self, graph: Graph, recipe: Recipe) -> Artifact:
        self.graphs.append(graph)
        self._targets = {op.stable: op.target for op in graph.operations}
        return compile_graph(graph, recipe, on_lowered=self._record_lowerings)

    def _record_lowerings(self, lowered: LoweredModule) -> None:
        self.reached = LOWERED
        for assignment in lowered.assignments:
            target = self._targets.get(assignment.node, assignment.node)
            self._count([(target, assignment.lowering)])
            if assignment.lowering == EAGER:
                self.reasons[f"{target}: {assignment.reason}"] = None

    def _count(self, nodes: Iterable[tuple[str, str]]) -> None:
        """Adds nodes, given as pairs of target and lowering, to `lowerings`."""
        for target, lowering in nodes:
            counts = self.lowerings.setdefault(target, {})
            counts[lowering] = counts.get(lowering, 0) + 1


# ---- the check -------------------------------------------------------------------------------------------------------

# A function that takes the arguments of each call, and returns the result of each call.
Program = Callable[[list[Any]], list[Any]]


class ProgramRun(NamedTuple):
    """The results of a program, the gradients of its arguments (() if not computed), and the arguments afterwards."""

    results: list[Any]
    gradients: tuple[torch.Tensor, ...]
    arguments: list[Any]


def check(
    pair: OpDtypePair, calls: Sequence[SampleCall], options: Mapping[str, object], backward: bool = False
) -> CallResult:
    """Compiles `calls` as one program, and compares its results with eager's; with `backward`, also the gradients.

    If compiled code has its own random generator, its results are compared with those of the captured program in eager.
    """
    text = calls[0].text if len(calls) == 1 else f"{len(calls)} calls in one program"
    recorder = CoverageRecorder(options)
    program = _make_program([call.function for call in calls])
    expected = _run_program(program, calls, backward)
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=recorder, fullgraph=True, dynamic=False)
    try:
        actual = _run_program(compiled, calls, backward)
    except Exception as error:
        return _result_of_exception(text, recorder, error)
    if recorder.fault:
        return CallResult(text, "error", recorder.reached, (recorder.fault,), lowerings=recorder.lowerings)
    op_info = op_infos()[pair.op]
    if _makes_random_numbers(recorder):
        expected = _run_captured(program, calls, backward)
    expected = _with_captured_strides(program, calls, backward, actual, expected)
    compare_values = op_info.name not in UNINITIALISED
    difference, largest = _compare(actual, expected, lambda dtype: tolerance_of(op_info, dtype)[0], compare_values)
    reasons, error_size = tuple(recorder.reasons), _finite_error(largest)
    if difference:
        return CallResult(text, "wrong", RUN_DONE, (difference, *reasons), error_size, recorder.lowerings)
    reached = COMPARED if recorder.reached >= COMPILED else recorder.reached
    return CallResult(text, recorder.lowering, reached, reasons, error_size, recorder.lowerings)


def _result_of_exception(text: str, recorder: CoverageRecorder, error: Exception) -> CallResult:
    """Returns the result for an exception of the compiled program: "refused" if compilation has not ended."""
    error = getattr(error, "inner_exception", error)  # Dynamo wraps the exceptions of backends
    message = f"{type(error).__name__}: {_first_line(error)}"
    if recorder.reached >= COMPILED:
        return CallResult(text, "error", COMPILED, (f"when run: {message}",), lowerings=recorder.lowerings)
    return CallResult(text, "refused", 0, (message,))


def _with_captured_strides(
    program: Program, calls: Sequence[SampleCall], backward: bool, actual: ProgramRun, expected: ProgramRun
) -> ProgramRun:
    """Returns eager's results; if the strides of `actual` differ, with the strides of the captured program's results.

    PyTorch's decompositions may choose other strides than eager.
    """
    if _strides_of_results(actual.results) == _strides_of_results(expected.results):
        return expected
    captured = _run_captured(program, calls, backward).results
    return expected._replace(
        results=[tree_map(with_strides_of, *both) for both in zip(expected.results, captured, strict=True)]
    )


def _makes_random_numbers(recorder: CoverageRecorder) -> bool:
    """Returns whether compiled code has its own random generator, whose numbers differ from eager's."""
    return any(isinstance(op, PhiloxOp) for graph in recorder.graphs for op in graph.operations)


def _run_captured(program: Program, calls: Sequence[SampleCall], backward: bool = False) -> ProgramRun:
    """Runs the captured program in eager, node by node."""
    torch._dynamo.reset()
    return _run_program(
        torch.compile(program, backend=captured_backend, fullgraph=True, dynamic=False), calls, backward
    )


def captured_backend(module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., object]:
    """Returns a backend that runs the captured graph unchanged."""
    return run_aot(module, inputs, lambda aten: aten.module)


def with_strides_of(value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Returns `value` with the strides of `other`, or unchanged if one is expanded or both have different shapes."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.shape != other.shape:
        return value
    if 0 in value.stride() or 0 in other.stride():
        return value
    return torch.empty_strided(other.shape, other.stride(), dtype=value.dtype).copy_(value)


def _strides_of_results(results: object) -> list[tuple[int, ...]]:
    return [leaf.stride() for leaf in _tensors(results) if leaf.layout == torch.strided]


def _make_program(functions: Sequence[Callable[..., object]]) -> Program:
    def program(calls: list[CallArguments]) -> list[torch.Tensor]:
        return [function(*args, **kwargs) for function, (args, kwargs) in zip(functions, calls, strict=True)]

    return program


def _run_program(program: Program, calls: Sequence[SampleCall], backward: bool) -> ProgramRun:
    """Runs the program with random numbers from a fixed seed."""
    arguments = [call.copy_arguments() for call in calls]
    torch.manual_seed(SEED)
    with torch.set_grad_enabled(backward):
        results = program([call.prepare(call_arguments) for call, call_arguments in zip(calls, arguments, strict=True)])
    if not backward:
        return ProgramRun(results, (), arguments)
    differentiable = [call.differentiable(result) for call, result in zip(calls, results, strict=True)]
    gradients = differentiate(differentiable, leaves_of(arguments)).tensors
    results, arguments = tree_map_only(torch.Tensor, torch.Tensor.detach, (results, arguments))
    return ProgramRun(results, gradients, arguments)


def _compare(
    ours: ProgramRun, theirs: ProgramRun, tolerance_for: ToleranceForDtype, compare_values: bool
) -> tuple[str, float]:
    """Compares results, gradients, and the arguments after the call, which must have changed as in eager.

    Returns the same as `describe_difference`.
    """
    largest = 0.0
    parts = (
        ("", ours.results, theirs.results),
        ("gradient: ", ours.gradients, theirs.gradients),
        ("an argument afterwards: ", _tensors(ours.arguments), _tensors(theirs.arguments)),
    )
    for prefix, mine, other in parts:
        difference, error = describe_difference(mine, other, tolerance_for, compare_values)
        largest = max(largest, error)
        if difference:
            return prefix + difference, error
    return "", largest


def _tensors(nested: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(nested) if isinstance(leaf, torch.Tensor)]


def _finite_error(error: float) -> float:
    """Returns the error if it is finite, else -1, because JSON has neither infinity nor NaN."""
    return error if math.isfinite(error) else -1.0


def _first_line(error: BaseException | str) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else ""
