"""One random program in this process: compiled by the `torch.compile` back end, run, and held beside eager."""

from __future__ import annotations

import copy
import runpy
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from buddy.compiler.coverage.agreement import disagreement
from buddy.compiler.coverage.check import Recorder, in_eager
from buddy.compiler.fuzzing import roundings
from buddy.compiler.fuzzing.plan import Verdict
from buddy.compiler.runner.compare import EXACT

Backend = Callable[..., Callable[..., Any]]
RAISED = "raised"
_extended: set[str] = set()


def check(script: str, options: Mapping[str, Any], extensions: tuple[str, ...] = ()) -> Verdict:
    """What became of the program that `script` defines; `options` are those of the back end.

    `extensions` are Python files that this process runs once.
    """
    for path in extensions:
        if path not in _extended:
            _extended.add(path)
            runpy.run_path(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model, inputs = _loaded(script)
            expected = _called(model, copy.deepcopy(inputs))
            shaken = roundings.runs(lambda given: _called(model, given), lambda: copy.deepcopy(inputs))
        except Exception as error:
            return Verdict("invalid", _first_line(error))
        return _compared(model, inputs, expected, shaken, Recorder(options))


def _loaded(script: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    module = ModuleType("random_program")
    exec(compile(script, "random_program.py", "exec"), module.__dict__)
    return module.model, module.example_inputs


def _called(model: Any, inputs: Any) -> tuple[Any, Any]:
    """The results, and the inputs as the program left them."""
    with torch.no_grad():
        return model(*inputs), inputs


def _compared(
    model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], expected: Any, shaken: list[Any], recorder: Recorder
) -> Verdict:
    said = _said(model, inputs, expected, shaken, recorder)
    if not said and recorder.fault:
        return Verdict("error", recorder.fault)
    if said:
        # What PyTorch makes of the program before any back end sees it may already be another one than eager's.
        captured = _said(model, inputs, expected, shaken, in_eager)
        if captured:
            return Verdict("refused", f"as TorchDynamo captures it: {captured}")
        return Verdict("error" if said.startswith(RAISED) else "wrong", said)
    if not recorder.reached:
        return Verdict("refused", "nothing of it was captured")
    return Verdict("eager", next(iter(recorder.reasons))) if recorder.reasons else Verdict("compiled")


def _said(
    model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], expected: Any, shaken: list[Any], backend: Backend
) -> str:
    """How what `backend` makes of the program differs from eager; "" when it does not."""
    torch._dynamo.reset()
    try:
        found = _called(torch.compile(model, backend=backend, dynamic=False), copy.deepcopy(inputs))
    except Exception as error:
        error = getattr(error, "inner_exception", error)  # Dynamo wraps what a back end raises
        return f"{RAISED} {type(error).__name__}: {_first_line(error)}"
    said, _ = disagreement(found[0], expected[0], lambda _dtype: EXACT, values=False)
    return said or roundings.differs(found, expected, shaken)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
