"""Compiles a model to a callable by each side of a comparison."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Literal

import torch
import torch._inductor.config

from buddy.compiler.driver import background
from buddy.compiler.frontend import backend
from buddy.compiler.frontend.backend_settings import SPECIALISE_CALLS
from buddy.compiler.protocol.run_report import RUNTIMES
from buddy.compiler.support.target import host_has_features
from buddy.compiler.tools.bench import errors, runtimes
from buddy.compiler.tools.bench.plan import (
    CPP_WRAPPER,
    EAGER,
    FREEZING,
    INDUCTOR,
    INDUCTOR_SIDES,
    IREE,
    MAX_AUTOTUNE,
    OURS,
    OURS_FROZEN,
    TORCHSCRIPT,
    ZENTORCH,
    BenchPrecision,
    Task,
)
from buddy.compiler.tools.bench.subjects import (
    FlatModel,
    LoadedModel,
    SideError,
    SubjectCall,
    convert_precision,
    quantize_linears_dynamically,
)

# Inductor's settings for its sides, besides those that a user has set.
_INDUCTOR_SETTINGS: dict[str, dict[str, bool]] = {
    INDUCTOR: {},
    FREEZING: {"freezing": True},
    MAX_AUTOTUNE: {"freezing": True, "max_autotune": True},
    CPP_WRAPPER: {"freezing": True, "cpp_wrapper": True},
}
# The precisions of a float32 model that are options of this compiler; for the others, the model itself is converted.
_PRECISION_OPTIONS = ("int8-dynamic", "int8-weights", "int4-weights")
# The time limit for the compilation of all sizes of a model with dynamic shapes.
_SPECIALISE_SECONDS = 600.0
# TorchScript profiles the first calls, and optimises in the next one.
_TORCHSCRIPT_CALLS = 3


@dataclass
class PreparedSide:
    """A call that computes the subject once, its compile times, a note for the report, and rounded weights.

    `compile_seconds` is the time from Dynamo's graph to a callable; `aten_seconds` is the time from the ATen graph, and
    thus without AOTAutograd. The `warm` times are those of a second compilation, with the caches of the first one.
    `matrices` are the weights that the side multiplies by, as floats, in a precision that rounds weights alone.
    """

    call: SubjectCall
    compile_seconds: float = 0.0
    aten_seconds: float = 0.0
    warm_seconds: float = 0.0
    warm_aten_seconds: float = 0.0
    note: str = ""
    matrices: list[torch.Tensor] = field(default_factory=list)


def prepare_side(side: str, loaded: LoadedModel, precision: BenchPrecision, threads: int) -> PreparedSide:
    """Compiles `loaded` by `side` in a precision, as a user of both does. Raises `SideError` and errors of the side.

    The model may be converted in place.
    """
    if side == IREE:
        return PreparedSide(runtimes.prepare_iree(loaded, threads))
    if side in RUNTIMES:
        prepared = runtimes.prepare_runtime(side, loaded, precision, threads)
        return PreparedSide(prepared.call, note=prepared.note, matrices=prepared.matrices)
    if side == TORCHSCRIPT:
        return PreparedSide(_prepare_torchscript(loaded, precision))
    # Without this setting, Dynamo runs recurrent networks in eager, for every backend.
    torch._dynamo.config.allow_rnn = True
    if side in (OURS, OURS_FROZEN):
        return _prepare_ours(side, loaded, precision)
    converted = convert_precision(loaded, precision, side)
    if side == EAGER:
        return PreparedSide(converted, matrices=_rounded_matrices(converted, precision))
    if side == ZENTORCH:
        return PreparedSide(_prepare_zentorch(converted))
    assert side in INDUCTOR_SIDES
    for name, value in _INDUCTOR_SETTINGS[side].items():
        # Dynamo reads these settings too, so they apply to the whole process, which has only one side.
        setattr(torch._inductor.config, name, value)
    timer = _CompileTimer()
    matrices = _rounded_matrices(converted, precision)
    return replace(_compile_by_torch(converted, timer, _inductor_backend(timer)), matrices=matrices)


def _rounded_matrices(converted: LoadedModel, precision: BenchPrecision) -> list[torch.Tensor]:
    """Returns the weights of a model that `convert_precision` converted, if only they are rounded."""
    if precision not in errors.WEIGHT_PRECISIONS or not isinstance(converted.model, torch.nn.Module):
        return []
    return errors.dequantised_weights(converted.model)


def _prepare_ours(side: str, loaded: LoadedModel, precision: BenchPrecision) -> PreparedSide:
    """Compiles by this compiler, a second time for the times with filled caches."""
    options: dict[str, Any] = {"freeze": side == OURS_FROZEN}
    matrices: list[torch.Tensor] = []
    if precision in _PRECISION_OPTIONS:
        options["precision"] = precision
        if precision in errors.WEIGHT_PRECISIONS and isinstance(loaded.model, torch.nn.Module):
            matrices = errors.round_weights(loaded.model, precision)
    else:
        loaded = convert_precision(loaded, precision, side)
    timer = _CompileTimer()
    prepared = _compile_by_torch(loaded, timer, _our_backend(timer, options, loaded.task))
    torch._dynamo.reset()
    second_timer = _CompileTimer()
    second = _compile_by_torch(loaded, second_timer, _our_backend(second_timer, options, loaded.task))
    note = _specialise(second.call) if loaded.task == "dynamic" else prepared.note
    return replace(
        prepared, call=second.call, warm_seconds=second.compile_seconds, warm_aten_seconds=second.aten_seconds,
        note=note, matrices=matrices,
    )  # fmt: skip


def _specialise(call: SubjectCall) -> str:
    """Calls the model until each of its frequent sizes has specialised code, as in a program that runs for a while."""
    for _ in range(SPECIALISE_CALLS):
        call.results() if isinstance(call, LoadedModel) else call()
    if not background.wait_until_idle(_SPECIALISE_SECONDS):
        raise SideError(f"sizes were not compiled within {_SPECIALISE_SECONDS:g} s")
    return f"each set of sizes compiled in the background after {SPECIALISE_CALLS} calls"


def _compile_by_torch(loaded: LoadedModel, timer: _CompileTimer, backend: Any) -> PreparedSide:
    """Compiles the model by `torch.compile`, as a user does, and calls it once for the compile times."""
    call = replace(loaded, model=torch.compile(loaded.model, backend=backend, dynamic=_is_dynamic(loaded)))
    call.results()
    return PreparedSide(call, timer.compile_seconds, timer.aten_seconds)


def _is_dynamic(loaded: LoadedModel) -> bool | None:
    return True if loaded.task == "dynamic" else None


@dataclass
class _CompileTimer:
    """The compile times in seconds to a callable: from Dynamo's graph, and from the ATen graph (`aten_seconds`).

    A backward graph, which is compiled by the first backward pass, counts in both.
    """

    compile_seconds: float = 0.0
    aten_seconds: float = 0.0
    _running: set[str] = field(default_factory=set)

    @contextmanager
    def running(self, name: Literal["compile_seconds", "aten_seconds"]) -> Iterator[None]:
        """Adds the duration of the `with` block to the time `name`, unless a block around it does."""
        if name in self._running:
            yield
            return
        self._running.add(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self._running.remove(name)
            setattr(self, name, getattr(self, name) + time.perf_counter() - start)


def _our_backend(timer: _CompileTimer, options: dict[str, Any], task: Task) -> Any:
    """Returns this compiler's backend for `torch.compile`, whose calls `timer` times.

    For the task "dynamic", `aten_seconds` also starts at Dynamo's graph. To time from the ATen graph, the function
    that compiles it must be replaced, and then a graph with symbolic sizes is not compiled once for all sizes.
    """

    def timed_for_all_sizes(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with timer.running("compile_seconds"), timer.running("aten_seconds"):
            return backend.buddy_backend(module, inputs, options=options)

    if task == "dynamic":
        return timed_for_all_sizes

    def compile_aten(aten: Any, settings: backend.BackendSettings) -> Any:
        with timer.running("compile_seconds"), timer.running("aten_seconds"):
            return backend.compile_aten(aten, settings)

    def timed_backend(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with timer.running("compile_seconds"):
            return backend.buddy_backend(module, inputs, options=options, compile_graph=compile_aten)

    return timed_backend


def _inductor_backend(timer: _CompileTimer) -> Any:
    """Returns Inductor as a backend for `torch.compile`, whose calls `timer` times."""
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def timed_inner(*args: Any, **kwargs: Any) -> Any:
        with timer.running("compile_seconds"), timer.running("aten_seconds"):
            return compile_fx_inner(*args, **kwargs)

    def timed_backend(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with timer.running("compile_seconds"):
            return compile_fx(module, inputs, inner_compile=timed_inner)

    return timed_backend


def _prepare_zentorch(loaded: LoadedModel) -> SubjectCall:
    """Compiles by AMD's backend, which rewrites weights in place.

    Raises `SideError` on CPUs without AVX-512, or if zentorch is not installed.
    """
    if not host_has_features("avx512f"):
        raise SideError("zentorch optimises on CPUs with AVX-512 only")
    if find_spec("zentorch") is None:
        raise SideError("zentorch is not installed: pip install 'buddy-tui[zentorch]'")
    import zentorch  # noqa: F401 - registers the backend

    return replace(loaded, model=torch.compile(loaded.model, backend="zentorch", dynamic=_is_dynamic(loaded)))


def _prepare_torchscript(loaded: LoadedModel, precision: BenchPrecision) -> SubjectCall:
    """Traces and freezes the model, with oneDNN's fusion; for bfloat16 under autocast, as PyTorch documents it.

    Raises `SideError` if a function has to be quantised.
    """
    torch.jit.enable_onednn_fusion(True)
    if precision == "int8-dynamic":
        if not isinstance(loaded.model, torch.nn.Module):
            raise SideError("only modules are quantised, and the subject is a function")
        loaded = replace(loaded, model=quantize_linears_dynamically(loaded.model))
    flat = FlatModel(loaded).eval()
    (tensors,) = flat.inputs
    if precision == "bf16":
        torch._C._jit_set_autocast_mode(False)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, precision == "bf16", cache_enabled=False):
        traced = torch.jit.freeze(torch.jit.trace(flat, tuple(tensors), check_trace=False))
    with torch.no_grad():
        for _ in range(_TORCHSCRIPT_CALLS):
            traced(*tensors)
    return lambda: traced(*tensors)
