"""The sides of a comparison: how each compiles a model to a callable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config
from torch.utils import _pytree as pytree

from buddy.compiler.codegen.iree import options
from buddy.compiler.codegen.iree.installed import TODO, missing_packages
from buddy.compiler.codegen.iree.runtime import IreeModule
from buddy.compiler.frontend import backend
from buddy.compiler.importers.sources.inputs import INPUTS, MODEL, call_of
from buddy.compiler.importers.sources.pretrained import offline_models
from buddy.compiler.importers.sources.script import execute, prepare, script_environment
from buddy.compiler.mlir.bindings import torch_fx
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.run_report import RUNTIMES
from buddy.compiler.protocol.source_files import locate
from buddy.compiler.support import files
from buddy.compiler.support.files import scratch_folder
from buddy.compiler.tools.bench.plan import EAGER, OURS, OURS_FROZEN
from buddy.compiler.tools.runtimes import sessions
from buddy.compiler.tools.runtimes.onnx_model import as_array, as_tensor, quiet

SubjectCall = Callable[[], Any]


class SideError(BuddyError):
    """A side cannot run a subject; the text is the reason."""


@dataclass
class PreparedSide:
    """A call that computes the subject once, and its compile times.

    `compile_seconds` is the time from Dynamo's graph to a callable; `aten_seconds` is the time from the ATen graph, and
    thus without AOTAutograd. The `warm` times are those of a second compilation, with the caches of the first one.
    """

    call: SubjectCall
    compile_seconds: float = 0.0
    aten_seconds: float = 0.0
    warm_seconds: float = 0.0
    warm_aten_seconds: float = 0.0


@dataclass(frozen=True)
class LoadedModel:
    """The subject's model with its example inputs, in eager."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> Any:
        return self.model(*self.args, **self.kwargs)


def load(source: str, arguments: tuple[str, ...]) -> LoadedModel:
    """Runs the script and returns its `model` and `example_inputs`. Raises `SourceError`."""
    location, notes = locate(source), list[str]()
    assert location.path is not None
    with script_environment(location.path, arguments), offline_models(notes):
        module = prepare(location.path, "subject")
        execute(location.path, module)
    names = vars(module)
    return LoadedModel(*call_of(names.get(MODEL), names.get(INPUTS), f"{source}:{MODEL}"))


def prepare_side(side: str, loaded: LoadedModel, threads: int) -> PreparedSide:
    """Compiles `loaded` by `side` and calls it once. Raises `SideError`."""
    if side == EAGER:
        loaded()
        return PreparedSide(loaded)
    if side == "iree":
        return PreparedSide(prepare_iree(loaded, threads))
    if side in RUNTIMES:
        return PreparedSide(prepare_runtime(side, loaded, threads))
    # Without this setting, Dynamo runs recurrent networks in eager, for every backend.
    torch._dynamo.config.allow_rnn = True
    # Dynamo reads this setting too, so it applies to the whole process, which has only one side.
    torch._inductor.config.freezing = side == "freezing"
    prepared = _compile_by_torch(side, loaded)
    if side in (OURS, OURS_FROZEN):
        torch._dynamo.reset()
        second = _compile_by_torch(side, loaded)
        prepared.warm_seconds, prepared.warm_aten_seconds = second.compile_seconds, second.aten_seconds
    return prepared


def _compile_by_torch(side: str, loaded: LoadedModel) -> PreparedSide:
    """Compiles the model by `torch.compile`, as a user does, and times the compiler."""
    timer = _CompileTimer()
    backend = _our_backend(timer, side == OURS_FROZEN) if side in (OURS, OURS_FROZEN) else _inductor_backend(timer)
    call = LoadedModel(torch.compile(loaded.model, backend=backend), loaded.args, loaded.kwargs)
    call()
    return PreparedSide(call, timer.whole, timer.inner)


@dataclass
class _CompileTimer:
    """The compile times in seconds: from Dynamo's graph to a callable (`whole`), and from the ATen graph (`inner`)."""

    whole: float = 0.0
    inner: float = 0.0

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.perf_counter() - start)


def _our_backend(timer: _CompileTimer, freeze: bool) -> Any:
    def compiled_aten(aten: Any, settings: backend.BackendSettings) -> Any:
        with timer.running("inner"):
            return backend.compile_aten(aten, settings)

    def timed(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with timer.running("whole"):
            return backend.buddy_backend(module, inputs, options={"freeze": freeze}, compile_graph=compiled_aten)

    return timed


def _inductor_backend(timer: _CompileTimer) -> Any:
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def inner(*args: Any, **kwargs: Any) -> Any:
        with timer.running("inner"):
            return compile_fx_inner(*args, **kwargs)

    def timed(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with timer.running("whole"):
            return compile_fx(module, inputs, inner_compile=inner)

    return timed


def results_of(value: Any) -> list[torch.Tensor]:
    """Returns the tensors of a nested result."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


_ENTRY = "main"


def prepare_iree(loaded: LoadedModel, threads: int) -> Callable[[], list[Any]]:
    """Compiles the subject for IREE, and returns a function that runs it.

    Parameters are constants of the module; inputs are already in device buffers. Raises `SideError` with the first line
    of the error.
    """
    if problem := missing_packages():
        raise SideError(f"{problem}: {TODO}")
    try:
        import iree.compiler as compiler

        with torch.no_grad():
            module, inputs = _import_flat(loaded)
        binary = compiler.compile_str(module, input_type=compiler.InputType.TORCH, extra_args=list(options.DEFAULTS))
        return _make_call(binary, inputs, threads)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise SideError(f"{type(error).__name__}: {lines[0] if lines else ''}") from error


def prepare_runtime(name: str, loaded: LoadedModel, threads: int) -> Callable[[], list[Any]]:
    """Exports the subject to ONNX, loads it in runtime `name`, and returns a function that runs it.

    Parameters are constants of the model. Raises `SideError` with the reason.
    """
    if problem := sessions.missing_packages(name):
        raise SideError(f"{problem}: {sessions.TODO}")
    try:
        with quiet(), torch.no_grad():
            exported, inputs = _export_flat(loaded)
            program = torch.onnx.export(exported, dynamo=True, verbose=False)
        assert program is not None
        with scratch_folder(files.RUNTIMES) as folder:
            program.save(path := Path(folder, "model.onnx"), external_data=True)
            run = sessions.load_session(name, path, threads)
        arrays = [as_array(tensor) for tensor in inputs]
        run(arrays)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise SideError(f"{type(error).__name__}: {lines[0] if lines else ''}") from error
    return lambda: [as_tensor(value) for value in run(arrays)]


def _import_flat(loaded: LoadedModel) -> tuple[str, list[torch.Tensor]]:
    """Returns the program in the torch dialect, and its tensor inputs in order."""
    exported, tensors = _export_flat(loaded)
    return str(torch_fx().export_and_import(exported, output_type="torch", func_name=_ENTRY)), tensors


def _export_flat(loaded: LoadedModel) -> tuple[Any, list[torch.Tensor]]:
    """Returns the program with flat inputs and outputs, exported by PyTorch, and its tensor inputs in order."""
    leaves, spec = pytree.tree_flatten((loaded.args, loaded.kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    class Flat(torch.nn.Module):
        """The model with flat tensors as inputs and outputs."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = loaded.model

        def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            remaining = iter(given)
            values = [next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            args, kwargs = pytree.tree_unflatten(values, spec)
            results = pytree.tree_leaves(self.inner(*args, **kwargs))
            return tuple(leaf for leaf in results if isinstance(leaf, torch.Tensor))

    flat = Flat()
    _make_buffers_persistent(flat)
    return torch.export.export(flat, tuple(tensors)), tensors


def _make_buffers_persistent(module: torch.nn.Module) -> None:
    """Makes all buffers persistent: torch-mlir's importer rejects buffers that `state_dict` leaves out."""
    for part in module.modules():
        part._non_persistent_buffers_set.clear()


def _make_call(binary: bytes, inputs: list[torch.Tensor], threads: int) -> Callable[[], list[Any]]:
    module = IreeModule(binary, _ENTRY, options.driver(options.DEFAULTS, threads), threads)
    buffers = [module.on_device(tensor.numpy()) for tensor in inputs]

    def call() -> list[Any]:
        return [torch.from_numpy(value) for value in module(buffers)]

    call()
    return call
