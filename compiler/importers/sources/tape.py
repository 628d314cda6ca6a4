"""Records a running script: the functions that it compiles and the modules that it calls."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
import torch
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._pytree import tree_leaves

from buddy.compiler.frontend import listening
from buddy.compiler.frontend.aten import InputOrigin, default_decompositions, input_origins
from buddy.compiler.frontend.capture import (
    GraphRecorder,
    break_at_ops_without_fake,
    callable_name,
    capture_settings,
    name_results,
    record_export,
    record_inference,
    record_training,
)
from buddy.compiler.frontend.graph_info import collect_guards
from buddy.compiler.importers.sources.inputs import suspending_kind
from buddy.compiler.importers.sources.lazy_trace import any_lazy
from buddy.compiler.protocol import Guard
from buddy.compiler.protocol.recipe import Frontend
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.support.dynamo_internals import (
    OptimizedModule,
    RestartAnalysis,
    TorchDynamoException,
    UserError,
    UserErrorType,
)

if TYPE_CHECKING:
    from buddy.compiler.frontend.capture import DynamoBackend


# Maximum number of graphs in each list of a tape, and of captured module calls.
MAX_GRAPHS = 32
MAX_CALLS = 8
_original_compile = torch.compile
_original_call = torch.nn.Module.__call__


@dataclass
class _Trainable:
    """A Dynamo graph that ran with gradients enabled, and its inference graph, an element of `graphs`."""

    graphs: list[CapturedGraph]
    inference: CapturedGraph
    module: torch.fx.GraphModule
    inputs: list[Any]
    origins: list[InputOrigin]


class Tape:
    """Collects graphs while the context `running` is active. The script itself runs in eager, including gradients.

    `requested` are the graphs that the script compiles itself and those of `capture`. `called` are the graphs of plain
    outermost module calls, one per module and input signature. While `skip_calls` returns True, plain calls are not
    captured: the script names its model.
    """

    def __init__(self, skip_calls: Callable[[], bool] = lambda: False, frontend: Frontend = "dynamo") -> None:
        self.exports = frontend == "export"
        self.requested: list[CapturedGraph] = []
        self.called: list[CapturedGraph] = []
        self.notes: list[str] = []
        self._skip_calls = skip_calls
        # The modules whose calls were captured, by signature of the call.
        self._captured_calls: dict[object, Any] = {}
        self._trainable: list[_Trainable] = []
        # Graphs with the function that lists the guards of their frame.
        self._guarded: list[tuple[list[CapturedGraph], Callable[[], tuple[Guard, ...]]]] = []
        self._has_backward = False
        # The first run of each Dynamo graph within the script's current call: the captured graphs, and the results.
        self._runs: list[tuple[list[CapturedGraph], Sequence[Any]]] = []
        # This is a function, because a bound method would not receive the module.
        self._call = lambda module, *args, **kwargs: self._on_module_call(module, *args, **kwargs)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Captures everything that is compiled or called inside; training graphs are captured at the end."""
        torch._dynamo.reset()
        with ExitStack() as stack:
            stack.enter_context(capture_settings())
            stack.enter_context(patch.object(torch, "compile", self._compile))
            stack.enter_context(patch.object(torch.nn.Module, "__call__", self._call))
            stack.enter_context(patch.object(torch.autograd, "backward", self._note_backward(torch.autograd.backward)))
            stack.enter_context(patch.object(torch.autograd, "grad", self._note_backward(torch.autograd.grad)))
            backend = self._backend("compiled", self.requested)
            stack.enter_context(listening(self._on_import, self.pause_recording, backend))
            stack.enter_context(_quiet_logs())
            try:
                yield
            finally:
                self._add_guards()
                torch._dynamo.reset()
        if self._has_backward:
            self._capture_training()

    def capture(self, function: Callable[..., object], args: Sequence[torch.Tensor], kwargs: dict[str, object]) -> None:
        """Runs `function` once under `no_grad`, or exports it, and adds its graphs to `requested`."""
        if self.exports:
            with self.pause_recording():
                self._export(function, args, kwargs, self.requested)
            return
        with self.pause_recording(), torch.no_grad():
            backend = self._backend(callable_name(function), self.requested)
            self._call_and_name(_original_compile(function, backend=backend, dynamic=False), args, kwargs)

    # ---- replacements of PyTorch's functions while the script runs ----

    def _compile(self, model: Callable[..., object] | None = None, **options: Any) -> object:
        """Replaces `torch.compile`: compiles by a backend that captures graphs, or by the script's `DynamoCompiler`."""
        if model is None:
            return functools.partial(self._compile, **options)
        if self.exports:
            self._note_once("graphs that the script compiles itself are captured by TorchDynamo, not by torch.export")
        from buddy.compiler.frontend import DynamoCompiler

        backend = options.get("backend")
        if not isinstance(backend, DynamoCompiler):
            strict = backend == "buddy" and (options.get("options") or {}).get("fallback") == "error"
            backend = self._backend(callable_name(model), self.requested, strict)
        # `dynamic=None`: sizes are static, except for dims that the script marks as dynamic.
        dynamic = options.get("dynamic")
        compiled = _original_compile(model, backend=backend, fullgraph=options.get("fullgraph", False), dynamic=dynamic)
        return compiled if isinstance(compiled, torch.nn.Module) else self._wrap_compiled(compiled)

    def _wrap_compiled(self, function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            with self.pause_recording():
                return self._call_and_name(function, args, kwargs)

        return call

    def _on_module_call(self, module: torch.nn.Module, *args: torch.Tensor, **kwargs: object) -> torch.Tensor:
        """Replaces `Module.__call__`: captures outermost calls, and returns their results in eager."""
        if torch.compiler.is_compiling():
            # The call is part of a function that was passed to `torch.compile` before.
            return _original_call(module, *args, **kwargs)
        with self.pause_recording():
            if isinstance(module, OptimizedModule):
                return self._call_and_name(functools.partial(_original_call, module), args, kwargs)
            if self._skip_calls() or _is_tracing() or any_lazy(args, kwargs):
                return _original_call(module, *args, **kwargs)
            if (kind := suspending_kind(module)) is not None:
                self._note_once(f"{type(module).__name__} was not captured: its forward is {kind}")
                return _original_call(module, *args, **kwargs)
            return self._capture_call(module, args, kwargs)

    def _note_backward(self, function: Callable[..., object]) -> Callable[..., object]:
        """Wraps a function of autograd, to note that the script computes gradients."""

        @functools.wraps(function)
        def call(*args: torch.Tensor | bool | None, **kwargs: object) -> object:
            self._has_backward = True
            return function(*args, **kwargs)

        return call

    def _on_import(self, graph: CapturedGraph) -> None:
        """Adds a graph that the script imports itself, by a `DynamoCompiler`."""
        self.requested.append(graph)

    @contextmanager
    def pause_recording(self) -> Iterator[None]:
        """Restores PyTorch's own `Module.__call__`: calls inside are part of the graph that is being captured."""
        break_at_ops_without_fake()  # for ops that the script has defined so far
        patched_call = torch.nn.Module.__call__
        torch.nn.Module.__call__ = _original_call
        try:
            yield
        finally:
            torch.nn.Module.__call__ = patched_call

    # ---- capture ----

    def _call_and_name(
        self, function: Callable[..., object], args: Sequence[torch.Tensor], kwargs: Mapping[str, object]
    ) -> torch.Tensor:
        """Returns the result of a call; its names are given to the results of graphs that run for the first time."""
        outer_runs, self._runs = self._runs, []
        try:
            result = function(*args, **kwargs)
            if self._runs:
                name_results(self._runs, result)
        finally:
            self._runs = outer_runs
        return result

    def _capture_call(
        self, module: torch.nn.Module, args: tuple[torch.Tensor, ...], kwargs: dict[str, object]
    ) -> torch.Tensor:
        """Returns the result of a plain module call, whose graphs are captured if it is the first of its kind."""
        signature = (id(module), module.training, *map(_call_signature, tree_leaves((args, kwargs))))
        if signature in self._captured_calls:
            return _original_call(module, *args, **kwargs)
        if len(self._captured_calls) >= MAX_CALLS:
            self._note_once(f"only the first {MAX_CALLS} modules and input shapes that were called are captured")
            return _original_call(module, *args, **kwargs)
        self._captured_calls[signature] = module  # kept alive, so that its id is not reused
        backend = self._backend(type(module).__name__, self.called)
        try:
            if self.exports:
                self._export(module, args, kwargs, self.called)
                return _original_call(module, *args, **kwargs)
            return self._call_and_name(_original_compile(module, backend=backend, dynamic=False), args, kwargs)
        except TorchDynamoException as error:
            result = _original_call(module, *args, **kwargs)
            self.notes.append(f"{type(module).__name__} was not captured: {_first_line(error)}")
            return result

    def _export(
        self,
        function: Callable[..., object],
        args: Sequence[object],
        kwargs: dict[str, object],
        graphs: list[CapturedGraph],
    ) -> None:
        """Adds the graph that `torch.export` makes of a call. Raises `TorchDynamoException` if it fails."""
        recorder = GraphRecorder(callable_name(function))
        try:
            with torch.random.fork_rng():
                record_export(function, args, kwargs, default_decompositions(), recorder)
        except TorchDynamoException:
            raise
        except Exception as error:
            raise UserError(
                UserErrorType.INVALID_INPUT, f"torch.export cannot export {recorder.name}: {error}"
            ) from error
        graphs.extend(recorder.graphs)

    def _backend(self, name: str, graphs: list[CapturedGraph], strict: bool = False) -> DynamoBackend:
        """Returns a Dynamo backend that adds the inference graph to `graphs` and runs the Dynamo graph in eager.

        With `strict`, it raises for a graph that cannot be captured; otherwise it adds a note.
        """

        def backend(
            module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], **_: object
        ) -> Callable[..., Sequence[torch.Tensor]]:
            if len(graphs) >= MAX_GRAPHS:
                self._note_once(f"only the first {MAX_GRAPHS} graphs are captured")
                return module.forward
            recorder = GraphRecorder(name, strict=strict)
            try:
                with torch.random.fork_rng():
                    record_inference(module, inputs, recorder)
            except RestartAnalysis:
                raise  # Dynamo's own exception: it traces the graph again
            except Exception as error:  # if the capture fails, the script continues in eager
                if strict:
                    raise
                self.notes.append(f"a graph of {name} was not captured: {_first_line(error)}")
                return module.forward
            graphs.extend(recorder.graphs)
            self._guarded.append((recorder.graphs, collect_guards(module, inputs)))
            if torch.is_grad_enabled() and any(getattr(value, "requires_grad", False) for value in inputs):
                origins = input_origins(module, inputs)
                self._trainable += [_Trainable(graphs, g, module, list(inputs), origins) for g in recorder.graphs]
            # Without this, `forward` would be a method that calls the module, and the call would be captured.
            _LazyGraphModule.force_recompile(module)
            return self._note_first_run(module.forward, recorder.graphs)

        return backend

    def _note_first_run(
        self, forward: Callable[..., Any], graphs: list[CapturedGraph]
    ) -> Callable[..., Sequence[torch.Tensor]]:
        """Returns the `forward` of a Dynamo graph, which notes the results of its first run."""
        has_run = False

        def run(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
            nonlocal has_run
            results = forward(*args)
            if not has_run:
                has_run = True
                self._runs.append((graphs, results))
            return results

        return run

    def _add_guards(self) -> None:
        """Adds to each graph the guards of its frame, which Dynamo has compiled by now."""
        for graphs, guards in self._guarded:
            for graph in graphs:
                graph.info = msgspec.structs.replace(graph.info, guards=guards())
        self._guarded.clear()

    def _capture_training(self) -> None:
        """Replaces each inference graph that ran with gradients by its forward and backward graphs."""
        for trainable in self._trainable:
            recorder = GraphRecorder(trainable.inference.info.name, strict=trainable.inference.info.strict)
            with torch.random.fork_rng():
                record_training(trainable.module, trainable.inputs, trainable.origins, recorder)
            for graph in recorder.graphs[:1]:
                graph.info = msgspec.structs.replace(graph.info, guards=trainable.inference.info.guards)
            position = next(index for index, graph in enumerate(trainable.graphs) if graph is trainable.inference)
            trainable.graphs[position : position + 1] = recorder.graphs
        self._note_once("the program calls backward: forward and backward graphs were captured, with gradients of ones")

    def _note_once(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Disables torch's logs, which print a traceback for errors that are reported to the caller anyway."""
    loggers = [logging.getLogger(name) for name in ("torch._subclasses.fake_tensor", "torch._dynamo")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _is_tracing() -> bool:
    """Returns whether PyTorch itself is tracing (export, jit, fx, functorch), so that calls are not the program's."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch.utils._python_dispatch._get_current_dispatch_mode() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def _call_signature(value: torch.Tensor) -> object:
    """Returns what an argument adds to the signature of a call: calls with equal signatures have equal graphs."""
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype)
    return value if isinstance(value, (bool, int, float, str)) else type(value)


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
