"""Checks one random program in this process: compiles and runs it, and compares the results with eager.

If the results differ, the program is also run as captured and as decomposed, which shows whether PyTorch's own tracing
causes the difference, and the first statement with a wrong value is found.
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
from buddy.compiler.tools.coverage.check import COMPILED, CoverageRecorder, disagreement, with_strides_of
from buddy.compiler.tools.coverage.samples import SEED, differentiate, leaves_of
from buddy.compiler.tools.fuzz import roundings
from buddy.compiler.tools.fuzz.session import Histogram, Verdict


def disable_guard_timing() -> None:
    """Disables the timing of guards in this process, for which Dynamo flushes the processor's caches for 0.2 s."""
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0


Backend = str | Callable[..., Callable[..., Any]]
RAISED, STRIDES = "raised", "strides"
# In a script of `writing.py`: each assignment of a value, and the return statement of `forward`.
_VALUE = re.compile(r"^        (v\d+) = (.*)$", re.MULTILINE)
_RETURN = re.compile(r"^(        return ).*$", re.MULTILINE)
_CALLED = re.compile(r"\b([a-z]\w*)\(")
# The prefix of a difference in one of several results.
_RESULT = re.compile(r"result (\d+): ")
_extended: set[str] = set()


def check(
    script: str, options: Mapping[str, Any], extensions: tuple[str, ...] = (), dynamic: bool = False,
    gradients: bool = False,
) -> Verdict:  # fmt: skip
    """The verdict on the program that `script` defines; `options` are those of the backend.

    Random numbers are eager's. `extensions` are Python files that this process runs once. With `dynamic`, sizes are
    symbolic. With `gradients`, gradients of inputs and weights are compared too.
    """
    disable_guard_timing()
    options = {"fallback_random": True, **options}
    for path in extensions:
        if path not in _extended:
            _extended.add(path)
            runpy.run_path(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorder = _AnySizes(options) if dynamic else CoverageRecorder(options)
        try:
            verdict = _verdict(_Trial(*_load(script), dynamic, gradients), recorder)
        except Exception as error:  # raised by eager
            return Verdict("invalid", _first_line(error))
        at = _first_wrong(script, CoverageRecorder(options), dynamic, gradients) if verdict.outcome == "wrong" else ""
        return replace(verdict, at=at, compiled=_count_compiled(recorder))


def _load(script: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    module = ModuleType("random_program")
    exec(compile(script, "random_program.py", "exec"), module.__dict__)
    return module.model, module.example_inputs


class _AnySizes(CoverageRecorder):
    """A recorder that compiles once for all sizes if possible, and records less."""

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        self.reached = COMPILED
        return buddy_backend(module, inputs, options=self.options, show_faults=True)


class CheckedProgram(NamedTuple):
    """The results of a program, `None` if it raised, and the difference from eager, empty if they agree."""

    found: Any
    said: str


class _Trial:
    """A program with eager's results. Raises whatever eager does.

    With symbolic sizes it is also called with larger inputs, if eager accepts those. The results are followed by the
    gradients of its inputs and weights, if requested.
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
            del self._inputs[len(self._expected[0]) :]

    def run(self, backend: Backend) -> CheckedProgram:
        """Runs the program compiled by `backend`."""
        torch._dynamo.reset()
        try:
            found = self._call(torch.compile(self._model, backend=backend, dynamic=self._dynamic))
        except Exception as error:
            error = getattr(error, "inner_exception", error)  # Dynamo wraps the exceptions of backends
            return CheckedProgram(None, f"{RAISED} {type(error).__name__}: {_first_line(error)}")
        return CheckedProgram(found, self.differs(found, self._expected))

    def differs(self, found: Any, other: Any) -> str:
        """The difference between the results of two runs, empty if they agree."""
        said, _ = disagreement(found[0], other[0], lambda _dtype: EXACT, values=False)
        # Nearly all programs are within the tolerance of one op; the effect of rounding is measured for the others.
        if not said and roundings.differs(found, other, ()):
            said = roundings.differs(found, other, self._run_perturbed())
        return said

    def _run_perturbed(self) -> list[Any]:
        return roundings.runs(lambda given: self._call(self._model, given), lambda: copy.deepcopy(self._inputs))

    def _call(self, model: Any, given: Any = None) -> tuple[Any, Any]:
        """The results, and the inputs after the call; random numbers are the same each time."""
        given = copy.deepcopy(self._inputs) if given is None else given
        torch.manual_seed(SEED)
        if self._gradients:
            weights = list(self._model.parameters())
            return [_with_gradients(model, weights, inputs) for inputs in given], given
        with torch.no_grad():
            return [model(*inputs) for inputs in given], given


def _with_gradients(
    model: Any, weights: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The results, then the gradients of inputs and weights, where the gradients of the results are random numbers.

    The program is called with copies of its inputs, since eager does not allow it to write to leaves of autograd's
    graph.
    """
    for x in inputs:
        if x.is_floating_point() or x.is_complex():
            x.requires_grad_()
    results = model(*[x.clone() for x in inputs])
    made = differentiate(results, [*leaves_of(inputs), *weights]).tensors
    return tuple(result.detach() for result in (*results, *made))


def _double_sizes(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Tensors of the same kinds with all sizes of 2 or more doubled, so that equal sizes stay equal."""
    return tuple(tensor.repeat([2 if size > 1 else 1 for size in tensor.shape]) for tensor in inputs)


def _verdict(trial: _Trial, recorder: CoverageRecorder) -> Verdict:
    ours = trial.run(recorder)
    if not ours.said and recorder.fault:
        return Verdict("error", recorder.fault)
    if ours.said:
        return _attribute_fault(trial, ours)
    if not recorder.reached:
        return Verdict("refused", "none of it was captured")
    return Verdict("eager", next(iter(recorder.reasons))) if recorder.reasons else Verdict("compiled")


def _attribute_fault(trial: _Trial, ours: CheckedProgram) -> Verdict:
    """The verdict on a difference: "refused" if capture or decomposition by PyTorch causes the same difference."""
    captured = trial.run("aot_eager")
    if captured.said and _matches(trial, ours, captured):
        return Verdict("refused", f"as TorchDynamo captures it: {captured.said}")
    traced = trial.run(_traced_backend)
    if STRIDES in traced.said and _matches(trial, ours, traced):
        return Verdict("refused", f"as traced and decomposed: {traced.said}")
    words = "captured: " * bool(captured.said) or "decomposed: " * bool(traced.said)
    return Verdict("error" if ours.found is None else "wrong", f"{words}{ours.said}")


def _matches(trial: _Trial, ours: CheckedProgram, other: CheckedProgram) -> bool:
    """True if `ours` matches `other`, or if `other` raised and there is nothing to compare."""
    return other.found is None or (ours.found is not None and not trial.differs(ours.found, other.found))


def _first_wrong(script: str, backend: Backend, dynamic: bool, gradients: bool) -> str:
    """The op of the first statement with a wrong value, in a program that returns all values, or an empty string."""
    values = _VALUE.findall(script)
    everything = _RETURN.sub(rf"\1{''.join(f'{name}, ' for name, _ in values)}", script)
    number = _RESULT.match(_Trial(*_load(everything), dynamic, gradients).run(backend).said) if values else None
    # Inputs follow all results; a program that is also called with larger inputs returns all values twice.
    if number is None or int(number[1]) >= len(values) * (1 + dynamic):
        return ""
    statement = values[int(number[1]) % len(values)][1]
    return " ".join(_CALLED.findall(statement)) or statement


def _traced_backend(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that runs the captured and decomposed graph, with the strides of results that tracing predicts.

    A backend only sees these predictions; eager's strides may differ, since PyTorch's metas are not always exact.
    """

    def compiled(aten: AtenGraph) -> Runner:
        metas = [getattr(node, "meta", {}).get("val") for node in aten.module.graph.output_node().args[0]]

        def run(*arguments: Any) -> list[Any]:
            pairs = zip(aten.module(*arguments), metas, strict=True)
            return [value if meta is None else with_strides_of(value, meta) for value, meta in pairs]

        return run

    return run_aot(module, inputs, compiled, fallback_random=True)


def _count_compiled(recorder: CoverageRecorder) -> Histogram:
    """Statistics of the graphs that reached the compiler."""
    metas = [meta for graph in recorder.graphs for op in graph.operations for meta in op.metas if meta is not None]
    return {
        "operators": {target: sum(lowerings.values()) for target, lowerings in recorder.lowerings.items()},
        "dtypes": dict(Counter(str(meta.dtype.value) for meta in metas)),
        "ranks": dict(Counter(str(len(meta.shape)) for meta in metas)),
    }


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
