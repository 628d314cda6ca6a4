"""Checks one random program in this process: compiles and runs it, and compares the results with eager.

If the results differ, runs the program also as captured and as decomposed, to find out whether PyTorch's own tracing
causes the difference, and finds the first statement with a wrong value.
"""

from __future__ import annotations

import contextlib
import copy
import re
import runpy
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace

from buddy.compiler.frontend.aten import AtenGraph, Runner, run_aot
from buddy.compiler.frontend.backend import buddy_backend
from buddy.compiler.runtime.compare import EXACT
from buddy.compiler.support.dynamo_internals import disable_guard_timing
from buddy.compiler.tools.coverage.check import COMPILED, CoverageRecorder, describe_difference, with_strides_of
from buddy.compiler.tools.coverage.samples import SEED, differentiate, leaves_of
from buddy.compiler.tools.fuzz import roundings
from buddy.compiler.tools.fuzz.session import Histogram, Verdict

Backend = str | Callable[..., Callable[..., Any]]
# The first words in descriptions of two kinds of differences: an error of the compiled program, and other strides.
RAISED, STRIDES = "raised", "strides"
# In a script of `writing.py`: each assignment of a value, and the return statement of `forward`.
_ASSIGNMENT = re.compile(r"^        (v\d+) = (.*)$", re.MULTILINE)
_RETURN = re.compile(r"^(        return ).*$", re.MULTILINE)
_CALLED_FUNCTION = re.compile(r"\b([a-z]\w*)\(")
# The prefix of a difference in one of several results.
_RESULT_PREFIX = re.compile(r"result (\d+): ")
# The paths of the extensions that this process has run.
_loaded_extensions: set[str] = set()


def check(
    script: str, options: Mapping[str, object], extensions: tuple[str, ...] = (), dynamic: bool = False,
    gradients: bool = False,
) -> Verdict:  # fmt: skip
    """Returns the verdict on the program that `script` defines; `options` are those of the backend.

    Random numbers are eager's. `extensions` are Python files that this process runs once. With `dynamic`, sizes are
    symbolic; with `gradients`, the gradients of inputs and weights are compared too.
    """
    disable_guard_timing()
    options = {"fallback_random": True, **options}
    for path in extensions:
        if path not in _loaded_extensions:
            _loaded_extensions.add(path)
            runpy.run_path(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorder = _DynamicRecorder(options) if dynamic else CoverageRecorder(options)
        try:
            verdict = _judge(_ProgramTrial(*_load(script), dynamic, gradients), recorder)
        except Exception as error:  # raised by eager
            return Verdict("invalid", _first_line(error))
        wrong_op = ""
        if verdict.outcome == "wrong":
            wrong_op = _first_wrong_op(script, CoverageRecorder(options), dynamic, gradients)
        return replace(verdict, at=wrong_op, compiled=_count_compiled(recorder))


def _load(script: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Runs the script; returns its `model` and `example_inputs`."""
    module = ModuleType("random_program")
    exec(compile(script, "random_program.py", "exec"), module.__dict__)
    return module.model, module.example_inputs


class _DynamicRecorder(CoverageRecorder):
    """A recorder that compiles once for all sizes if possible, and records only that a graph was compiled."""

    def __call__(
        self, module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], **_: object
    ) -> Callable[..., object]:
        self.reached = COMPILED
        return buddy_backend(module, inputs, options=self.options, propagate_errors=True)


# The inputs of each call of a program.
Inputs = list[tuple[torch.Tensor, ...]]
# The nested results of each call, and the inputs afterwards.
CallOutcome = tuple[list[Any], Inputs]


class CheckedRun(NamedTuple):
    """The results of a program, `None` if it raised an error, and their difference from eager, "" if they agree."""

    results: Any
    difference: str


class _ProgramTrial:
    """A program with eager's results. The constructor raises the exceptions of eager.

    With symbolic sizes (`dynamic`), the program is also called with larger inputs, if eager accepts them. With
    `gradients`, its results are followed by the gradients of its inputs and weights.
    """

    def __init__(
        self, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], dynamic: bool, gradients: bool
    ) -> None:
        self._model, self._dynamic, self._gradients = model, dynamic, gradients
        self._inputs = [inputs]
        self._expected = self._call(model)
        if dynamic:
            with contextlib.suppress(Exception):
                self._inputs.append(_double_sizes(inputs))
                self._expected = self._call(model)
            del self._inputs[len(self._expected[0]) :]  # the larger inputs, if eager rejected them

    def run(self, backend: Backend) -> CheckedRun:
        """Runs the program compiled by `backend`."""
        torch._dynamo.reset()
        try:
            results = self._call(torch.compile(self._model, backend=backend, dynamic=self._dynamic))
        except Exception as error:
            error = getattr(error, "inner_exception", error)  # Dynamo wraps the exceptions of backends
            return CheckedRun(None, f"{RAISED} {type(error).__name__}: {_first_line(error)}")
        return CheckedRun(results, self.describe_difference(results, self._expected))

    def describe_difference(self, results: CallOutcome, other: CallOutcome) -> str:
        """Returns a description of the difference between the results of two runs, "" if rounding explains it."""
        difference, _ = describe_difference(results[0], other[0], lambda _dtype: EXACT, compare_values=False)
        # Nearly all programs are within the tolerance of one op; the effect of rounding is measured for the others.
        if not difference and roundings.describe_difference(results, other, ()):
            difference = roundings.describe_difference(results, other, self._run_perturbed())
        return difference

    def _run_perturbed(self) -> list[CallOutcome]:
        return roundings.run_perturbed(
            lambda inputs_copy: self._call(self._model, inputs_copy), lambda: copy.deepcopy(self._inputs)
        )

    def _call(self, model: torch.nn.Module, inputs_copy: Inputs | None = None) -> CallOutcome:
        """Returns the results, and the inputs after the call; random numbers are the same each time."""
        inputs_copy = copy.deepcopy(self._inputs) if inputs_copy is None else inputs_copy
        torch.manual_seed(SEED)
        if self._gradients:
            weights = list(self._model.parameters())
            return [_with_gradients(model, weights, inputs) for inputs in inputs_copy], inputs_copy
        with torch.no_grad():
            return [model(*inputs) for inputs in inputs_copy], inputs_copy


def _with_gradients(
    model: torch.nn.Module, weights: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Returns the results, then the gradients of inputs and weights, for random gradients of the results.

    The program is called with copies of its inputs, since eager does not allow it to write to leaves of autograd's
    graph.
    """
    for x in inputs:
        if x.is_floating_point() or x.is_complex():
            x.requires_grad_()
    results = model(*[x.clone() for x in inputs])
    gradients = differentiate(results, [*leaves_of(inputs), *weights]).tensors
    return tuple(result.detach() for result in (*results, *gradients))


def _double_sizes(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Returns the tensors with all sizes of 2 or more doubled, so that equal sizes stay equal."""
    return tuple(tensor.repeat([2 if size > 1 else 1 for size in tensor.shape]) for tensor in inputs)


def _judge(trial: _ProgramTrial, recorder: CoverageRecorder) -> Verdict:
    """Runs the program compiled, and returns the verdict without `at` and `compiled`."""
    ours = trial.run(recorder)
    if not ours.difference and recorder.fault:
        return Verdict("error", recorder.fault)
    if ours.difference:
        return _attribute_fault(trial, ours)
    if not recorder.reached:
        return Verdict("refused", "none of it was captured")
    return Verdict("eager", next(iter(recorder.reasons))) if recorder.reasons else Verdict("compiled")


def _attribute_fault(trial: _ProgramTrial, ours: CheckedRun) -> Verdict:
    """Returns the verdict on a difference: "refused" if capture or decomposition by PyTorch causes the same one."""
    captured = trial.run("aot_eager")
    if captured.difference and _explains(trial, ours, captured):
        return Verdict("refused", f"as TorchDynamo captures it: {captured.difference}")
    traced = trial.run(_traced_backend)
    if STRIDES in traced.difference and _explains(trial, ours, traced):
        return Verdict("refused", f"as traced and decomposed: {traced.difference}")
    # PyTorch's tracing may cause a difference too, but another one.
    cause = ""
    if captured.difference:
        cause = "captured: "
    elif traced.difference:
        cause = "decomposed: "
    return Verdict("error" if ours.results is None else "wrong", cause + ours.difference)


def _explains(trial: _ProgramTrial, ours: CheckedRun, other: CheckedRun) -> bool:
    """Returns whether `other` explains a difference of `ours`: it has the same results, or raised an error."""
    return other.results is None or (
        ours.results is not None and not trial.describe_difference(ours.results, other.results)
    )


def _first_wrong_op(script: str, backend: Backend, dynamic: bool, gradients: bool) -> str:
    """Returns the op of the first statement with a wrong value, from a run of the program that returns all values.

    Returns "" if that run has no wrong value.
    """
    assignments = _ASSIGNMENT.findall(script)
    if not assignments:
        return ""
    script_with_all_results = _RETURN.sub(rf"\1{''.join(f'{name}, ' for name, _ in assignments)}", script)
    difference = _ProgramTrial(*_load(script_with_all_results), dynamic, gradients).run(backend).difference
    match = _RESULT_PREFIX.match(difference)
    # Inputs follow all results; a program that is also called with larger inputs returns all values twice.
    calls = 2 if dynamic else 1
    if match is None or int(match[1]) >= len(assignments) * calls:
        return ""
    statement = assignments[int(match[1]) % len(assignments)][1]
    return " ".join(_CALLED_FUNCTION.findall(statement)) or statement


def _traced_backend(module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., object]:
    """Returns a backend that runs the captured and decomposed graph, with the strides of results that tracing predicts.

    A backend only sees these predictions. Eager's strides may differ from them.
    """

    def make_runner(aten: AtenGraph) -> Runner:
        metas = [getattr(node, "meta", {}).get("val") for node in aten.module.graph.output_node().args[0]]

        def run(*arguments: torch.Tensor) -> list[torch.Tensor]:
            pairs = zip(aten.module(*arguments), metas, strict=True)
            return [value if meta is None else with_strides_of(value, meta) for value, meta in pairs]

        return run

    return run_aot(module, inputs, make_runner, fallback_random=True)


def _count_compiled(recorder: CoverageRecorder) -> Histogram:
    """Returns the counts of operators, dtypes and ranks in the graphs that reached the compiler."""
    metas = [meta for graph in recorder.graphs for op in graph.operations for meta in op.metas if meta is not None]
    return {
        "operators": {target: sum(lowerings.values()) for target, lowerings in recorder.lowerings.items()},
        "dtypes": dict(Counter(str(meta.dtype.value) for meta in metas)),
        "ranks": dict(Counter(str(len(meta.shape)) for meta in metas)),
    }


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
